"""What the paged attention kernel's default configurations compile to on sm_90: pages cost next to nothing."""

from __future__ import annotations

import pytest
import triton
from test_compiled_gates_attention import LEAST_IN_FLIGHT, compiled

pytestmark = pytest.mark.skipif(not triton.__version__.startswith("3.7."), reason="figures of Triton 3.7")


@pytest.mark.parametrize(("head_dim", "page_size", "most"), [(64, 16, 28), (128, 16, 25), (128, 256, 25)])
def test_decode_stays_lean_keeps_bytes_in_flight_and_its_warp_to_itself(
    head_dim: int, page_size: int, most: int
) -> None:
    """The limits of decode without pages, and for heads of 64 a little more: a key has its page whatever its width.

    Block table entries are loads to registers; K and V are copied ahead.
    """
    kernel = compiled("attention_paged_decode", head_dim, kv_len=8192, page_size=page_size)
    assert kernel.mix.instructions * kernel.warps * 1024 / kernel.trip_bytes <= most
    assert kernel.mix.barriers <= 2 and kernel.bytes_in_flight_per_sm >= LEAST_IN_FLIGHT
    assert "cp.async" in kernel.load_kinds
    assert (kernel.record.spill_loads, kernel.record.spill_stores) == (0, 0)


@pytest.mark.parametrize("page_size", [16, 256])
def test_prefill_is_wgmma_that_is_not_waited_for_one_by_one(page_size: int) -> None:
    kernel = compiled("attention_paged_prefill", 128, q_len=4096, page_size=page_size)
    assert all(shape.startswith("HGMMA") for shape in kernel.mix.tensor) and not kernel.mix.wgmma_serialised
    assert kernel.bytes_in_flight_per_sm >= LEAST_IN_FLIGHT
    assert (kernel.record.spill_loads, kernel.record.spill_stores) == (0, 0)
