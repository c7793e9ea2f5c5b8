"""Quantisation against values worked by hand, and its error against what the formats' spacing allows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.quantisation import dequantised, least_arch, over_tiles, quantised, quantised_in_tiles, scales_of
from kernels.spec import Workload

E4M3, INT8 = torch.float8_e4m3fn, torch.int8
ONE = torch.ones(1)
BOTH = pytest.mark.parametrize("dtype", [E4M3, INT8])


def test_k49_values_past_the_largest_are_clamped_and_never_nan() -> None:
    values = torch.tensor([448.0, 464.0, 1000.0, -1000.0, 0.0])
    assert quantised(values, ONE, E4M3).tolist() == [448, 448, 448, -448, 0]
    assert quantised(values, ONE, INT8).tolist() == [127, 127, 127, -127, 0]
    assert quantised(torch.tensor([math.inf, -math.inf]), ONE, E4M3).tolist() == [448, -448]


def test_the_largest_value_of_what_shares_a_scale_is_stored_as_the_largest() -> None:
    """Rows whose largest are 7 and 0.5: scales of a 448th or a 127th of it; of all 7."""
    values = torch.tensor([[3.5, -7.0], [0.5, 0.25]])
    assert scales_of(values, E4M3, [1]).tolist() == [[7 / 448], [pytest.approx(0.5 / 448, rel=1e-7)]]
    assert scales_of(values, E4M3, [0, 1]).tolist() == [[7 / 448]]
    stored = quantised(values, scales_of(values, E4M3, [1]), E4M3)
    assert stored.tolist() == [[224, -448], [448, 224]]
    stored = quantised(values, scales_of(values, INT8, [1]), INT8)
    assert stored.tolist() == [[64, -127], [127, 64]], "63.5 is rounded to even"


def test_e4m3_is_rounded_to_its_own_spacing() -> None:
    """Three bits after the point: 17 lies between 16 and 18, 19 between 18 and 20, and halves go to even."""
    values = torch.tensor([17.0, 19.0, 21.0, 2.0**-9, 2.0**-10, 3 * 2.0**-10])
    assert quantised(values, ONE, E4M3).tolist() == [16, 20, 20, 2.0**-9, 0, 2.0**-8]


@BOTH
def test_zeros_have_scale_one_and_stay_zero(dtype: torch.dtype) -> None:
    values = torch.tensor([[0.0, -0.0], [1.0, 0.0]])
    scales = scales_of(values, dtype, [1])
    assert scales[0].tolist() == [1.0]
    assert dequantised(quantised(values, scales, dtype), scales, torch.float32)[0].tolist() == [0, 0]


@BOTH
@pytest.mark.parametrize("size", [1e-37, 1e-44, 3e38])
def test_tiny_and_huge_values_stay_numbers(size: float, dtype: torch.dtype) -> None:
    values = torch.tensor([size, -size, size / 2, 0.0])
    scales = scales_of(values, dtype, [0])
    stored = quantised(values, scales, dtype)
    assert scales.isfinite().all() and (scales > 0).all()
    assert dequantised(stored, scales, torch.float32).isfinite().all()
    within_spacing(values, dequantised(stored, scales, torch.float64), scales, dtype)


def within_spacing(values: torch.Tensor, back: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> None:
    """Half a step: of int8 the scale, of e4m3 an eighth of the value, or 2^-9 scales below 2^-6 of them."""
    exact, scale = values.double(), scales.double()
    half = scale / 2 if dtype == INT8 else torch.maximum(exact.abs() / 16, scale * 2**-10)
    assert ((back.double() - exact).abs() <= half * (1 + 1e-5)).all()


@BOTH
@pytest.mark.parametrize("dims", [(0, 1, 3), (0, 1, 2, 3), (3,)], ids=["head", "tensor", "token and head"])
def test_a_round_trip_errs_by_half_a_step_at_most(dims: tuple[int, ...], dtype: torch.dtype) -> None:
    heads = torch.tensor([1.0, 0.01, 100.0]).view(3, 1)
    values = torch.randn(2, 40, 3, 16, generator=torch.Generator().manual_seed(0)) * heads
    scales = scales_of(values, dtype, dims)
    assert scales.shape == tuple(1 if dim in dims else size for dim, size in enumerate(values.shape))
    stored = quantised(values, scales, dtype)
    assert stored.float().abs().max() == (448 if dtype == E4M3 else 127)
    within_spacing(values, dequantised(stored, scales, torch.float64), scales, dtype)


@BOTH
def test_bfloat16_values_are_divided_in_float32(dtype: torch.dtype) -> None:
    values = torch.randn(64, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    scales = scales_of(values, dtype, [0, 1])
    stored = quantised(values, scales, dtype)
    assert torch.equal(stored.float(), quantised(values.float(), scales, dtype).float())


def test_a_product_is_rounded_once_and_to_what_is_asked_for() -> None:
    """3 x 0.1 in float64 of the float32 that is nearest 0.1; in bfloat16, 8 bits, 0.30078125."""
    scale = torch.tensor([0.1])
    stored = torch.tensor([3], dtype=INT8)
    assert dequantised(stored, scale, torch.float64).item() == 3 * float(scale) != float(torch.tensor([0.3]))
    assert dequantised(stored, scale, torch.bfloat16).item() == 0.30078125


@BOTH
def test_large_tensors_are_quantised_in_pieces_alike(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(7, 5, generator=torch.Generator().manual_seed(2))
    scales = scales_of(values, dtype, [1])
    whole = quantised(values, scales, dtype)
    monkeypatch.setattr("kernels.quantisation.DRAWN_AT_ONCE", 10)
    assert torch.equal(quantised(values, scales, dtype).float(), whole.float())


@BOTH
def test_no_values_and_no_device_give_shapes(dtype: torch.dtype) -> None:
    assert quantised(torch.zeros(0, 3), ONE, dtype).shape == (0, 3)
    values = torch.empty(4, 3, device="meta")
    stored = quantised(values, scales_of(values, dtype, [1]), dtype)
    assert (stored.shape, stored.dtype, stored.device.type) == ((4, 3), dtype, "meta")


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"quantised to torch.float8_e4m3fn, torch.int8, not to torch.int16"):
        scales_of(ONE, torch.int16, [0])
    with pytest.raises(ValueError, match=r"not to torch.float8_e5m2"):
        quantised(ONE, ONE, torch.float8_e5m2)


@BOTH
def test_tiles_share_scales_and_those_at_the_edges_are_smaller(dtype: torch.dtype) -> None:
    """5 x 7 of ones but for a 2 and a 4, in tiles of 2 x 3: three rows of three tiles, each with its own largest."""
    values = torch.ones(5, 7)
    values[3, 2], values[4, 6] = 2, 4
    stored, scales = quantised_in_tiles(values, 2, 3, dtype)
    most = 448 if dtype == E4M3 else 127
    largest = torch.tensor([[1.0, 1, 1], [2, 1, 1], [1, 1, 4]])
    assert torch.allclose(scales, largest / most, rtol=1e-6) and stored.is_contiguous()
    spread = largest.repeat_interleave(2, 0)[:5].repeat_interleave(3, 1)[:, :7]
    within_spacing(values, (stored.double() * spread / most), spread / most, dtype)
    assert quantised_in_tiles(values, 0, 0, dtype)[1].shape == (1, 1)
    assert quantised_in_tiles(values, 1, 0, dtype)[1].flatten().mul(most).tolist() == pytest.approx([1, 1, 1, 2, 4])


def test_scales_of_tiles_broadcast_over_their_matrix() -> None:
    """One for all, one a row, one for each 3 columns of 7: the last block is of one."""
    assert over_tiles(torch.ones(1, 1), (2, 7), 3).shape == (1, 1)
    wide = over_tiles(torch.tensor([[1.0, 2, 3], [4, 5, 6]]), (2, 7), 3)
    assert wide.tolist() == [[1, 1, 1, 2, 2, 2, 3], [4, 4, 4, 5, 5, 5, 6]]


@pytest.mark.parametrize(
    ("how", "arch"),
    [({}, 0), ({"dtype": "float8_e4m3fn"}, 89), ({"kv_dtype": "float8_e4m3fn"}, 89), ({"technique": "fp8"}, 89)],
)
def test_the_first_arch_that_takes_what_is_stored(how: dict[str, Any], arch: int) -> None:
    assert least_arch(replace(Workload(axes={"M": 1}, dtype="bfloat16", phase="decode"), **how)) == arch
