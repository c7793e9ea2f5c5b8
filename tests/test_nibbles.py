"""Weights in 4 bits: how they are packed, against words written by hand; their scales and zero points; their bytes."""

from __future__ import annotations

import pytest
import torch

from kernels import matmul_weight_only
from kernels.quantisation import grouped_nibbles, packed_nibbles, unpacked_nibbles, words_in_row
from kernels.quantised_matmuls import with_weights

GROUPS = (32, 64, 128)
HALF = torch.float16


def only(K: int, place: int, value: int) -> torch.Tensor:
    """A row of zeros but one value."""
    stored = torch.zeros(1, K, dtype=torch.int8)
    stored[0, place] = value
    return stored


@pytest.mark.parametrize(
    ("group", "place", "value", "word", "bits"),
    [
        (128, 64 * 3 + 5, 5, 5, 0x5000),
        (128, 64 * 7, 7, 0, 0x70000000),
        (64, 63, -1, 63, 0xF),
        (64, 512 + 64 * 4 + 1, 15, 64 + 1, 0xF0000),
        (32, 32 * 2 + 1, -8, 1, 0x800),
        (32, 256 + 31, 9, 32 + 31, 0x9),
    ],
)
def test_each_weight_has_the_nibble_that_is_told(group: int, place: int, value: int, word: int, bits: int) -> None:
    """Nibble i of word j of W = 64 (32 in groups of 32) is place W i + j of 8 W."""
    packed = packed_nibbles(only(1024, place, value), group)
    assert packed.dtype == torch.int32 and packed.shape == (1, 128)
    assert packed[0, word].item() == bits and packed.count_nonzero() == 1


def test_the_highest_nibble_is_the_words_sign() -> None:
    assert packed_nibbles(only(512, 64 * 7, -8), 128)[0, 0].item() == -(2**31)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("K", [1, 31, 256, 300, 512, 1030])
@pytest.mark.parametrize(("least", "signed"), [(-8, True), (0, False)])
def test_nibbles_come_back(group: int, K: int, least: int, signed: bool) -> None:
    """All 16 values in every place of a word, rows of whole steps and others; past K lie zeros."""
    stored = ((torch.arange(17 * K).view(17, K) * 7 + torch.arange(17)[:, None]) % 16 + least).to(torch.int8)
    packed = packed_nibbles(stored, group)
    assert packed.shape == (17, words_in_row(K, group))
    assert torch.equal(unpacked_nibbles(packed, K, group, signed=signed), stored)
    whole = unpacked_nibbles(packed, packed.shape[1] * 8, group, signed=signed)
    assert not whole[:, K:].any()


def test_signed_groups_of_unlike_scales_against_hand_worked_values() -> None:
    """Largest 7, 3.5 and 28 of 64, 64 and the last two: scales 1, 0.5 and 4; a column of zeros has scale 1."""
    values = torch.zeros(2, 130)
    values[0, 0], values[0, 1], values[0, 70], values[0, 71], values[0, 128], values[0, 129] = 7, -2.4, -3.5, 1, 28, -10
    stored, scales, zeros = grouped_nibbles(values, 64, HALF, zero_points=False)
    assert zeros is None and scales.dtype == HALF
    assert scales.tolist() == [[1, 1], [0.5, 1], [4, 1]]
    assert stored[0, [0, 1, 70, 71, 128, 129]].tolist() == [7, -2, -7, 2, 7, -2]
    assert not stored[1].any()


def test_zero_points_against_hand_worked_values() -> None:
    """-1 to 14 is stored as it is plus 1; 0 to 30 halved, from 0; -7.5 to 0 doubled, to 15; of zeros 0."""
    values = torch.zeros(1, 128)
    values[0, :16] = torch.arange(-1.0, 15)
    values[0, 32:34], values[0, 64:66] = torch.tensor([30.0, 9.0]), torch.tensor([-7.5, -2.0])
    stored, scales, zeros = grouped_nibbles(values, 32, HALF, zero_points=True)
    assert scales.flatten().tolist() == [1, 2, 0.5, 1] and zeros is not None
    assert zeros.dtype == torch.uint8 and zeros.flatten().tolist() == [1, 0, 15, 0]
    assert stored[0, :16].tolist() == list(range(16))
    assert stored[0, [16, 32, 33, 34, 64, 65, 66, 96]].tolist() == [1, 15, 4, 0, 0, 11, 15, 0]


@pytest.mark.parametrize(("value", "scale", "zero", "nibble"), [(30.0, 2, 0, 15), (-15.0, 1, 15, 0)])
def test_zero_is_in_the_range_of_a_group_of_one_sign(value: float, scale: float, zero: int, nibble: int) -> None:
    stored, scales, zeros = grouped_nibbles(torch.full((1, 32), value), 32, HALF, zero_points=True)
    assert zeros is not None and (scales.item(), zeros.item()) == (scale, zero)
    assert (stored == nibble).all()


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("size", [1e-37, 1.0, 3e4])
def test_stored_weights_are_within_half_a_scale(size: float, zero_points: bool) -> None:
    """Plus the rounding of the scale, 2^-11 of 15 steps at most, and a whole step where a zero point is rounded too."""
    values = size * torch.randn(5, 301, generator=torch.Generator().manual_seed(0)).clamp(-4, 4)
    stored, scales, zeros = grouped_nibbles(values, 64, HALF, zero_points=zero_points)
    assert (scales > 0).all() and scales.isfinite().all()
    per_place = scales.t().double().repeat_interleave(64, 1)[:, :301]
    less = 0 if zeros is None else zeros.t().repeat_interleave(64, 1)[:, :301].double()
    error = ((stored.double() - less) * per_place - values.double()).abs()
    assert (error <= per_place * (1.01 if zero_points else 0.51)).all()


def test_a09_four_bits_are_half_a_byte_with_their_scales() -> None:
    """4096 x 4096 in groups of 128: 8,388,608 bytes and 32 x 4,096 scales of bfloat16; a zero point is a byte more."""
    described = matmul_weight_only.describe_axes({"M": 1, "N": 4096, "K": 4096}, "bfloat16", ("test",))
    for stored, zeros in (("int4", 0), ("uint4", 131_072)):
        workload = with_weights(described, stored, 128)
        inputs = matmul_weight_only.make_inputs(workload, "meta", 0)
        assert inputs["w"].numel() * 4 == 8_388_608 and inputs["w_scale"].numel() * 2 == 262_144
        assert matmul_weight_only.OP.work(workload).bytes == 8_650_752 + zeros + 2 * (4096 + 4096)
        assert matmul_weight_only.OP.work(workload).flops == 2 * 4096 * 4096
