"""What the compiler makes of the fused gate-up-SiLU on sm_90: wgmma or few instructions per byte, and no spill."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.compiled import Kernel, hot_code, row_of
from bench.case import Case
from bench.compile_jobs import outcome_of
from kernels.gate_up_silu import OP


def compiled(M: int) -> dict[str, Any]:
    """The row of Llama-3.1-8B's layer in bfloat16, of its default configuration."""
    workload = OP.describe_axes({"M": M, "N": 14336, "K": 4096}, "bfloat16", ("of a gate",))
    [(record, text)] = outcome_of(Case(OP, "triton", workload), 90, OP.configs(workload, 90)[0], default=True)
    assert not record.error, record.error
    row = row_of(Kernel(record, *hot_code(text, record)))
    assert (row["spill_loads"], row["spill_stores"], row["wgmma_serialised"]) == (0, 0, "no")
    return row


def test_few_rows_keep_the_memory_busy() -> None:
    """An SM's share of 3.35 TB/s in a microsecond of latency is 25 KB; 70 cycles a KB let its schedulers issue 280."""
    row = compiled(1)
    assert row["load_bytes"] == 16 and row["loads"].startswith("cp.async")
    assert row["instructions_per_kb"] <= 40
    assert row["bytes_in_flight_per_sm"] >= 44 * 1024


@pytest.mark.parametrize(("M", "instruction"), [(64, "HGMMA.64x64x16"), (4096, "HGMMA.64x128x16")])
def test_more_rows_are_multiplied_by_wgmma(M: int, instruction: str) -> None:
    assert compiled(M)["tensor_instruction"].startswith(instruction)
