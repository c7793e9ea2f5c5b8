"""What decode over caches in 8 bits compiles to on sm_90: bytes copied ahead as stored, and what widening them costs.

An H100's SM has about 280 issue slots in the time that DRAM takes for 1 KB: 4 a clock, 1,755 MHz, and a 132nd of
3.35 TB/s. An H200's has 200, for 4.8 TB/s. Limits are of instructions a KB of keys and values as they are stored.
"""

from __future__ import annotations

import pytest
import triton
from test_compiled_gates_attention import LEAST_IN_FLIGHT, compiled

pytestmark = pytest.mark.skipif(not triton.__version__.startswith("3.7."), reason="figures of Triton 3.7")
SLOTS = 4 * 1755e6 / (4.8e12 / 132) * 1024
"""Of an H200's SM while DRAM brings it 1 KB."""


@pytest.mark.parametrize(("stored", "most"), [("float8_e4m3fn", 100), ("int8", 140)])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_a_warp_alone_copies_ahead_and_widens_within_the_issue_slots(head_dim: int, stored: str, most: int) -> None:
    """K comes in 16 bytes a lane; V in 8, since mma takes it with its keys side by side."""
    kernel = compiled("attention_decode", head_dim, stored=stored, batch=4, kv_len=8192)
    assert kernel.mix.instructions * kernel.warps * 1024 / kernel.trip_bytes <= most < SLOTS
    assert kernel.warps == 1 and kernel.mix.barriers <= 2
    assert kernel.load_kinds == ["cp.async"] and set(kernel.mix.loads["cp.async"]) == {8, 16}
    assert kernel.bytes_in_flight_per_sm >= LEAST_IN_FLIGHT
    assert (kernel.record.spill_loads, kernel.record.spill_stores) == (0, 0)


@pytest.mark.parametrize(("head_dim", "most"), [(64, (125, 190)), (80, (82, 146)), (128, (81, 145)), (256, (98, 164))])
@pytest.mark.parametrize("place", [0, 1], ids=["float8_e4m3fn", "int8"])
@pytest.mark.parametrize("q_len", [4, 8])
def test_more_rows_are_wgmma_of_what_was_copied_ahead(
    q_len: int, place: int, head_dim: int, most: tuple[int, int]
) -> None:
    """Not waited for one by one; K and V both come in 16 bytes a lane."""
    stored = ("float8_e4m3fn", "int8")[place]
    kernel = compiled("attention_decode", head_dim, stored=stored, batch=4, kv_len=8192, q_len=q_len, kv_heads=4)
    assert kernel.mix.instructions * kernel.warps * 1024 / kernel.trip_bytes <= most[place] < SLOTS
    assert kernel.load_kinds == ["cp.async"] and set(kernel.mix.loads["cp.async"]) == {16}
    assert all(shape.startswith("HGMMA") for shape in kernel.mix.tensor) and not kernel.mix.wgmma_serialised
    assert kernel.bytes_in_flight_per_sm >= LEAST_IN_FLIGHT
    assert (kernel.record.spill_loads, kernel.record.spill_stores) == (0, 0)


def test_few_rows_of_the_widest_heads_are_wgmma_too() -> None:
    """Their accumulators need four warps."""
    for stored in ("float8_e4m3fn", "int8"):
        kernel = compiled("attention_decode", 256, stored=stored, batch=4, kv_len=8192)
        assert kernel.warps == 4 and set(kernel.mix.loads["cp.async"]) == {16} and not kernel.mix.wgmma_serialised
        assert kernel.bytes_in_flight_per_sm >= LEAST_IN_FLIGHT
        assert (kernel.record.spill_loads, kernel.record.spill_stores) == (0, 0)
