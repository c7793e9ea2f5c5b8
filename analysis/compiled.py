"""Compile records made into figures: of each kernel its hot loop, what that costs an SM, and what bounds it.

Leaves SASS to `analysis.sass` and `analysis.sass_loops`, rates and pipes to `analysis.pipes`, and files to the command.
The definitions are those of published compile figures of other suites' kernels, so that both can be compared: the hot
loop is the innermost one with the most tensor work, of those the shortest, and counts only what every trip passes.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from analysis.pipes import RATES, Cycles, Mix, Rates, blocks_per_sm, cycles_of, mix_of
from analysis.sass import Function, Instruction, parse
from analysis.sass_loops import Loop, innermost_loops
from bench.compiled import CompileRecord, read_compiled, read_listing
from bench.record import Environment, RecordError

COLUMNS = (
    "op", "provider", "dtype", "config", "arch", "triton", "registers", "spill_stores", "spill_loads", "shared_bytes",
    "warps", "ctas_per_sm", "ctas_limiter", "tensor_instruction", "loads", "load_bytes", "bytes_in_flight_per_sm",
    "loop_instructions", "loop_flops", "tensor_cycles", "mufu_cycles", "fp32_cycles", "alu_cycles", "issue_cycles",
    "binding_pipe", "wgmma_serialised", "cta_barriers_per_iteration", "instructions_per_kflop", "instructions_per_kb",
    "ceiling_overlapped", "ceiling_serial", "cubin_sha256",
)  # fmt: skip
"""Of kernels.csv."""
KB = 1024
ALMOST = 0.75
"""A trip of SASS holds n trips of Triton's loop when its loads or FLOPs are within a quarter below n times theirs."""


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel and its hot loop.

    Attributes:
        record: what was observed when it was compiled.
        function: its code.
        loop: the hot loop; None where the code has none.
    """

    record: CompileRecord
    function: Function
    loop: Loop | None

    @property
    def rates(self) -> Rates:
        """Of its arch."""
        return RATES[self.record.arch]

    @cached_property
    def trip(self) -> Mapping[str, Any]:
        """What Triton says a block does in one trip of the hot loop: `warps`, `flops`, `loads`.

        Warp specialisation puts loads and products into loops of their own: then all products count together.
        """
        loops = self.record.loops
        products = [loop for loop in loops if loop["flops"]]
        loading = [loop for loop in loops if loop["loads"]] or [{"loads": []}]
        fullest = max(loading, key=lambda loop: (loop.get("flops", 0), sum(load["bytes"] for load in loop["loads"])))
        if products and not fullest.get("flops"):
            each = ("warps", "flops")
            return {name: sum(loop[name] for loop in products) for name in each} | {"loads": fullest["loads"]}
        return {"warps": self.record.num_warps, "flops": 0} | dict(fullest)

    @property
    def warps(self) -> int:
        """That run the hot loop."""
        return int(self.trip["warps"])

    @cached_property
    def mix(self) -> Mix:
        """Of a trip of the hot loop; of the whole code where there is none."""
        return mix_of(of_a_trip(self.loop) if self.loop else self.function.instructions, self.warps)

    @cached_property
    def unrolled(self) -> int:
        """How many trips of Triton's loop one trip of SASS makes."""
        plain = sum(load["bytes"] for load in self.trip["loads"] if load["kind"] != "tma")
        lanes = 32 * self.warps
        seen = sum(sum(each) for kind, each in self.mix.loads.items() if kind != "tma") * lanes
        ratio = seen / plain if plain else self.mix.flops / self.trip["flops"] if self.trip["flops"] else 1
        return max(1, int(ratio + 1 - ALMOST))

    @property
    def flops(self) -> int:
        """Of a block's trip: by the tensor instructions, or by Triton's loop where those do not show it."""
        return self.mix.flops or int(self.trip["flops"]) * self.unrolled

    @cached_property
    def cycles(self) -> Cycles:
        """Of one block's trip on an SM."""
        hidden = any(shape.startswith("UTC") for shape in self.mix.tensor)
        width = {"tfloat32": "tf32", "bfloat16": "half", "float16": "half"}.get(self.record.case["dtype"], "byte")
        return cycles_of(self.mix, self.warps, self.rates, {width: self.flops} if hidden else None)

    @property
    def is_part(self) -> bool:
        """Whether the hot loop is one warp's that only issues tcgen05 products: other partitions do the rest."""
        specialised = self.record.engaged.get("warp_specialize", False)
        return specialised and any(shape.startswith("UTC") for shape in self.mix.tensor)

    @property
    def ceilings(self) -> tuple[float | None, float | None]:
        """Most of the tensor peak with all pipes at once, and with two in turn; None where the loop is a part."""
        return (None, None) if self.is_part else (self.cycles.overlapped, self.cycles.serial)

    @property
    def blocks(self) -> tuple[int, str]:
        """How many an SM holds, and what allows no more."""
        r = self.record
        return blocks_per_sm(r.registers, r.shared_bytes, r.num_warps, self.rates)

    @property
    def waves(self) -> float:
        """How often the grid fills the SMs of the arch's usual part; 1 or less is one wave, as of a persistent grid."""
        return math.prod(self.record.grid) / (self.rates.sms * max(1, self.blocks[0]))

    @property
    def counted_loads(self) -> list[Mapping[str, Any]]:
        """In decode what is streamed (weights, KV), since the rest comes from L2; else all."""
        loads = list(self.trip["loads"])
        streamed = [load for load in loads if load["role"] == "streamed"]
        return streamed if streamed and self.record.case["phase"] == "decode" else loads

    @property
    def trip_bytes(self) -> int:
        """That a block's trip brings."""
        return sum(int(load["bytes"]) for load in self.counted_loads) * self.unrolled

    @property
    def bytes_in_flight_per_sm(self) -> float:
        """Of the blocks that the grid puts on an SM: full buffers, less the one that wgmma reads; or a trip's loads."""
        busy = any("GMMA" in shape or shape.startswith("UTC") for shape in self.mix.tensor)
        of_a_block = sum(
            int(load["bytes"]) * (max(1, load["slots"] - busy) if load["slots"] else self.unrolled)
            for load in self.counted_loads
        )
        return of_a_block * min(self.blocks[0], math.prod(self.record.grid) / self.rates.sms)

    @property
    def load_kinds(self) -> list[str]:
        """What brings the hot loop's data: its own instructions or, for specialised warps, their producer's."""
        of_trip = {load["kind"] for load in self.trip["loads"]} if not self.mix.loads else set()
        return [kind for kind in ("tma", "cp.async", "ldg") if kind in self.mix.loads or kind in of_trip]

    @property
    def load_bytes(self) -> float | None:
        """Of one load instruction of the kind that brings the most: a lane's, or a whole box of the TMA's."""
        boxes = [int(load["bytes"]) for load in self.trip["loads"] if load["kind"] == "tma"]
        if boxes and "tma" in self.load_kinds:
            return sum(boxes) / len(boxes)
        lanes = {kind: of_kind for kind, of_kind in self.mix.loads.items() if kind != "tma"}
        if not lanes:
            return None
        most = max(lanes.values(), key=sum)
        return sum(most) / len(most)


