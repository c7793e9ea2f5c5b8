"""What the attention kernels' default configurations compile to on sm_90: the figures that no change may lose.

Counts are of one trip of the hot loop, of what every trip passes: raising a lazy maximum is not in them.
"""

from __future__ import annotations

from functools import cache

import pytest
import triton

from analysis.compiled import Kernel, hot_code
from bench.case import Case
from bench.compile_jobs import outcome_of
from kernels.quantised_cache import quantised_kv
from kernels.registry import op_named

LEAST_IN_FLIGHT = 48 * 1024
KFLOP_OF_A_TILE = {
    64: 2 * 2 * 128 * 64 * 64 / 1e3,
    128: 2 * 2 * 128 * 128 * 128 / 1e3,
    256: 2 * 2 * 128 * 64 * 256 / 1e3,
}
"""Q K^T and P V of the tiles that the limits are for: 128 x 64, 128 x 128 and 128 x 64."""
pytestmark = pytest.mark.skipif(not triton.__version__.startswith("3.7."), reason="figures of Triton 3.7")


@cache
def compiled(op_name: str, head_dim: int, *, stored: str = "", **axes: int) -> Kernel:
    """The first kernel of a case in bfloat16, its cache stored in that or with scales a head in another dtype."""
    op = op_named(op_name)
    sizes = {axis: size for axis, size in op.axes.items() if size is not None} | {"head_dim": head_dim} | axes
    workload = op.describe_axes(sizes, "bfloat16", ("of a shape bucket",))
    case = Case(op, "triton", quantised_kv(workload, stored, "head") if stored else workload)
    record, listing = outcome_of(case, 90, None, default=True)[0]
    assert not record.error, record.error
    return Kernel(record, *hot_code(listing, record))


@pytest.mark.parametrize(("head_dim", "warps", "most"), [(64, 4, 500), (128, 8, 420), (256, 8, 440)])
def test_prefill_is_lean_wgmma_fed_by_tma(head_dim: int, warps: int, most: int) -> None:
    """The limits are of a tile and of one of so many warps; a larger tile shared by more is counted by its FLOPs."""
    kernel = compiled("attention_prefill", head_dim, q_len=4096)
    issued = kernel.mix.instructions * kernel.warps / (kernel.flops / 1e3) * KFLOP_OF_A_TILE[head_dim] / warps
    assert issued <= most
    assert (kernel.record.spill_loads, kernel.record.spill_stores) == (0, 0)
    assert kernel.load_kinds == ["tma"]
    assert all(shape.startswith("HGMMA") for shape in kernel.mix.tensor) and not kernel.mix.wgmma_serialised


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_decode_is_lean_keeps_bytes_in_flight_and_its_warp_to_itself(head_dim: int) -> None:
    kernel = compiled("attention_decode", head_dim, kv_len=8192)
    assert kernel.mix.instructions * kernel.warps * 1024 / kernel.trip_bytes <= 25
    assert kernel.mix.barriers <= 2
    assert kernel.bytes_in_flight_per_sm >= LEAST_IN_FLIGHT
    assert (kernel.record.spill_loads, kernel.record.spill_stores) == (0, 0)


def test_decode_of_the_widest_heads_is_as_lean_if_not_without_barriers() -> None:
    """Two warps hold the accumulators, and what they share takes barriers: no limit on those."""
    kernel = compiled("attention_decode", 256, kv_len=8192)
    assert kernel.mix.instructions * kernel.warps * 1024 / kernel.trip_bytes <= 25
    assert kernel.bytes_in_flight_per_sm >= LEAST_IN_FLIGHT
    assert (kernel.record.spill_loads, kernel.record.spill_stores) == (0, 0)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_decode_of_several_tokens_does_not_wait_for_each_wgmma(head_dim: int) -> None:
    kernel = compiled("attention_decode", head_dim, kv_len=8192, q_len=8, kv_heads=4)
    assert not kernel.mix.wgmma_serialised and kernel.bytes_in_flight_per_sm >= LEAST_IN_FLIGHT
