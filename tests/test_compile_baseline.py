"""`analysis compile --baseline`: each planted regression is named, and what got better or stayed is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import triton
from compiled_kernels import DECODE, PREFILL, kernel, load, looping, record
from planted_kernels import DESCRIBED, FP8, HINTED, STREAMED, Planted

from analysis.compile_baseline import compare, faults
from analysis.compiled import Kernel, hot_code
from bench.case import Case
from bench.compile_jobs import outcome_of

GEMM = "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR16], R24"
MMA = "HMMA.16816.F32.BF16 R4, R8, R12, R4"
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"


def compiled(case: Case, config: Planted) -> Kernel:
    [(found, text)] = outcome_of(case, 90, config, default=True)
    assert not found.error
    return Kernel(found, *hot_code(text, found))


@pytest.mark.parametrize(
    ("case", "sound", "spoilt", "named"),
    [
        (DESCRIBED, Planted(block_n=256, num_warps=8), Planted(block_n=256, num_warps=4), "spills appeared: 0 -> "),
        (
            DESCRIBED,
            Planted(warp_specialize=True),
            Planted(warp_specialize=True, num_warps=8),
            "warp_specialize no longer engages",
        ),
        (FP8, Planted(block_k=128), Planted(block_k=128, imprecise=0), "tensor instruction changed: QGMMA -> HMMA"),
        (
            FP8,
            Planted(block_k=128, num_warps=8),
            Planted(block_k=128, num_warps=8, imprecise=32),
            "wgmma became serialised: 1w0 1w0 1w0 1w0",
        ),
        (STREAMED, Planted(), Planted(masked=True), "bytes of a load fell: 16 -> 2"),
        pytest.param(
            HINTED,
            Planted(num_stages=1),
            Planted(num_stages=3),
            "hint evict_first no longer engages",
            marks=pytest.mark.skipif(triton.__version__ >= "3.9", reason="Triton keeps hints on pipelined loads"),
        ),
    ],
    ids=["4 warps", "specialised at 8 warps", "fp8 exact", "fp8 half exact", "mask", "dropped hint"],
)
def test_a_planted_regression_is_named(case: Case, sound: Planted, spoilt: Planted, named: str) -> None:
    before, after = compiled(case, sound), compiled(case, spoilt)
    found = compare([before], [after])
    assert found.compared == 1 and any(named in line for line in found.regressions), found
    assert all(case.op.name in line for line in found.regressions)
    assert compare([before], [before]).regressions == ()


def made(*lines: str, warps: int = 4, loads: Sequence[dict[str, Any]] = (), flops: int = 0, **facts: Any) -> Kernel:
    loops = ({"warps": warps, "flops": flops, "loads": list(loads)},)
    return kernel(record("o", "prefill", {"M": 1}, kernel="_k", num_warps=warps, loops=loops, **facts), looping(*lines))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ({"spill_stores": 2}, {"spill_stores": 5}, ["spills grew: 2 -> 5"]),
        ({"spill_loads": 0}, {"spill_loads": 1}, ["spills appeared: 0 -> 1"]),
        ({"spill_stores": 5}, {"spill_stores": 2}, []),
        ({"engaged": {"pdl": True}}, {"engaged": {"pdl": False}}, ["pdl no longer engages"]),
        ({"engaged": {"pdl": True}}, {"engaged": {}}, ["pdl is no longer asked for"]),
        ({"engaged": {"pdl": False}}, {"engaged": {"pdl": True}}, []),
        ({"engaged": {"pdl": False}}, {"engaged": {"pdl": False}}, []),
        (
            {"registers": 128},
            {"registers": 136},
            ["an occupancy step was crossed: 4 -> 3 blocks an SM (registers 128 -> 136, shared 0 -> 0 bytes)"],
        ),
        ({"registers": 130}, {"registers": 136}, []),
        ({"registers": 136}, {"registers": 128}, []),
    ],
)
def test_facts_of_a_record_that_got_worse(old: dict[str, Any], new: dict[str, Any], named: list[str]) -> None:
    assert list(faults(made(MMA, **old), made(MMA, **new))) == named


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ([GEMM], [MMA] * 16, "tensor instruction changed: HGMMA -> HMMA"),
        ([GEMM, GEMM, WAIT], [GEMM, WAIT, GEMM, WAIT], "wgmma became serialised: 1w0 1w0"),
        ([MMA, "UTMALDG.2D"], [MMA, "LDGSTS.E.BYPASS.128"], "tma turned into cp.async"),
        ([MMA, "LDGSTS.E.BYPASS.128"], [MMA, "LDG.E.128"], "cp.async turned into ldg"),
        ([MMA, "LDG.E.128"], [MMA, "LDG.E.64"], "bytes of a load fell: 16 -> 8"),
    ],
)
def test_a_loop_that_got_worse(old: list[str], new: list[str], named: str) -> None:
    assert any(named in line for line in faults(made(*old), made(*new)))
    assert not any(named in line for line in faults(made(*new), made(*old)))


@pytest.mark.parametrize(("more", "caught"), [(4, False), (6, True)])
def test_a_loop_may_grow_by_five_percent(more: int, caught: bool) -> None:
    """100 instructions with the branch and HMMA: 104 is 4 % more, 106 is 6 %."""
    old, new = made(MMA, *["FADD"] * 98), made(MMA, *["FADD"] * (98 + more))
    assert list(faults(old, new)) == ([f"the loop grew by 6% for each FLOP: 100 -> {100 + more} instructions"] * caught)


def test_a_deeper_tile_of_more_instructions_is_no_growth() -> None:
    assert list(faults(made(MMA, *["FADD"] * 98), made(MMA, MMA, *["FADD"] * 190))) == []


def test_a_loop_that_only_streams_grows_by_its_bytes() -> None:
    loads = [load("w", "ldg", 2048, 0, "streamed")]
    old, new = made("LDG.E.128", "FADD", loads=loads), made("LDG.E.128", "FADD", "FADD", loads=loads)
    assert list(faults(old, new)) == ["the loop grew by 33% for each byte: 3 -> 4 instructions"]


def test_the_default_is_compared_whatever_its_parameters_are() -> None:
    old = kernel(DECODE, config={"block_n": 64})
    new = kernel(DECODE, config={"block_n": 128}, spill_stores=9, spill_loads=9)
    assert len(compare([old], [new]).regressions) == 1
    aside = [kernel(DECODE, config={"block_n": n}, default=False) for n in (64, 128)]
    found = compare([aside[0]], [aside[1]])
    assert (found.compared, len(found.missing), len(found.fresh)) == (0, 1, 1)


def test_what_no_longer_compiles_is_a_regression_and_what_is_gone_is_told() -> None:
    broken = record("matmul_decode", "decode", dict(DECODE.case["axes"]), error="ptxas died")
    found = compare([kernel(DECODE), kernel(PREFILL)], [], [broken])
    [line] = found.regressions
    assert line.startswith("matmul_decode bfloat16 sm_90") and line.endswith("no longer compiles: ptxas died")
    assert len(found.missing) == 1 and "attention_prefill" in found.missing[0]