def load_kernels(path: Path) -> tuple[Environment, list[CompileRecord], list[Kernel]]:
    """The environment, the records without a kernel, and the kernels of a directory of `bench compile`.

    Raises:
        RecordError: records or listings that cannot be used.
    """
    directory = path if path.is_dir() else path.parent
    environment, records = read_compiled(path)
    code: dict[str, tuple[Function, Loop | None]] = {}
    kernels = []
    for record in records:
        if record.error:
            continue
        if record.arch not in RATES:
            raise RecordError(f"{path}: sm_{record.arch} has no rates here; known: {', '.join(map(str, RATES))}")
        if record.listing not in code:
            code[record.listing] = hot_code(read_listing(directory, record), record)
        kernels.append(Kernel(record, *code[record.listing]))
    return environment, [record for record in records if record.error], kernels


def hot_code(listing: str, record: CompileRecord) -> tuple[Function, Loop | None]:
    """The kernel's function and its hot loop.

    Raises:
        RecordError: the listing has no such function.
    """
    try:
        function = next(f for f in parse(listing) if f.name == record.kernel)
    except (StopIteration, ValueError) as error:
        raise RecordError(f"{record.listing}: no function {record.kernel}: {error}") from error

    def heat(loop: Loop) -> tuple[int, bool, int, int]:
        mix = mix_of(of_a_trip(loop), record.num_warps)
        loaded = sum(sum(of_kind) or len(of_kind) for of_kind in mix.loads.values())
        return mix.flops, bool(mix.tensor), loaded if not mix.tensor else 0, -mix.instructions

    return function, max(innermost_loops(function), key=heat, default=None)


