"""What the compiler makes of the ops between matmuls on sm_90: 16 bytes a load and a store, and nothing spilled."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from bench.case import Case
from bench.compile import compile_case
from bench.cubin import listing
from kernels.registry import op_named

NAMED = re.compile(r"\b(?:LDG|STG|LDL|STL|BAR)[.\w]*")


def memory_of(op_name: str, M: int, K: int, dtype: str = "bfloat16") -> Counter[str]:
    """Memory and barrier instructions of the default configuration's kernel, by name."""
    op = op_named(op_name)
    workload = op.describe_axes({"M": M, "K": K}, dtype, ("of a gate",))
    [kernel] = compile_case(Case(op, "triton", workload), 90, op.configs(workload, 90)[0])
    assert (kernel.spill_loads, kernel.spill_stores, kernel.stack_bytes) == (0, 0, 0)
    return Counter(NAMED.findall(listing(kernel.sass)))


OPS = ("rms_norm", "add_rms_norm", "residual_add", "silu_mul")
WIDTHS = [(op, K) for op in OPS for K in (8192, 18432)] + [("rms_norm", 128), ("add_rms_norm", 128)]
"""Norms of heads take several rows a program; the others have no such rows in a layer."""


@pytest.mark.parametrize(("op_name", "K"), WIDTHS)
def test_all_of_a_row_moves_in_pieces_of_16_bytes(op_name: str, K: int) -> None:
    for M in (16, 4096):
        names = {name for name in memory_of(op_name, M, K) if not name.startswith("BAR")}
        assert names == {"LDG.E.128", "STG.E.128"}


def test_a_row_that_fits_is_read_once() -> None:
    """8,192 values of 256 threads are four pieces of eight a thread: of x, of the weight, and of what is written."""
    found = memory_of("rms_norm", 4096, 8192)
    assert (found["LDG.E.128"], found["STG.E.128"]) == (8, 4)
    found = memory_of("add_rms_norm", 4096, 8192)
    assert (found["LDG.E.128"], found["STG.E.128"]) == (12, 8)


def test_a_long_rows_sum_is_written_before_it_is_read_back() -> None:
    """One barrier more than the reduction's own, which the norm alone has too."""
    alone, added = (sum(n for name, n in memory_of(op, 16, 18432).items() if "BAR" in name)
                    for op in ("rms_norm", "add_rms_norm"))  # fmt: skip
    assert added == alone + 1
