"""What a loop's instructions cost an SM: cycles of each pipe for one trip of one block, and the ceilings they set.

Nothing here was measured: the figures say what the instruction mix allows when every pipe runs at its full rate,
without bank conflicts, gaps between wgmmas, latency, L2, power or clock. A ceiling is not a speed.

attention_prefill, D = 128, a tile of 128 queries x 128 keys on sm_90, by hand: Q K^T and P V are 2 x 128 x 128 x 128
FLOP each, 8,388,608 together, at 4,096 a clock 2,048 cycles of the tensor cores. One exp2 a score is 128 x 128 = 16,384
of them, at 16 a clock 1,024 cycles of the MUFU; the rescale takes one more a row, and each of the 4 lanes that share a
row computes it: 512, 32 cycles. So MUFU 1,056 cycles: overlapped perfectly the tensor cores are the limit, in turn with
the MUFU alone 2,048 / 3,104 = 66 % of their peak.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from analysis.sass import Instruction

LANES, WARPS_OF_A_GROUP = 32, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one SM does in a clock, and what it holds.

    Attributes:
        half, tf32, byte: dense FLOP (int8: OP) of the tensor cores by operand width.
        mufu, fp32, imad, alu: lanes; integer multiply-adds run on a part of the fp32 pipe.
        issue: warp instructions.
        warps, blocks: that fit an SM.
        shared_bytes: of an SM, with the 1 KB that every block takes besides its own.
        sms: of the arch's usual part.
    """

    sms: int
    half: int
    tf32: int
    byte: int
    mufu: int = 16
    fp32: int = 128
    imad: int = 64
    alu: int = 64
    issue: int = 4
    warps: int = 64
    blocks: int = 32
    shared_bytes: int = 233_472


RATES: Mapping[int, Rates] = {
    80: Rates(sms=108, half=2048, tf32=1024, byte=4096, fp32=64, shared_bytes=167_936),
    89: Rates(sms=142, half=1024, tf32=512, byte=2048, warps=48, blocks=24, shared_bytes=102_400),
    90: Rates(sms=132, half=4096, tf32=2048, byte=8192),
    100: Rates(sms=148, half=8192, tf32=4096, byte=16_384),
}
"""A100, L40S, H100, B200.

Tensor rates: `analysis/data/gpu_peaks.json` with its sources. Lanes a clock: CUDA C++ Programming Guide 12.8, table
"Throughput of Native Arithmetic Instructions" (columns 8.0, 8.9, 9.0, 10.0: 32-bit float add and multiply, special
functions, 32-bit integer multiply-add, compare and minimum); issue: 4 schedulers, one instruction each. Warps, blocks
and shared memory: table "Technical Specifications per Compute Capability".
"""
REGISTERS_OF_A_SCHEDULER, REGISTERS_STEP, RESERVED_SHARED_BYTES = 16_384, 256, 1024
"""CUDA Occupancy Calculator: a warp takes registers in steps of 256 from one of four schedulers' 16 K."""

