"""bench.l2: how many copies are cold, what is copied, and that nothing is called cold that is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.l2 import MAX_COPIES, MAX_NODES, Rotation, flusher, plan, rotate, tensor_bytes
from kernels import attention_decode, matmul
from kernels.registry import OPS, ROOF_OPS
from kernels.spec import Inputs, Op

KIB = 2**10
ROLES = {"w": "streamed", "x": "resident"}


def weights(streamed_bytes: int, resident_bytes: int = 0) -> Inputs:
    w, x = (torch.zeros(size, dtype=torch.uint8) for size in (streamed_bytes, resident_bytes))
    return {"w": w, "x": x, "causal": True}


@pytest.mark.parametrize(
    ("streamed", "copies"),
    [
        (1 * KIB, 30),
        (10 * KIB, 3),
        (10 * KIB + 1, 3),
        (10 * KIB - 1, 4),
        (30 * KIB, 1),
        (30 * KIB - 1, 2),
        (100 * KIB, 1),
    ],
)
def test_a_round_is_at_least_three_caches_and_no_copy_more(streamed: int, copies: int) -> None:
    rotation = plan(weights(streamed), ROLES, cache_bytes=10 * KIB)
    assert (rotation.cache, rotation.copies) == ("cold", copies)
    assert copies * streamed >= 30 * KIB > (copies - 1) * streamed


def test_more_copies_than_a_graph_has_room_for_become_a_flush() -> None:
    """A round of 3 x 4,000 bytes is 4,000 copies of 3 bytes, the most, or 6,000 of 2."""
    assert MAX_COPIES == 4000
    assert 2 * MAX_COPIES <= MAX_NODES == 8000
    assert plan(weights(3), ROLES, cache_bytes=4000) == Rotation(
        cache="cold", copies=4000, streamed_bytes=3, resident_bytes=0, cache_bytes=4000
    )
    assert plan(weights(2), ROLES, cache_bytes=4000) == Rotation(
        cache="flush", copies=1, streamed_bytes=2, resident_bytes=0, cache_bytes=4000
    )


def test_an_op_with_nothing_streamed_is_resident_and_says_so() -> None:
    for roles in ({}, {"x": "resident"}, {"causal": "streamed"}):
        rotation = plan(weights(KIB, 7), roles, cache_bytes=10 * KIB)
        assert (rotation.cache, rotation.copies) == ("resident", 1)
        assert (rotation.streamed_bytes, rotation.resident_bytes) == (0, KIB + 7)


def test_nothing_is_cold_where_the_caches_size_is_not_known() -> None:
    rotation = plan(weights(KIB), ROLES, cache_bytes=0)
    assert (rotation.cache, rotation.copies) == ("hot", 1)
    assert flusher(rotation, "cpu") is None


def test_needed_bytes_are_all_copies_the_resident_and_the_flush_buffer() -> None:
    cold = plan(weights(4 * KIB, 5), ROLES, cache_bytes=10 * KIB)
    assert cold.needed_bytes == 8 * 4 * KIB + 5
    assert replace(cold, cache="flush", copies=1).needed_bytes == 4 * KIB + 5 + 2 * 10 * KIB
    assert plan(weights(0, 5), ROLES, cache_bytes=10 * KIB).needed_bytes == 5


def test_bytes_are_those_of_the_tensors_own_values() -> None:
    assert tensor_bytes(torch.zeros(3, 5, dtype=torch.bfloat16)) == 30
    assert tensor_bytes(torch.zeros(8, 8)[::2, :3]) == 48
    assert tensor_bytes(torch.zeros(3, device="meta")) == 12
    assert tensor_bytes(5) == tensor_bytes("x") == tensor_bytes(None) == 0


def test_streamed_inputs_are_copied_by_value_and_resident_ones_shared() -> None:
    inputs: Inputs = {"w": torch.arange(256.0), "x": torch.ones(3), "causal": True}
    sets = rotate(inputs, ROLES, plan(inputs, ROLES, cache_bytes=KIB))
    assert len(sets) == 3
    assert sets[0]["w"] is inputs["w"]
    assert len({one["w"].data_ptr() for one in sets}) == 3
    for one in sets:
        assert torch.equal(one["w"], inputs["w"])
        assert one["x"] is inputs["x"]
        assert one["causal"] is True


@pytest.mark.parametrize(
    "w",
    [
        torch.arange(12.0).view(3, 4),
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(48.0).view(3, 16)[:, :4],
        torch.arange(48.0).view(3, 4, 4)[:, 1:3].transpose(0, 1),
        torch.arange(12.0)[::3],
    ],
    ids=["contiguous", "transposed", "padded rows", "sliced and transposed", "every third"],
)
def test_copies_have_the_strides_of_the_original(w: torch.Tensor) -> None:
    inputs: Inputs = {"w": w}
    first, *copies = rotate(inputs, ROLES, plan(inputs, ROLES, cache_bytes=64))
    assert copies
    for copied in copies:
        assert copied["w"].stride() == first["w"].stride() == w.stride()
        assert torch.equal(copied["w"], w)
        assert copied["w"].data_ptr() != w.data_ptr()


def test_the_copies_of_matmuls_weight_stay_k_major() -> None:
    workload = matmul.describe_axes({"M": 4, "N": 6, "K": 8}, "bfloat16", ("test",))
    inputs = matmul.make_inputs(workload, "cpu", 0)
    sets = rotate(inputs, matmul.OP.roles, plan(inputs, matmul.OP.roles, cache_bytes=96))
    assert [one["b"].stride() for one in sets] == [(1, 8)] * 3
    assert {one["a"].data_ptr() for one in sets} == {inputs["a"].data_ptr()}


def test_keys_and_values_rotate_together_while_the_query_stays() -> None:
    """k and v of [2, 70, 2, 64] float32 are 143,360 bytes together: 3 MiB take 22 copies."""
    workload = attention_decode.OP.check_workloads[0]
    inputs = attention_decode.make_inputs(workload, "cpu", 0)
    rotation = plan(inputs, attention_decode.OP.roles, cache_bytes=2**20)
    assert (rotation.streamed_bytes, rotation.copies) == (143_360, 22)
    sets = rotate(inputs, attention_decode.OP.roles, rotation)
    assert len({one[name].data_ptr() for one in sets for name in ("k", "v")}) == 44
    assert len({one[name].data_ptr() for one in sets for name in ("q", "kv_lens")}) == 2


def test_cold_is_refused_when_the_inputs_themselves_do_not_cover_three_caches() -> None:
    inputs = weights(KIB)
    honest = plan(inputs, ROLES, cache_bytes=10 * KIB)
    with pytest.raises(ValueError, match="29 copies covers 29696 bytes, not 3 x 10240: not cold"):
        rotate(inputs, ROLES, replace(honest, copies=29))
    with pytest.raises(ValueError, match="covers 30690 bytes"):
        rotate(weights(KIB - 1), ROLES, honest)
    with pytest.raises(ValueError, match="covers 0 bytes"):
        rotate(inputs, {}, honest)
    for cache in ("flush", "hot", "resident"):
        assert rotate(inputs, ROLES, replace(honest, cache=cache, copies=1)) == [inputs]


def test_a_flush_writes_twice_the_cache_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """T23: as large as this device's cache asks, whatever its size."""
    written: list[int] = []
    zero = torch.Tensor.zero_

    def counting(tensor: torch.Tensor) -> torch.Tensor:
        written.append(tensor_bytes(tensor))
        return zero(tensor)

    monkeypatch.setattr(torch.Tensor, "zero_", counting)
    flush = flusher(plan(weights(2), ROLES, cache_bytes=300 * KIB), "cpu")
    assert flush is not None
    flush()
    flush()
    assert written == [600 * KIB] * 2


def test_no_flush_where_rotation_or_residence_needs_none() -> None:
    assert flusher(plan(weights(KIB), ROLES, cache_bytes=10 * KIB), "cpu") is None
    assert flusher(plan(weights(0, KIB), ROLES, cache_bytes=10 * KIB), "cpu") is None


@pytest.mark.parametrize("op", [*OPS, *ROOF_OPS], ids=lambda op: op.name)
def test_planning_on_meta_is_planning_on_the_real_inputs(op: Op) -> None:
    for workload in op.check_workloads:
        on_meta, real = (plan(op.make_inputs(workload, device, 0), op.roles, 64 * KIB) for device in ("meta", "cpu"))
        assert on_meta == real
