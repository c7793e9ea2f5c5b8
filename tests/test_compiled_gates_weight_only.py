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
from kernels.matmul_weight_only_triton import Config, splits_for
from kernels.quantised_matmuls import with_weights


def compiled(M: int, stored: str, group: int = 0) -> dict[str, Any]:
    """The row of the first kernel of a case in bfloat16, of its default configuration."""
    workload = with_weights(OP.describe_axes({"M": M, "N": 8192, "K": 8192}, "bfloat16", ("of a gate",)), stored, group)
    record, text = outcome_of(Case(OP, "triton", workload), 90, OP.configs(workload, 90)[0], default=True)[0]
    assert not record.error, record.error
    row = row_of(Kernel(record, *hot_code(text, record)))
    assert (row["spill_loads"], row["spill_stores"], row["wgmma_serialised"]) == (0, 0, "no")
    return row


@pytest.mark.parametrize(
    ("block_m", "tiles", "splits"),
    [
        (16, 128, 2),  # one wave of 8 steps and a half; in four two of 4 1/2: 10 1/2 and 11 with the second kernel
        (16, 300, 4),  # 5 waves of 4 1/2: 24 1/2; unshared 32, in two 27 1/2, in six 26 1/2, in eight 27
        (128, 66, 4),  # one wave of 4 steps and 4 of partials: 10; unshared 16, in two 14, in three 12
        (128, 264, 1),
        (128, 300, 1),
    ],
)
def test_k_is_shared_until_the_machine_is_full(block_m: int, tiles: int, splits: int) -> None:
    """16 steps on 132 SMs that hold two programs each."""
    assert splits_for(tiles, 16, Config(block_m=block_m, block_n=64, ctas_per_sm=2), 132) == splits


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
