"""fp8 matmuls and their quantisation by the interpreter: values worked by hand, scales in their places, exact bits.

Every path answers: descriptors and pointers, each form of few rows with K whole and shared, fast accumulation or not.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from guarded import guard_bands, surrounded

from bench.check import poisoned
from kernels import matmul_configs, matmul_decode_configs
from kernels.matmul_decode_triton import matmul_decode
from kernels.matmul_triton import matmul
from kernels.quantisation import quantised
from kernels.quantise_fp8 import quantise_fp8_torch
from kernels.quantise_fp8_triton import quantise_fp8
from kernels.spec import UnsupportedError

E4M3 = torch.float8_e4m3fn
TILES = (*matmul_configs.FP8, matmul_configs.FP8_POINTERS[0], *matmul_configs.FP8_RAGGED)
FORMS = (
    matmul_decode_configs.FP8_FEW[0],
    matmul_decode_configs.FP8_MANY[0],
    replace(matmul_decode_configs.FP8[0], splits=2),
    replace(matmul_decode_configs.FP8[0], fast_accumulation=True),
)
ONE = torch.ones(1, 1)


def fp8(values: torch.Tensor) -> torch.Tensor:
    """Values that e4m3 holds exactly, between guard bands of NaN."""
    stored = values.to(E4M3)
    assert torch.equal(stored.float(), values.float())
    around = torch.full((stored.shape[0] + 2, stored.shape[1]), 0x7F, dtype=torch.uint8).view(E4M3)
    around[1:-1] = stored
    return around[1:-1]


def ask(
    x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor = ONE, w_scale: torch.Tensor = ONE
) -> dict[str, torch.Tensor]:
    """x @ w^T by every path, in poisoned memory."""
    blocks = x_scale.shape[1] > 1 or w_scale.shape[1] > 1
    able = [c for c in TILES if not (c.descriptors and x.shape[1] % 16)]
    able = [c for c in able if not (blocks and c.block_n > 128)]
    with poisoned():
        answers = {
            f"matmul {config}": matmul(x, w.t(), a_scale=x_scale, b_scale=w_scale.t(), config=config)
            for config in (None, *able)
        }
        for form in (None, *FORMS) if len(x) <= 64 else ():
            answers[f"few rows {form}"] = matmul_decode(x, w, x_scale=x_scale, w_scale=w_scale, config=form)
    assert all(out.dtype == torch.bfloat16 for out in answers.values())
    return answers


def all_give(answers: dict[str, torch.Tensor], wanted: torch.Tensor) -> None:
    for who, out in answers.items():
        assert torch.equal(out.float(), wanted.expand(out.shape)), who


@pytest.mark.parametrize(("M", "N", "K"), [(33, 17, 31), (5, 3, 1), (1, 8, 1008), (70, 40, 144)])
def test_k01_ones_give_k_where_k_is_no_multiple_of_a_tile(M: int, N: int, K: int) -> None:
    """All of these K are bfloat16 numbers; past the last row and column lies NaN."""
    all_give(ask(fp8(torch.ones(M, K)), fp8(torch.ones(N, K))), torch.tensor(float(K)))


@pytest.mark.parametrize("M", [1, 2, 7, 15, 17])
def test_k04_rows_and_columns_below_a_tensor_core_tile(M: int) -> None:
    all_give(ask(fp8(torch.ones(M, 16)), fp8(torch.ones(8, 16))), torch.tensor(16.0))


@pytest.mark.parametrize("K", [64, 77])
def test_each_row_and_each_column_has_its_own_scale(K: int) -> None:
    """K ones times 2^-(row mod 5) and 2^(column mod 3): exact in bfloat16, and no two neighbours alike."""
    M, N = 20, 35
    rows, columns = 2.0 ** -(torch.arange(M) % 5), 2.0 ** (torch.arange(N) % 3)
    x, w = fp8(torch.ones(M, K)), fp8(torch.ones(N, K))
    all_give(ask(x, w, rows[:, None], columns[:, None]), K * rows[:, None] * columns[None, :])
    all_give(ask(x, w, rows[:, None], torch.tensor([[0.5]])), K * rows[:, None] / 2)
    all_give(ask(x, w, torch.tensor([[4.0]]), columns[:, None]), K * 4 * columns[None, :])


@pytest.mark.parametrize("K", [384, 272, 257])
def test_each_block_has_its_own_scale(K: int) -> None:
    """Blocks of weights, three along K and two along N, each of 2^(3 n + k); rows of 2^-(row mod 3) x (1 + k)."""
    M, N, steps = 20, 144, -(-K // 128)
    k = torch.arange(steps)
    x_scale = 2.0 ** -(torch.arange(M) % 3)[:, None] * (1 + k)[None, :]
    w_scale = 2.0 ** (3 * torch.arange(2)[:, None] + k[None, :])
    lengths = torch.tensor([min(128, K - 128 * step) for step in range(steps)])
    sums = torch.einsum("k,mk,nk->mn", lengths.double(), x_scale.double(), w_scale.double())
    wanted = sums.repeat_interleave(128, 1)[:, :N]
    for who, out in ask(fp8(torch.ones(M, K)), fp8(torch.ones(N, K)), x_scale, w_scale).items():
        assert torch.allclose(out.double(), wanted, rtol=2**-7, atol=0), who
    m_major = x_scale.t().contiguous().t()
    for out in ask(fp8(torch.ones(M, K)), fp8(torch.ones(N, K)), m_major, w_scale).values():
        assert torch.allclose(out.double(), wanted, rtol=2**-7, atol=0)


def test_the_largest_values_do_not_overflow_and_small_scales_do_not_vanish() -> None:
    """448 x 448 x 272 is 5.5e7; with scales of 2^-60 it is that times 2^-120, still a normal number."""
    x, w = fp8(torch.full((3, 272), 448.0)), fp8(torch.full((8, 272), 448.0))
    tiny = torch.tensor([[2.0**-60]])
    for out in ask(x, w).values():
        assert torch.allclose(out.float(), torch.tensor(448.0 * 448 * 272), rtol=2**-7)
    for out in ask(x, w, tiny, tiny).values():
        assert torch.allclose(out.double(), torch.tensor(448.0 * 448 * 272 * 2.0**-120).double(), rtol=2**-7, atol=0)


@pytest.mark.parametrize("layout", ["n fast", "every other row", "odd start"])
def test_strided_inputs_give_what_contiguous_ones_give(layout: str) -> None:
    x = (torch.arange(5 * 48).view(5, 48) % 7 - 3).float()
    w = (torch.arange(24 * 48).view(24, 48) % 5 - 2).float()
    wanted = (x @ w.t()).bfloat16()
    stored_x, stored_w = fp8(x), fp8(w)
    if layout == "n fast":
        stored_w = stored_w.view(torch.uint8).t().contiguous().view(E4M3).t()
    elif layout == "every other row":
        stored_w = stored_w.view(torch.uint8).repeat_interleave(2, 0).view(E4M3)[::2]
    else:
        wide = torch.zeros(24, 49, dtype=torch.uint8)
        wide[:, 1:] = stored_w.view(torch.uint8)
        stored_w = wide.view(E4M3)[:, 1:]
    assert torch.equal(matmul(stored_x, stored_w.t(), a_scale=ONE, b_scale=ONE), wanted)
    assert torch.equal(matmul_decode(stored_x, stored_w, x_scale=ONE, w_scale=ONE), wanted)


def test_guard_bands_of_the_output_stay() -> None:
    with guard_bands() as given:
        answers = ask(fp8(torch.ones(5, 144)), fp8(torch.ones(35, 144)))
    assert len(given) >= len(answers)
    all_give(answers, torch.tensor(144.0))


def test_what_does_not_fit_is_refused() -> None:
    x, w = fp8(torch.ones(4, 256)), fp8(torch.ones(8, 256))
    with pytest.raises(ValueError, match="need"):
        matmul(x, w.t())
    with pytest.raises(ValueError, match="scales of float32"):
        matmul_decode(x, w, x_scale=ONE.half(), w_scale=ONE)
    with pytest.raises(ValueError, match=r"wanted scales \[1 or 4, 1\]"):
        matmul_decode(x, w, x_scale=torch.ones(4, 1), w_scale=torch.ones(7, 1))
    with pytest.raises(ValueError, match="one row without scales"):
        matmul_decode(x[:1], w, x_scale=ONE, w_scale=ONE, config=matmul_decode_configs.ONE_ROW[1])


def test_archs_that_do_not_convert_e4m3_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("matmul_triton", "matmul_decode_triton", "quantise_fp8_triton"):
        monkeypatch.setattr(f"kernels.{module}.target_arch", lambda: 86)
    x, w = fp8(torch.ones(4, 16)), fp8(torch.ones(8, 16))
    refused = "sm_86 converts no float8_e4m3fn, as sm_89"
    with pytest.raises(UnsupportedError, match=refused):
        matmul(x, w.t(), a_scale=ONE, b_scale=ONE)
    with pytest.raises(UnsupportedError, match=refused):
        matmul_decode(x, w, x_scale=ONE, w_scale=ONE)
    with pytest.raises(UnsupportedError, match=refused):
        quantise_fp8(torch.ones(2, 3))


def stored_with(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    stored = quantise_fp8(values, scale=scale)
    assert isinstance(stored, torch.Tensor)
    return stored


def test_k49_values_past_the_largest_are_clamped_and_never_nan() -> None:
    values = torch.tensor([[448.0, 464.0, 1000.0, -1000.0, 0.0]])
    assert stored_with(values, ONE).tolist() == [[448, 448, 448, -448, 0]]


def test_every_e4m3_value_and_every_half_way_between_two_is_rounded_to_even() -> None:
    """The 253 numbers come back, and what lies between neighbours goes to the one of even bits: no two ways to it."""
    bits = torch.tensor([b for b in range(256) if b & 0x7F != 0x7F], dtype=torch.uint8)
    numbers = bits.view(E4M3).float()
    positive = numbers[:127]
    between = (positive[:-1] + positive[1:]) / 2
    even = torch.where(bits[:126] % 2 == 0, positive[:-1], positive[1:])
    row = torch.cat([numbers, between, -between, between * (1 + 2**-12), between * (1 - 2**-12)])
    wanted = torch.cat([numbers, even, -even, positive[1:], positive[:-1]])
    values = torch.cat([row, torch.tensor([448.0])])[None, :]
    for stored in (stored_with(values, ONE), quantise_fp8(values)[0]):
        assert torch.equal(stored.float()[0, :-1], wanted)
    assert torch.equal(quantised(values, ONE, E4M3).float(), stored_with(values, ONE).float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("group", [0, 128])
def test_the_largest_of_what_shares_a_scale_is_stored_as_448(group: int, dtype: torch.dtype) -> None:
    """Rows of largest 7 and 0.5; groups of 128 with the last of 2: scales of a 448th, in the places they are for."""
    x = torch.zeros(3, 258, dtype=dtype)
    x[0, 3], x[0, 200], x[0, 257], x[1, 257] = -7, 3.5, 1.75, 0.5
    stored, scales = quantise_fp8(surrounded(x), group=group)
    of_rows, of_groups = [[7], [0.5], [448]], [[7, 3.5, 1.75], [448, 448, 0.5], [448] * 3]
    wanted = torch.tensor(of_groups if group else of_rows, dtype=torch.float32)
    assert torch.allclose(scales * 448, wanted, rtol=1e-6, atol=0)
    assert stored[0, [3, 200, 257]].tolist() == ([-448, 224, 112] if not group else [-448, 448, 448])
    assert stored[1, 257].item() == 448 and not stored[2].float().any()
    assert scales.stride(0) == 1


@pytest.mark.parametrize("size", [1e-37, 1e-44, 3e38])
@pytest.mark.parametrize("group", [0, 128])
def test_tiny_and_huge_rows_stay_numbers(size: float, group: int) -> None:
    stored, scales = quantise_fp8(torch.tensor([[size, -size, size / 2, 0.0]]), group=group)
    assert stored.float().isfinite().all() and scales.isfinite().all() and (scales > 0).all()
    back = stored.double() * scales.double()
    assert (back - torch.tensor([size, -size, size / 2, 0]).double()).abs().max() <= max(size / 16, 2.0**-126 / 512)


@pytest.mark.parametrize(("M", "K"), list(product((1, 17), (1, 127, 129, 2049))))
def test_ragged_rows_and_groups_are_what_torch_stores(M: int, K: int) -> None:
    """Up to the inverse's rounding: one step of e4m3 in few places."""
    x = torch.randn(M, K, generator=torch.Generator().manual_seed(M * K)).half()
    for group in (0, 128):
        with guard_bands(), poisoned():
            stored, scales = quantise_fp8(x, group=group)
        wanted, wanted_scales = quantise_fp8_torch(x, group=group)
        assert torch.equal(scales, wanted_scales)
        without_sign_of_zero = (found.float().abs().to(E4M3).view(torch.uint8).int() for found in (stored, wanted))
        apart = next(without_sign_of_zero) - next(without_sign_of_zero)
        assert torch.equal(stored.float() < 0, wanted.float() < 0)
        assert apart.abs().max() <= 1 and (apart != 0).float().mean() < 0.02
