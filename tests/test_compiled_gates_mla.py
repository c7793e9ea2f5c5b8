"""What the absorbed MLA decode's default configurations compile to on sm_90: one latent a tile, wgmma for many rows."""

from __future__ import annotations

from functools import cache

import pytest
import triton
from test_compiled_gates_attention import LEAST_IN_FLIGHT

from analysis.compiled import Kernel, hot_code
from bench.case import Case
from bench.compile_jobs import outcome_of
from kernels.registry import op_named

pytestmark = pytest.mark.skipif(not triton.__version__.startswith("3.7."), reason="figures of Triton 3.7")
KEY_BYTES = 576 * 2


@cache
def compiled(heads: int, page_size: int) -> Kernel:
    op = op_named("attention_mla_decode")
    axes = {"batch": 16, "q_len": 1, "kv_len": 8192, "q_heads": heads, "page_size": page_size}
    case = Case(op, "triton", op.describe_axes(axes, "bfloat16", ("of a shape bucket",)))
    record, listing = outcome_of(case, 90, None, default=True)[0]
    assert not record.error, record.error
    return Kernel(record, *hot_code(listing, record))


@pytest.mark.parametrize(("heads", "page_size", "keys"), [(128, 64, 64), (128, 16, 32), (16, 64, 32), (16, 1, 32)])
def test_a_tile_of_the_latent_is_read_once_and_copied_ahead(heads: int, page_size: int, keys: int) -> None:
    """It is keys and values at once: a trip copies 1,152 bytes a key, and nothing else of the pool."""
    kernel = compiled(heads, page_size)
    loads = [load for load in kernel.trip["loads"] if load["argument"] == "latent_pool"]
    assert sorted(load["bytes"] for load in loads) == [keys * 64 * 2, keys * 512 * 2]
    assert kernel.trip_bytes == keys * KEY_BYTES * kernel.unrolled
    assert {load["kind"] for load in loads} == {"cp.async"} and kernel.bytes_in_flight_per_sm >= LEAST_IN_FLIGHT
    assert (kernel.record.spill_loads, kernel.record.spill_stores) == (0, 0)


@pytest.mark.parametrize("page_size", [64, 16])
def test_128_heads_are_wgmma_that_is_not_waited_for_one_by_one(page_size: int) -> None:
    """Of 64 rows by 256 columns each: the sums of a row are two groups of four warps."""
    kernel = compiled(128, page_size)
    assert all(shape.startswith("HGMMA") for shape in kernel.mix.tensor) and not kernel.mix.wgmma_serialised
    assert any("64x256x16" in shape for shape in kernel.mix.tensor)