def of_a_trip(loop: Loop) -> tuple[Instruction, ...]:
    """What every trip passes, with the tcgen05 products that one elected thread branches off to issue."""
    return loop.every + tuple(i for i in loop.sometimes if i.base.startswith("UTC") and i.base.endswith("MMA"))


def config_text(record: CompileRecord) -> str:
    """What tells a row from the others of its op: sizes, launch parameters that are set, a later launch's kernel."""
    sizes = record.case["id"].split("/", 3)[3]
    set_ones = [name if value is True else f"{name}={value}" for name, value in record.config.items() if value]
    later = f"; {record.kernel}" if record.launch else ""
    return f"{sizes}: {' '.join(set_ones)}{later}"


def stored_as(record: CompileRecord) -> str:
    """The case's dtype with what is stored otherwise, as its id has it: `bfloat16.kv_int8.head`."""
    return str(record.case["id"]).split("/")[2]


def row_of(kernel: Kernel) -> dict[str, Any]:
    """A row of kernels.csv."""
    r, mix, cycles = kernel.record, kernel.mix, kernel.cycles
    blocks, limiter = kernel.blocks
    issued = None if kernel.is_part else mix.instructions * kernel.warps
    overlapped, serial = kernel.ceilings
    return {
        "op": r.case["op"],
        "provider": r.case["provider"],
        "dtype": stored_as(r),
        "config": config_text(r),
        "arch": r.arch,
        "triton": r.triton,
        "registers": r.registers,
        "spill_stores": r.spill_stores,
        "spill_loads": r.spill_loads,
        "shared_bytes": r.shared_bytes,
        "warps": r.num_warps,
        "ctas_per_sm": blocks,
        "ctas_limiter": limiter,
        "tensor_instruction": " ".join(f"{shape}*{count}" for shape, count in sorted(mix.tensor.items())),
        "loads": "+".join(kernel.load_kinds),
        "load_bytes": _rounded(kernel.load_bytes),
        "bytes_in_flight_per_sm": round(kernel.bytes_in_flight_per_sm),
        "loop_instructions": mix.instructions if kernel.loop else None,
        "loop_flops": kernel.flops,
        "tensor_cycles": _rounded(cycles.tensor),
        "mufu_cycles": _rounded(cycles.mufu),
        "fp32_cycles": _rounded(cycles.fp32),
        "alu_cycles": _rounded(cycles.alu),
        "issue_cycles": _rounded(cycles.issue),
        "binding_pipe": cycles.binding,
        "wgmma_serialised": "yes" if mix.wgmma_serialised else "no",
        "cta_barriers_per_iteration": mix.barriers,
        "instructions_per_kflop": _rounded(issued * 1e3 / kernel.flops if issued and kernel.flops else None),
        "instructions_per_kb": _rounded(issued * KB / kernel.trip_bytes if issued and kernel.trip_bytes else None),
        "ceiling_overlapped": _rounded(overlapped),
        "ceiling_serial": _rounded(serial),
        "cubin_sha256": r.cubin_sha256,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def csv_text(kernels: Iterable[Kernel]) -> str:
    """kernels.csv, sorted so that two of them can be compared line by line."""
    rows = sorted((row_of(kernel) for kernel in kernels), key=lambda row: (row["op"], row["dtype"], row["config"]))
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
