"""What the compiler makes of the default matmuls on sm_90: the figures that the leanest published kernels are held to.

Published kernels of the same class need 0.137 instructions per kFLOP (a tile of 128x256x64) and 23 per KB of weights.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import triton

from analysis.compiled import Kernel, hot_code, row_of
from bench.case import Case
from bench.compile_jobs import outcome_of
from kernels import matmul_configs, matmul_problem
from kernels.registry import op_named

LEANEST = 0.137
"""Instructions per kFLOP of the leanest peer."""
MOST_PER_KB = 20.5 if triton.__version__.startswith("3.9") else 20
"""Instructions per KB of weights; Triton 3.9 takes 20.1 for 64 rows."""
SMS = 132


@cache
def kernel_of(op: str, config: Any = None, **axes: int) -> Kernel:
    """The first kernel of a bfloat16 case on sm_90; its default configuration when None."""
    found = op_named(op)
    workload = found.describe_axes(axes, "bfloat16", ("of a gate",))
    config = config or found.configs(workload, 90)[0]
    record, text = outcome_of(Case(found, "triton", workload), 90, config, default=True)[0]
    assert not record.error, record.error
    return Kernel(record, *hot_code(text, record))


def is_sound(row: dict[str, Any]) -> bool:
    """Nothing in local memory, and wgmma that is not waited for one by one."""
    return (row["spill_loads"], row["spill_stores"], row["wgmma_serialised"]) == (0, 0, "no")


@pytest.mark.parametrize("N", [8192, 8190, 8191])
def test_prefill_is_leaner_than_the_leanest_peer(N: int) -> None:
    """A ragged C takes the tensor memory accelerator from the store alone."""
    row = row_of(kernel_of("matmul", M=8192, N=N, K=8192))
    assert is_sound(row) and row["loads"] == "tma"
    assert row["tensor_instruction"] == "HGMMA.64x256x16*8"
    assert row["instructions_per_kflop"] < LEANEST and row["ceiling_serial"] >= 0.877


@pytest.mark.skipif(not matmul_configs.HALVES, reason="this Triton cannot specialise a kernel that stores in halves")
def test_specialised_warps_reach_what_a_hand_made_pipeline_would() -> None:
    """At most 0.08 instructions per kFLOP, 0.90 of peak with nothing overlapped, no barrier of the whole block."""
    deep, usual = matmul_configs.SPECIALISED
    row = row_of(kernel_of("matmul", deep, M=8192, N=8192, K=8192))
    assert is_sound(row) and row["cta_barriers_per_iteration"] == 0
    assert row["instructions_per_kflop"] <= 0.08 and row["ceiling_serial"] >= 0.90
    row = row_of(kernel_of("matmul", usual, M=8192, N=8192, K=8192))
    assert is_sound(row) and row["instructions_per_kflop"] < LEANEST and row["ceiling_serial"] >= 0.877


@pytest.mark.parametrize("N", [8192, 10240])
@pytest.mark.parametrize("M", [1, 16, 64])
def test_decode_takes_20_instructions_per_kb_with_64_kb_in_flight(M: int, N: int) -> None:
    """Of what SMs could do in whole waves, 1 of 33 at most is idle: 64 tiles in halves are 128 blocks on 132 SMs."""
    kernel = kernel_of("matmul_decode", M=M, N=N, K=8192)
    row = row_of(kernel)
    assert is_sound(row) and row["load_bytes"] == 16
    assert row["instructions_per_kb"] <= MOST_PER_KB
    blocks = kernel.record.grid[0]
    assert row["bytes_in_flight_per_sm"] >= 64 * 1024
    waves = -(-blocks // SMS)
    assert blocks / (waves * SMS) >= 32 / 33, f"{blocks} blocks"


@pytest.mark.parametrize(("K", "width"), [(8190, 4), (8188, 8)])
def test_rows_of_whole_words_are_copied_asynchronously(K: int, width: int) -> None:
    """Triton alone sees no multiple of 16 in K and loads 2 bytes at a time, with no pipeline."""
    for op, axes in (("matmul", {"M": 4096, "N": 4096}), ("matmul_decode", {"M": 16, "N": 8190})):
        row = row_of(kernel_of(op, **axes, K=K))
        assert is_sound(row) and (row["loads"], row["load_bytes"]) == ("cp.async", width), op


def test_ragged_rows_keep_the_wide_tile_where_it_spills_nothing() -> None:
    """A tile half as wide reads A twice as often: from 4 bytes at a time that leaves 0.52 of the tensor peak."""
    row = row_of(kernel_of("matmul", M=8192, N=8190, K=8190))
    assert is_sound(row) and row["ceiling_overlapped"] >= 0.8


def test_the_default_of_each_shape_is_what_the_gates_see() -> None:
    meta = torch.empty(8192, 8192, dtype=torch.bfloat16, device="meta")
    assert matmul_problem.path_for(meta, meta.t(), 90, False) == ""
    assert matmul_problem.has_ragged_rows(8190, torch.bfloat16) and not matmul_problem.has_ragged_rows(8192, meta.dtype)
    assert matmul_problem.has_ragged_rows(8190, torch.float32) and not matmul_problem.has_ragged_rows(4, torch.float32)
