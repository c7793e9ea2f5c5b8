"""Norms, additions and SiLU between matmuls by the interpreter: values by hand, extremes, strides, ragged rows."""

from __future__ import annotations

import math

import pytest
import torch
from guarded import guard_bands

from kernels.glue_triton import Config, add_rms_norm, residual_add, rms_norm, silu_mul
from kernels.layer_glue import EPS

DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
FORMS = pytest.mark.parametrize("config", [None, Config(block_k=64, tile=256), Config(block_k=16, tile=16)])
"""The default, whose rows stay in registers; several rows a program, and one, of many steps."""
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def spaced(x: torch.Tensor) -> torch.Tensor:
    """The same values with rows and columns that lie apart, and NaN between them."""
    apart = torch.full((x.shape[0], 3 * x.shape[1] + 5), math.nan, dtype=x.dtype)
    apart[:, 2 : 2 + 2 * x.shape[1] : 2] = x
    return apart[:, 2 : 2 + 2 * x.shape[1] : 2]


@DTYPES
@FORMS
def test_norms_worked_by_hand(config: Config | None, dtype: torch.dtype) -> None:
    """Of (3, 4) the mean square is 12.5; of 84 values, 3 and then 4 by turns, as well. Weights of 2 double it."""
    x = torch.tensor([3.0, -4.0]).repeat(3, 42).to(dtype)
    y = rms_norm(x, torch.full((84,), 2.0, dtype=dtype), eps=0.0, config=config)
    wanted = torch.tensor([1.6970563, -2.2627417]).repeat(3, 42)  # 6 and 8 over 3.5355339
    assert torch.allclose(y.float(), wanted, rtol=TOLERANCE[dtype], atol=0)
    assert y.dtype == dtype and y.is_contiguous()


@DTYPES
@FORMS
def test_eps_is_added_to_the_mean(config: Config | None, dtype: torch.dtype) -> None:
    """Of 84 values of 0.01 the mean square is 1e-4: 0.01 / sqrt(1.1e-4) = 0.953463."""
    x, ones = torch.full((2, 84), 0.01, dtype=dtype), torch.ones(84, dtype=dtype)
    assert torch.allclose(rms_norm(x, ones, config=config).float(), torch.tensor(0.953463), rtol=TOLERANCE[dtype])
    assert not rms_norm(torch.zeros_like(x), ones, config=config).any()
    assert EPS == 1e-5


@DTYPES
@FORMS
def test_rows_whose_squares_leave_the_range(config: Config | None, dtype: torch.dtype) -> None:
    """6e4 squared overflows float16: each value over the root of their mean square is 1. 1e-20 is under eps' root by
    3.16e-3, and float16's zero."""
    ones = torch.ones(84, dtype=dtype)
    large = rms_norm(torch.full((2, 84), 6e4, dtype=dtype), ones, config=config).float()
    assert torch.allclose(large, torch.ones(2, 84), rtol=TOLERANCE[dtype])
    small = rms_norm(torch.full((2, 84), 1e-20, dtype=dtype), ones, config=config).float()
    wanted = torch.tensor(0.0 if dtype == torch.float16 else 3.1622777e-18)
    assert torch.allclose(small, wanted, rtol=1e-5, atol=0)


@DTYPES
@FORMS
def test_the_sum_is_rounded_before_it_is_normalised(config: Config | None, dtype: torch.dtype) -> None:
    """2048 + 1 in float16 is a half way, to even 2048. The other value is 2, and the norm is of what was stored."""
    x, residual = torch.ones(2, 84, dtype=dtype), torch.full((2, 84), 1.0, dtype=dtype)
    residual[:, 0] = 2048
    y, total = add_rms_norm(x, residual, torch.ones(84, dtype=dtype), eps=0.0, config=config)
    stored = 2048.0 if dtype == torch.float16 else 2049.0
    assert total[:, 0].tolist() == [stored] * 2 and (total[:, 1:] == 2).all()
    wanted = stored / math.sqrt((stored**2 + 83 * 4) / 84)
    assert torch.allclose(y[:, 0].float(), torch.tensor(wanted), rtol=TOLERANCE[dtype])
    assert residual[0, 1] == 1, "only `out` is written"
    x, residual, weight = (draw(seed, 9, 84).to(dtype) for seed in (1, 2, 3))
    y, total = add_rms_norm(x, residual, weight[0], config=config)
    assert torch.equal(y, rms_norm(total, weight[0], config=config)), "the norm is of what was stored"


