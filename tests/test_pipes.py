"""analysis.pipes: instructions into cycles of each pipe, by hand and against figures published for others' kernels."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from analysis.peaks import table
from analysis.pipes import RATES, Mix, blocks_per_sm, cycles_of, mix_of
from analysis.sass import Instruction, parse
from analysis.sass_loops import innermost_loops

DATA = Path(__file__).parent / "data"
PEERS = list(csv.DictReader((DATA / "peers_sass.csv").open(encoding="utf-8")))
"""Hot loops of kernels of FlagGems, GemLite, SGLang, vLLM and Triton's tutorials compiled for sm_90a: the instructions
of a warp by opcode, and the cycles and bounds that were worked out of them, by other code than this."""
H100 = RATES[90]


def code(*lines: str) -> tuple[Instruction, ...]:
    return parse(".text.f:\n" + "\n".join(f"{line} ;" for line in lines))[0].instructions


def expanded(peer: dict[str, str]) -> tuple[Instruction, ...]:
    """A loop of the opcodes that a peer's has; tensor instructions and waits in their order."""
    kinds = {kind: int(count) for kind, count in (part.split(":") for part in peer["hot_loop_kinds"].split())}
    shapes = [part.rsplit("*", 1) for part in peer["mma"].split() if part != "none"]
    tensor = [f"{shape.removesuffix('.rA')}.F32.BF16" for shape, count in shapes for _ in range(int(count))]
    lines = [kind for kind, count in kinds.items() for _ in range(count) if not kind.endswith("MMA")]
    waits = [group.split("w") for group in peer["wgmma_order"].split()]
    lines = [line for line in lines if line != "WARPGROUP"]
    for group in waits:
        lines += [tensor.pop(0) for _ in range(int(group[0]))]
        lines += [f"WARPGROUP.DEPBAR.LE gsb0, {hex(int(group[1]))}"] if len(group) > 1 else []
    missing = kinds.get("WARPGROUP", 0) - sum(len(group) > 1 for group in waits)
    return code(*lines, *tensor, *["WARPGROUP.ARRIVE"] * missing)


@pytest.mark.parametrize("peer", PEERS, ids=[f"{peer['id']}-{peer['triton']}" for peer in PEERS])
def test_figures_are_those_published_for_peers(peer: dict[str, str]) -> None:
    warps = int(peer["threads"]) // 32
    mix = mix_of(expanded(peer), warps)
    cycles = cycles_of(mix, warps, H100)
    assert mix.instructions == int(peer["loop_ins_per_warp"])
    assert mix.flops == int(peer["flop_per_iter_cta"])
    found = (cycles.tensor, cycles.mufu, cycles.fp32, cycles.alu, cycles.issue)
    assert found == tuple(float(peer[f"cyc_{pipe}"]) for pipe in ("tensor", "mufu", "fp32", "alu", "issue"))
    assert mix.wgmma_serialised == (peer["wgmma_serialised"] == "yes")
    assert blocks_per_sm(int(peer["regs"]), int(peer["smem"]), warps, H100)[0] == int(peer["ctas_per_sm"])
    if mix.flops:
        assert cycles.overlapped == pytest.approx(float(peer["overlap_bound"]), abs=6e-4)
        assert cycles.serial == pytest.approx(float(peer["nooverlap_bound"]), abs=6e-4)


