"""What the compiler makes of the fp8 and int8 matmuls on sm_90: 8-bit wgmma fed from shared memory as it was stored.

8-bit operands of wgmma must lie K-major there; where they do not, they are transposed through registers by PRMT.
"""

from __future__ import annotations

from typing import Any

import pytest

from analysis.compiled import Kernel, hot_code, row_of
from bench.case import Case
from bench.compile_jobs import outcome_of
from bench.cubin import count_instructions
from kernels.matmul_configs import FP8
from kernels.matmul_w8a8 import E4M3, INT8, with_scales
from kernels.registry import op_named

SCALES = ("tensor", "token", "block128")


def compiled(op: str, scale: str, config: Any = None, dtype: str = E4M3, **axes: int) -> tuple[dict[str, Any], str]:
    """The row and the listing of the first kernel of a case, of its default configuration when None."""
    found = op_named(op)
    workload = with_scales(found.describe_axes(axes, dtype, ("of a gate",)), scale, dtype)
    config = config or found.configs(workload, 90)[0]
    record, text = outcome_of(Case(found, "triton", workload), 90, config, default=True)[0]
    assert not record.error, record.error
    return row_of(Kernel(record, *hot_code(text, record))), text


def is_sound(row: dict[str, Any], text: str, instruction: str = "QGMMA") -> bool:
    """Nothing in local memory, 8-bit wgmma that is not waited for one by one, and no bytes put together by hand."""
    spills = (row["spill_loads"], row["spill_stores"], row["wgmma_serialised"])
    moved = count_instructions(text, "PRMT") + count_instructions(text, "MOVM")
    return spills == (0, 0, "no") and row["tensor_instruction"].startswith(instruction) and moved <= 1


@pytest.mark.parametrize("scale", SCALES)
def test_prefill_multiplies_bytes_as_they_lie(scale: str) -> None:
    """A step of 128 adds 64 values a thread in float32: at most 0.33 instructions per kFLOP, where fast takes 0.09."""
    row, text = compiled("matmul", scale, M=8192, N=8192, K=8192)
    assert is_sound(row, text) and row["loads"].startswith("tma")
    assert row["instructions_per_kflop"] <= 0.33 and row["ceiling_serial"] >= 0.59


def test_fast_accumulation_adds_nothing_in_registers() -> None:
    """As the name says: no FADD in the loop, and less than a third of the instructions."""
    fast = next(config for config in FP8 if config.fast_accumulation)
    row, text = compiled("matmul", "token", fast, M=8192, N=8192, K=8192)
    assert is_sound(row, text) and count_instructions(text, "FADD") == 0
    assert row["instructions_per_kflop"] <= 0.09 and row["ceiling_serial"] >= 0.85
    accurate, text = compiled("matmul", "token", FP8[0], M=8192, N=8192, K=8192)
    assert count_instructions(text, "FADD") >= 64
    assert accurate["instructions_per_kflop"] > 3 * row["instructions_per_kflop"]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("M", [1, 16, 64])
def test_decode_takes_few_instructions_per_kb_with_64_kb_in_flight(M: int, scale: str) -> None:
    """A KB of weights is 70 cycles of an SM's share of 3.35 TB/s, in which its four schedulers issue 280."""
    row, text = compiled("matmul_decode", scale, M=M, N=8192, K=8192)
    assert is_sound(row, text) and row["load_bytes"] == 16
    assert row["instructions_per_kb"] <= (54 if M == 64 else 42)
    assert row["bytes_in_flight_per_sm"] >= 64 * 1024


def test_int8_sums_stay_in_the_tensor_core() -> None:
    """As few instructions as fast fp8 takes, and nothing lost: sums are int32."""
    row, text = compiled("matmul", "token", None, INT8, M=8192, N=8192, K=8192)
    assert is_sound(row, text, "IGMMA") and row["loads"].startswith("tma")
    assert row["instructions_per_kflop"] <= 0.1 and row["ceiling_serial"] >= 0.83


@pytest.mark.parametrize("M", [1, 16, 64])
def test_int8_decode_takes_few_instructions_per_kb_with_64_kb_in_flight(M: int) -> None:
    row, text = compiled("matmul_decode", "token", None, INT8, M=M, N=8192, K=8192)
    assert is_sound(row, text, "IGMMA") and row["load_bytes"] == 16
    assert row["instructions_per_kb"] <= (54 if M == 64 else 42)
    assert row["bytes_in_flight_per_sm"] >= 64 * 1024
