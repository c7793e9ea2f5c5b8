"""What the ragged kernel's default configurations compile to on sm_90: a schedule costs a program its start alone."""

from __future__ import annotations

import pytest
import triton
from test_compiled_gates_attention import LEAST_IN_FLIGHT, compiled

pytestmark = pytest.mark.skipif(not triton.__version__.startswith("3.7."), reason="figures of Triton 3.7")


@pytest.mark.parametrize(
    ("op", "axes"),
    [("attention_varlen", {"q_len": 4096}), ("attention_mixed", {"q_len": 512, "kv_len": 8192})],
    ids=["packed", "paged"],
)
def test_chunks_are_wgmma_that_is_not_waited_for_one_by_one(op: str, axes: dict[str, int]) -> None:
    kernel = compiled(op, 128, **axes)
    assert kernel.mix.tensor and all(shape.startswith("HGMMA") for shape in kernel.mix.tensor)
    assert not kernel.mix.wgmma_serialised and "cp.async" in kernel.load_kinds
    assert kernel.bytes_in_flight_per_sm >= LEAST_IN_FLIGHT
    assert (kernel.record.spill_loads, kernel.record.spill_stores) == (0, 0)


def test_decode_tokens_alone_stay_lean_and_a_warp_to_itself() -> None:
    """A third over paged decode, whose tiles hold twice the keys: a schedule leaves no registers for those."""
    kernel = compiled("attention_mixed", 128, q_len=1, kv_len=8192, page_size=16)
    assert kernel.mix.instructions * kernel.warps * 1024 / kernel.trip_bytes <= 33
    assert kernel.mix.barriers <= 2 and kernel.bytes_in_flight_per_sm >= LEAST_IN_FLIGHT
    assert "cp.async" in kernel.load_kinds
