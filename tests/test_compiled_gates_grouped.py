"""What the compiler makes of grouped products on sm_90: descriptors that keep the memory busy, wgmma, no spills."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.compiled import Kernel, hot_code, row_of
from bench.case import Case
from bench.compile_jobs import outcome_of
from kernels.grouped_matmul import OP


def compiled(M: int) -> dict[str, Any]:
    """The row of the kernel for M tokens of 8 of 128 experts, in bfloat16, of its default configuration."""
    axes = {"M": M, "N": 2048, "K": 2048, "experts": 128, "top_k": 8, "skewed": 0}
    workload = OP.describe_axes(axes, "bfloat16", ("of a gate",))
    case = Case(OP, "triton", workload)
    [(record, text)] = outcome_of(case, 90, OP.configs(workload, 90)[0], default=True)
    assert not record.error, record.error
    row = row_of(Kernel(record, *hot_code(text, record)))
    assert (row["spill_loads"], row["spill_stores"]) == (0, 0) and record.engaged["tma"]
    return row


@pytest.mark.parametrize("M", [256, 4096])
def test_experts_with_many_rows_are_multiplied_by_wgmma(M: int) -> None:
    row = compiled(M)
    assert row["tensor_instruction"].startswith("HGMMA.64x128x16") and row["wgmma_serialised"] == "no"


def test_experts_with_few_rows_are_streamed() -> None:
    """Little's law: 3.35 TB/s over 132 SMs for 800 ns is 20 KB an SM."""
    assert compiled(16)["bytes_in_flight_per_sm"] >= 20_308