def test_attention_prefill_by_hand() -> None:
    """D = 128, 128 x 128 tile, 8 warps, sm_90, the loop without a mask of our own kernel as compiled.

    Tensor: 4 x 128 x 128 x 128 FLOP / 4,096 = 2,048. MUFU: 128 x 128 exp2 / 16 = 1,024, and the rescale of 128 rows,
    by each of the 4 lanes that share one, 512 / 16 = 32. FP32: 68 FADD, 66 FMUL, 66 FFMA and 11 IMAD of 256 threads,
    211 x 256 / 128 = 422. ALU: 68 FMNMX and 32 F2FP among 112, x 256 / 64. Issue: 487 x 8 / 4 = 974.
    """
    [function] = parse(gzip.decompress((DATA / "sass" / "attention_prefill_d128.sass.gz").read_bytes()).decode())
    mix = mix_of(innermost_loops(function)[0].every, 8)
    cycles = cycles_of(mix, 8, H100)
    assert mix.flops == 2 * 2 * 128 * 128 * 128
    assert (cycles.tensor, cycles.mufu, cycles.fp32, cycles.issue) == (2048, 1024 + 32, 422, 974)
    assert cycles.alu == mix.alu * 256 / 64 and mix.alu >= 68 + 32
    assert cycles.binding == "tensor" and cycles.overlapped == 1
    assert cycles.serial == pytest.approx(2048 / (2048 + 1056))
    assert mix.tensor == {"HGMMA.64x128x16": 8, "HGMMA.64x128x16.rA": 8} and not mix.wgmma_serialised


@pytest.mark.parametrize("arch", sorted(RATES))
def test_tensor_rates_are_those_of_the_peaks(arch: int) -> None:
    device = {80: "A100 80GB SXM4", 89: "L40S 48GB", 90: "H100 SXM5 80GB", 100: "B200 (HGX, 180GB)"}[arch]
    peaks, rates = table()[device], RATES[arch]
    assert rates.sms == peaks.sm_count
    assert rates.half == peaks.rates["bfloat16", "float32"] == peaks.rates["float16", "float32"]
    assert rates.tf32 == peaks.rates["tfloat32", "float32"] and rates.byte == peaks.rates["int8", "int32"]
    assert 2 * rates.fp32 == peaks.rates["float32", "float32"]


@pytest.mark.parametrize(
    ("line", "shape", "width", "flops"),
    [
        ("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR16], R24, gsb0", "HGMMA.64x256x16", "half", 2 * 2 * 64 * 256 * 16),
        ("HGMMA.64x128x16.F32 R88, R152, gdesc[UR12], R88", "HGMMA.64x128x16.rA", "half", 2 * 2 * 64 * 128 * 16),
        ("HGMMA.64x128x8.F32.TF32 R24, gdesc[UR16], R24", "HGMMA.64x128x8", "tf32", 2 * 2 * 64 * 128 * 8),
        ("QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR16], R24", "QGMMA.64x128x32", "byte", 2 * 2 * 64 * 128 * 32),
        ("IGMMA.64x128x32.S8.S8 R24, gdesc[UR16], R24", "IGMMA.64x128x32", "byte", 2 * 2 * 64 * 128 * 32),
        ("HMMA.16816.F32.BF16 R4, R8, R12, R4", "HMMA.16816", "half", 8 * 2 * 16 * 8 * 16),
        ("HMMA.1688.F32.TF32 R4, R8, R12, R4", "HMMA.1688", "tf32", 8 * 2 * 16 * 8 * 8),
        ("IMMA.16832.S8.S8 R4, R8, R12, R4", "IMMA.16832", "byte", 8 * 2 * 16 * 8 * 32),
    ],
)
def test_a_tensor_instruction_is_known_by_its_shape(line: str, shape: str, width: str, flops: int) -> None:
    """Of 8 warps: wgmma is one of each of 2 groups, mma.sync one of each warp."""
    mix = mix_of(code(line), 8)
    assert mix.tensor == {shape: 1} and mix.tensor_flops == {width: flops}


def test_tcgen05_shows_no_shape_so_its_work_is_given() -> None:
    mix = mix_of(code("UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR11], UP0"), 4)
    assert mix.tensor == {"UTCHMMA": 1} and mix.flops == 0
    assert cycles_of(mix, 4, RATES[100], {"half": 16_384_000}).tensor == 2000