MUFU = frozenset(("MUFU", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV"))
"""The transcendental and conversion unit."""
FP32 = frozenset(("FFMA", "FADD", "FMUL", "FSWZADD", "HFMA2", "HADD2", "HMUL2"))
PACKED_FP32 = frozenset(("FFMA2", "FADD2", "FMUL2"))
"""sm_100: two values a lane, so twice the time."""
ALU = frozenset((
    "FMNMX", "FMNMX3", "F2FP", "ISETP", "MOV", "IADD3", "IADD", "PLOP3", "LOP3", "LEA", "VIADD", "VIADDMNMX",
    "SEL", "FSEL", "FSETP", "SHF", "PRMT", "SGXT", "P2R", "R2P", "CS2R", "IMNMX", "VIMNMX", "VIMNMX3", "I2FP",
    "IABS", "BMSK", "HMNMX2", "HSETP2", "HSET2", "FSET", "ISET", "FCHK",
))  # fmt: skip
TENSOR = re.compile(r"HGMMA|QGMMA|IGMMA|HMMA|IMMA|QMMA|DMMA|OMMA|UTC\w*MMA")
WARP_SHAPES = {
    "16816": (16, 8, 16), "1688": (16, 8, 8), "1684": (16, 8, 4), "16832": (16, 8, 32), "16864": (16, 8, 64),
    "8816": (8, 8, 16), "884": (8, 8, 4),
}  # fmt: skip
"""M, N, K of mma.sync as SASS writes them without separators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What one warp issues in one trip.

    Attributes:
        instructions: all of them, uniform and predicated ones included.
        tensor: `HGMMA.64x256x16` -> how many; `.rA` where A comes from registers.
        tensor_flops: of the whole block, by operand width ("half", "tf32", "byte"); 0 for tcgen05, whose shape SASS
            does not show.
        mufu, fp32, imad, alu: instructions of each pipe.
        loads: "tma", "cp.async", "ldg" -> bytes of each instruction, a lane's (0 for tma).
        barriers: CTA-wide.
        wgmma_order: after how many wgmmas each wait stands and how many groups it leaves, `4w1`.
    """

    instructions: int
    tensor: Mapping[str, int]
    tensor_flops: Mapping[str, int]
    mufu: int
    fp32: int
    imad: int
    alu: int
    loads: Mapping[str, tuple[int, ...]]
    barriers: int
    wgmma_order: tuple[str, ...]

    @property
    def wgmma_serialised(self) -> bool:
        """Whether every wgmma is waited for in full before the next: ptxas gave up on overlapping them."""
        return len(self.wgmma_order) > 1 and set(self.wgmma_order) == {"1w0"}

    @property
    def flops(self) -> int:
        """Of the tensor cores, for the whole block."""
        return sum(self.tensor_flops.values())


def mix_of(code: Iterable[Instruction], warps: int) -> Mix:
    """Counts a trip's instructions.

    Args:
        code: what every trip passes.
        warps: of the block that run it.
    """
    code = tuple(code)
    bases = Counter(instruction.base for instruction in code)
    tensor = Counter(_shape(instruction) for instruction in code if TENSOR.fullmatch(instruction.base))
    flops: Counter[str] = Counter()
    for instruction in code:
        flops[_width(instruction)] += _flops(instruction, warps)
    loads: dict[str, list[int]] = {}
    for instruction in code:
        if kind := LOAD_KINDS.get(instruction.base):
            loads.setdefault(kind, []).append(0 if kind == "tma" else _lane_bytes(instruction))
    return Mix(
        instructions=len(code),
        tensor=dict(tensor),
        tensor_flops={width: count for width, count in flops.items() if count},
        mufu=sum(bases[base] for base in MUFU),
        fp32=sum(bases[base] for base in FP32) + 2 * sum(bases[base] for base in PACKED_FP32),
        imad=bases["IMAD"] + bases["IDP"],
        alu=sum(bases[base] for base in ALU),
        loads={kind: tuple(of_kind) for kind, of_kind in loads.items()},
        barriers=sum(_is_cta_barrier(instruction) for instruction in code),
        wgmma_order=_wgmma_order(code),
    )


LOAD_KINDS = {"UTMALDG": "tma", "UBLKCP": "tma", "LDGSTS": "cp.async", "LDG": "ldg", "LD": "ldg"}


def _shape(instruction: Instruction) -> str:
    shape = next((s for s in instruction.suffixes if re.fullmatch(r"\d+x\d+x\d+|\d{3,}", s)), "")
    from_registers = "GMMA" in instruction.base and re.match(r"R\d+, R\d+, gdesc", instruction.operands)
    return ".".join(filter(None, (instruction.base, shape, "rA" if from_registers else "")))


def _flops(instruction: Instruction, warps: int) -> int:
    """Of the whole block: wgmma is one of a group of four warps, mma.sync one of each."""
    if not TENSOR.fullmatch(instruction.base):
        return 0
    for suffix in instruction.suffixes:
        if re.fullmatch(r"\d+x\d+x\d+", suffix):
            m, n, k = map(int, suffix.split("x"))
            return 2 * m * n * k * max(1, warps // WARPS_OF_A_GROUP)
        if suffix in WARP_SHAPES:
            m, n, k = WARP_SHAPES[suffix]
            return 2 * m * n * k * warps
    return 0


def _width(instruction: Instruction) -> str:
    if instruction.base.startswith(("Q", "I", "UTCQ", "UTCI")):
        return "byte"
    return "tf32" if "TF32" in instruction.suffixes else "half"


def _lane_bytes(instruction: Instruction) -> int:
    for suffix in instruction.suffixes:
        if suffix in ("256", "128", "64"):
            return int(suffix) // 8
        if found := re.fullmatch(r"[US](8|16)", suffix):
            return int(found[1]) // 8
    return 4


def _is_cta_barrier(instruction: Instruction) -> bool:
    """BAR 0 without a number of threads is every warp's; others are a partition's own."""
    waits = instruction.base == "BAR" and instruction.suffixes[:1] in (("SYNC",), ("RED",))
    return waits and instruction.operands.split(",")[0].strip() in ("", "0x0") and "," not in instruction.operands


def _wgmma_order(code: Iterable[Instruction]) -> tuple[str, ...]:
    groups, since = [], 0
    for instruction in code:
        if instruction.base.endswith("GMMA"):
            since += 1
        elif instruction.opcode.startswith("WARPGROUP.DEPBAR") and since:
            left = instruction.operands.rpartition(",")[2].strip() or "0x0"
            groups.append(f"{since}w{int(left, 16)}")
            since = 0
    return (*groups, str(since)) if since else tuple(groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycles:
    """Cycles of each pipe of an SM for one trip of one block."""

    tensor: float
    mufu: float
    fp32: float
    alu: float
    issue: float

    @property
    def others(self) -> dict[str, float]:
        """All but the tensor cores'."""
        return {"mufu": self.mufu, "fp32": self.fp32, "alu": self.alu, "issue": self.issue}

    @property
    def binding(self) -> str:
        """The pipe that takes longest."""
        pipes = {"tensor": self.tensor} | self.others
        return max(pipes, key=lambda pipe: pipes[pipe])

    @property
    def overlapped(self) -> float | None:
        """Most of the tensor peak when all pipes work at once; None without tensor work."""
        return self.tensor / max(self.tensor, *self.others.values()) if self.tensor else None

    @property
    def serial(self) -> float | None:
        """Most of the tensor peak when the tensor cores and the busiest other pipe take turns."""
        return self.tensor / (self.tensor + max(self.others.values())) if self.tensor else None


def cycles_of(mix: Mix, warps: int, rates: Rates, tensor_flops: Mapping[str, int] | None = None) -> Cycles:
    """What a trip costs one SM.

    Args:
        mix: of one warp.
        warps: of the block that run it.
        rates: of the arch.
        tensor_flops: of the block by operand width, where SASS does not show them.
    """
    speeds = {"half": rates.half, "tf32": rates.tf32, "byte": rates.byte}
    lanes = LANES * warps
    return Cycles(
        tensor=sum(flops / speeds[width] for width, flops in (tensor_flops or mix.tensor_flops).items()),
        mufu=mix.mufu * lanes / rates.mufu,
        fp32=max((mix.fp32 + mix.imad) * lanes / rates.fp32, mix.imad * lanes / rates.imad),
        alu=mix.alu * lanes / rates.alu,
        issue=mix.instructions * warps / rates.issue,
    )


def blocks_per_sm(registers: int, shared_bytes: int, warps: int, rates: Rates) -> tuple[int, str]:
    """How many blocks an SM holds, and what allows no more: blocks, warps, shared or registers, in this order."""
    of_a_warp = -(-registers * LANES // REGISTERS_STEP) * REGISTERS_STEP
    limits = {
        "blocks": rates.blocks,
        "warps": rates.warps // warps,
        "shared": rates.shared_bytes // (shared_bytes + RESERVED_SHARED_BYTES),
        "registers": 4 * (REGISTERS_OF_A_SCHEDULER // max(of_a_warp, 1)) // warps,
    }
    limiter = min(limits, key=lambda limit: limits[limit])
    return limits[limiter], limiter
