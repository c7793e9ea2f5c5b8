"""What the compiler makes of matmuls with stored weights on sm_90: 16-byte loads, few instructions per byte, wgmma.

A KB of weights is 70 cycles of an SM's share of 3.35 TB/s, in which its four schedulers issue 280 instructions.
"""

from __future__ import annotations

from typing import Any

import pytest

from analysis.compiled import Kernel, hot_code, row_of
from bench.case import Case
from bench.compile_jobs import outcome_of
from kernels.matmul_weight_only import OP
from kernels.quantised_matmuls import with_weights


def compiled(M: int, stored: str, group: int = 0) -> dict[str, Any]:
    """The row of the first kernel of a case in bfloat16, of its default configuration."""
    workload = with_weights(OP.describe_axes({"M": M, "N": 8192, "K": 8192}, "bfloat16", ("of a gate",)), stored, group)
    record, text = outcome_of(Case(OP, "triton", workload), 90, OP.configs(workload, 90)[0], default=True)[0]
    assert not record.error, record.error
    row = row_of(Kernel(record, *hot_code(text, record)))
    assert (row["spill_loads"], row["spill_stores"], row["wgmma_serialised"]) == (0, 0, "no")
    return row


@pytest.mark.parametrize(("stored", "group", "most"), [("int4", 128, 245), ("int8", 0, 140), ("float8_e4m3fn", 0, 143)])
@pytest.mark.parametrize("M", [1, 16])
def test_decode_issues_less_than_the_memory_allows(M: int, stored: str, group: int, most: int) -> None:
    row = compiled(M, stored, group)
    assert row["load_bytes"] == 16 and row["loads"].startswith("cp.async")
    assert row["instructions_per_kb"] <= most
    assert row["bytes_in_flight_per_sm"] >= 44 * 1024


@pytest.mark.parametrize(("stored", "group", "most"), [("int4", 128, 0.8), ("uint4", 128, 1.0), ("int8", 0, 0.56)])
def test_many_rows_are_multiplied_by_wgmma(stored: str, group: int, most: float) -> None:
    row = compiled(4096, stored, group)
    assert row["tensor_instruction"].startswith("HGMMA.64x128x16") and row["load_bytes"] == 16
    assert row["instructions_per_kflop"] <= most