@pytest.mark.parametrize(
    ("order", "serialised"),
    [
        ("G G G G w1", False),
        ("G w0 G w0 G w0", True),
        ("G w0 G w1", False),
        ("G w0", False),
        ("G G w0 G G w0", False),
        ("G w0 G", False),
    ],
)
def test_wgmma_is_serialised_when_every_one_is_waited_for(order: str, serialised: bool) -> None:
    lines = {"G": "HGMMA.64x64x16.F32 R24, gdesc[UR16], R24", "w0": "WARPGROUP.DEPBAR.LE gsb0, 0x0"}
    lines["w1"] = "WARPGROUP.DEPBAR.LE gsb0, 0x1"
    assert mix_of(code(*(lines[part] for part in order.split())), 4).wgmma_serialised is serialised


def test_loads_are_told_by_kind_and_by_a_lanes_bytes() -> None:
    mix = mix_of(
        code(
            "LDG.E.128.CONSTANT",
            "LDG.E.U16",
            "LDG.E",
            "LDG.E.64",
            "LDG.E.S8",
            "LDGSTS.E.BYPASS.128",
            "UTMALDG.2D",
            "LDS.128",
        ),
        4,
    )
    assert mix.loads == {"ldg": (16, 2, 4, 8, 1), "cp.async": (16,), "tma": (0,)}


def test_only_barriers_of_the_whole_block_count() -> None:
    """Specialised warps meet at named barriers, and at some with a number of threads; ARV does not wait."""
    mix = mix_of(
        code(
            "BAR.SYNC.DEFER_BLOCKING 0x0",
            "BAR.SYNC.DEFER_BLOCKING 0x0, 0x80",
            "BAR.SYNC.DEFER_BLOCKING 0x2",
            "BAR.ARV 0x0",
            "BAR.RED.POPC 0x0",
        ),
        4,
    )
    assert mix.barriers == 2


def test_packed_float32_counts_twice_and_conversions_are_the_mufus() -> None:
    mix = mix_of(code("FFMA2", "FADD", "F2F.F16.F32", "MUFU.EX2", "F2FP.BF16.F32.PACK_AB"), 4)
    assert (mix.fp32, mix.mufu, mix.alu) == (3, 2, 1)


def test_integer_multiply_adds_share_the_fp32_pipe_at_half_its_rate() -> None:
    """One warp: 4 IMAD alone 4 x 32 / 64 = 2; with 12 FFMA the pipe is full: 16 x 32 / 128 = 4."""
    assert cycles_of(mix_of(code(*["IMAD"] * 4), 1), 1, H100).fp32 == 2
    assert cycles_of(mix_of(code(*["IMAD"] * 4, *["FFMA"] * 12), 1), 1, H100).fp32 == 4


def test_without_tensor_work_there_is_no_ceiling() -> None:
    cycles = cycles_of(mix_of(code("FFMA"), 4), 4, H100)
    assert cycles.overlapped is cycles.serial is None and cycles.binding in ("fp32", "issue")


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "warps", "expected"),
    [
        (168, 0, 4, (3, "registers")),  # 168 x 32 = 5,376: 3 warps for each scheduler's 16 K, 12 in all
        (128, 0, 8, (2, "registers")),
        (32, 81_920, 4, (2, "shared")),
        (32, 0, 4, (16, "warps")),
        (40, 0, 2, (24, "registers")),  # 12 warps for each scheduler; the SM's 64 K registers at once would give 51
        (24, 0, 8, (8, "warps")),
        (16, 0, 1, (32, "blocks")),
        (255, 0, 8, (1, "registers")),
        (32, 232_448, 4, (1, "shared")),
        (32, 400_000, 4, (0, "shared")),
    ],
)
def test_blocks_of_an_sm(registers: int, shared_bytes: int, warps: int, expected: tuple[int, str]) -> None:
    assert blocks_per_sm(registers, shared_bytes, warps, H100) == expected


def test_a_mix_of_nothing_is_all_zero() -> None:
    empty = Mix(
        instructions=0, tensor={}, tensor_flops={}, mufu=0, fp32=0, imad=0, alu=0, loads={}, barriers=0, wgmma_order=()
    )
    assert mix_of((), 4) == empty