@FORMS
@pytest.mark.parametrize("place", ["apart", "in place"])
def test_the_residual_can_be_updated_in_place(place: str, config: Config | None) -> None:
    x, residual, weight = draw(1, 5, 84), spaced(draw(2, 5, 84)), draw(3, 84)
    before = residual.clone()
    out = residual if place == "in place" else None
    y, total = add_rms_norm(x, residual, weight, out=out, config=config)
    assert (total is residual) == (place == "in place")
    assert torch.equal(total, before + x) and torch.equal(residual, total if out is not None else before)
    between = residual.as_strided((5, 83), (residual.stride(0), 2), residual.storage_offset() + 1)
    assert between.isnan().all(), "nothing is written between the values"
    assert torch.allclose(y, rms_norm(before + x, weight), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("M", "K"), [(1, 1), (3, 127), (17, 128), (5, 2880), (2, 5376), (2, 7168), (2, 18432)])
def test_widths_that_are_no_power_of_two_and_strides(M: int, K: int) -> None:
    """Hidden sizes of gpt-oss, Gemma 3 and DeepSeek-V3, and an MLP's, against float64."""
    x, residual, weight = draw(1, M, K), draw(2, M, K), draw(3, K)
    wide = x.double()
    wanted = wide / (wide.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()
    with guard_bands():
        found = rms_norm(spaced(x), spaced(weight[None])[0])
        y, total = add_rms_norm(spaced(x) - spaced(residual), spaced(residual), weight)
        added = residual_add(spaced(x), spaced(residual))
    assert torch.allclose(found.double(), wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(total, (x - residual) + residual) and torch.equal(added, x + residual)
    assert torch.allclose(y.double(), wanted, rtol=1e-3, atol=1e-4)


@DTYPES
@pytest.mark.parametrize("config", [None, Config(block_k=4)])
def test_silu_worked_by_hand(config: Config | None, dtype: torch.dtype) -> None:
    """ln 3 / (1 + 1/3) = 0.8239592 and -ln 3 / 4 = -0.2746531; e^200 overflows float32, and 0 is what remains."""
    gate = torch.tensor([[math.log(3), -math.log(3), 0.0, -200.0, 200.0, -math.inf, math.inf]])
    up = torch.tensor([[2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]])
    y = silu_mul(torch.cat([gate, up], 1).to(dtype), config=config).float()
    wanted = torch.tensor([[1.6479184, -0.5493061, 0, 0, 400, 0, math.inf]])
    assert torch.allclose(y, wanted, rtol=TOLERANCE[dtype], atol=1e-7)
    assert silu_mul(torch.tensor([[math.nan, 1.0]]), config=config).isnan().all()


@pytest.mark.parametrize(("M", "K"), [(1, 1), (3, 129), (70, 33), (2, 5000)])
def test_gate_and_up_of_ragged_and_spaced_rows(M: int, K: int) -> None:
    gate_up = draw(4, M, 2 * K)
    gate, up = gate_up.double().chunk(2, 1)
    with guard_bands():
        found = silu_mul(spaced(gate_up))
    assert torch.allclose(found.double(), gate / (1 + torch.exp(-gate)) * up, rtol=1e-5, atol=1e-6)


def test_nothing_is_launched_for_no_rows_or_columns() -> None:
    for shape in ((0, 8), (3, 0)):
        x, weight = torch.ones(shape), torch.ones(shape[1])
        y, total = add_rms_norm(x, x, weight)
        assert rms_norm(x, weight).shape == y.shape == total.shape == residual_add(x, x).shape == shape
        assert silu_mul(torch.ones(shape[0], 2 * shape[1])).shape == shape


def test_what_does_not_fit_together_is_refused() -> None:
    x, half = torch.ones(2, 4), torch.ones(2, 4).half()
    for call in (
        lambda: rms_norm(x, torch.ones(3)),
        lambda: rms_norm(x, torch.ones(4).half()),
        lambda: rms_norm(x[0], torch.ones(4)),
        lambda: add_rms_norm(x, half, torch.ones(4)),
        lambda: add_rms_norm(x, x, torch.ones(4), out=torch.ones(2, 5)),
        lambda: residual_add(x, torch.ones(1, 4)),
    ):
        with pytest.raises(ValueError, match=r"wanted rows \[M, K\], alike"):
            call()
    with pytest.raises(ValueError, match=r"wanted gate_up \[M, 2 K\], got \[2, 3\]"):
        silu_mul(torch.ones(2, 3))
