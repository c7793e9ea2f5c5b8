"""Matmuls with stored weights by the interpreter: every value in every place, scales and zero points in theirs.

Every path answers: nibbles unrolled and in a loop, K whole and shared, 8 bits.
"""

from __future__ import annotations

import pytest
import torch
from guarded import guard_bands, surrounded

from bench.check import poisoned
from kernels.matmul_weight_only_triton import Config, matmul_weight_only
from kernels.quantisation import packed_nibbles
from kernels.spec import UnsupportedError

FORMS = (
    None,
    Config(block_m=16, block_n=64, splits=1),
    Config(block_m=16, block_n=32, splits=2),
    Config(block_m=32, block_n=64, splits=1),
    Config(block_m=64, block_n=32, splits=3),
)
"""Of them the first three unroll nibbles, where M is up to 16, and the last two walk over them."""
GROUPS = (32, 64, 128)


def half(values: torch.Tensor) -> torch.Tensor:
    """Values that float16 holds exactly, with NaN between rows and past the last."""
    stored = values.half()
    assert torch.equal(stored.double(), values.double())
    return surrounded(stored)


def ask(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor, **stored: object) -> dict[str, torch.Tensor]:
    """x times stored weights by every path, in poisoned memory."""
    scales = scales.half() if "w_zero" in stored else half(scales)
    with poisoned():
        return {
            str(form): matmul_weight_only(half(x), w, w_scale=scales, config=form, **stored)  # type: ignore[arg-type]
            for form in FORMS
        }


def all_give(answers: dict[str, torch.Tensor], wanted: torch.Tensor) -> None:
    for who, out in answers.items():
        assert torch.equal(out.double(), wanted.double().expand(out.shape)), who


def nibbles(N: int, K: int, least: int) -> torch.Tensor:
    """All 16 values in every place of a word over 17 columns."""
    return ((torch.arange(N)[:, None] * 5 + torch.arange(K) * 3 + torch.arange(K) // 32) % 16 + least).to(torch.int8)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("K", [512, 300, 77])
def test_each_weight_meets_its_own_place_of_x(K: int, group: int) -> None:
    """Rows of the identity give each place of K alone: the stored nibbles themselves."""
    stored, ones = nibbles(35, K, -8), torch.ones(-(-K // group), 35)
    places = torch.arange(0, K, 7)
    all_give(ask(torch.eye(K)[places], packed_nibbles(stored, group), ones, group=group), stored.t()[places])


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("K", [512, 300])
def test_each_group_of_each_column_has_its_own_scale_and_zero_point(K: int, group: int) -> None:
    N, groups = 35, -(-K // group)
    stored = nibbles(N, K, 0)
    zeros = ((torch.arange(groups)[:, None] * 5 + torch.arange(N)) % 16).to(torch.uint8)
    scales = 2.0 ** ((torch.arange(groups)[:, None] + torch.arange(N)) % 4 - 2)
    per_place = [t.t().repeat_interleave(group, 1)[:, :K].double() for t in (zeros, scales)]
    weights = (stored.double() - per_place[0]) * per_place[1]
    places = torch.arange(3, K, 11)
    answers = ask(torch.eye(K)[places], packed_nibbles(stored, group), scales, w_zero=zeros, group=group)
    all_give(answers, weights.t()[places])


@pytest.mark.parametrize(("M", "N", "K"), [(3, 7, 64), (1, 1, 8)])
def test_k51_irregular_columns_of_ones_give_k(M: int, N: int, K: int) -> None:
    """Nibbles of 1, and of 9 with a zero point of 8, which is 1 too."""
    x, ones = torch.ones(M, K), torch.ones(-(-K // 32), N)
    all_give(ask(x, packed_nibbles(torch.full((N, K), 1, dtype=torch.int8), 32), ones, group=32), torch.tensor(K))
    above = torch.full((-(-K // 32), N), 8, dtype=torch.uint8)
    nine = packed_nibbles(torch.full((N, K), 9, dtype=torch.int8), 32)
    all_give(ask(x, nine, ones, w_zero=above, group=32), torch.tensor(K))


@pytest.mark.parametrize("M", [1, 2, 7, 15, 17])
def test_k04_rows_below_and_above_a_tensor_core_tile(M: int) -> None:
    """Rows of 0 to 6 ones: as many times the column's nibble, negative ones of two's complement too."""
    K, stored = 96, (torch.arange(16) - 8).to(torch.int8)[:, None].expand(16, 96)
    x = (torch.arange(K)[None, :] < torch.arange(M)[:, None] % 7).float()
    wanted = (torch.arange(M) % 7)[:, None] * (torch.arange(16) - 8)[None, :]
    all_give(ask(x, packed_nibbles(stored, 32), torch.ones(3, 16), group=32), wanted)


def test_every_value_of_8_bits_is_widened_exactly() -> None:
    """int8 from -128 to 127 and the 253 numbers of e4m3, each in a place of its own, times its column's scale."""
    columns = 2.0 ** (torch.arange(3) - 1)
    e4m3 = torch.tensor([b for b in range(256) if b & 0x7F not in (0x7F, 0)], dtype=torch.uint8)
    for row in (torch.arange(-128, 128).to(torch.int8), e4m3.view(torch.float8_e4m3fn)):
        weights = row.view(torch.uint8).expand(3, -1).contiguous().view(row.dtype)
        answers = ask(torch.eye(len(row))[::5], weights, columns[None, :])
        all_give(answers, row.double()[::5, None] * columns.double())


def test_sums_of_many_products_are_those_of_float64() -> None:
    x = torch.randn(5, 1100, generator=torch.Generator().manual_seed(1)).half()
    stored, scales = nibbles(40, 1100, -8), torch.full((9, 40), 0.125)
    wanted = x.double() @ stored.double().t() / 8
    for out in ask(x, packed_nibbles(stored, 128), scales, group=128).values():
        assert (out.double() - wanted).abs().max() <= 2**-10 * wanted.abs().max()


def test_guard_bands_of_the_output_stay() -> None:
    with guard_bands() as given:
        w = packed_nibbles(torch.ones(35, 96, dtype=torch.int8), 32)
        for form in FORMS:
            out = matmul_weight_only(
                torch.ones(5, 96).half(), w, w_scale=torch.ones(3, 35).half(), group=32, config=form
            )
            assert (out == 96).all()
    assert len(given) >= len(FORMS)


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.ones(4, 96).half(), packed_nibbles(torch.ones(8, 96, dtype=torch.int8), 32)
    scales, zeros = torch.ones(3, 8).half(), torch.zeros(3, 8, dtype=torch.uint8)
    for wrong, reason in (
        ({"group": 16}, "nibbles come in groups"),
        ({"group": 64}, r"wanted w \[N, 64\]"),
        ({"w_scale": scales[:2]}, r"w_scale \[3, 8\]"),
        ({"w_scale": scales.float()}, "of x's dtype"),
        ({"w_zero": zeros.to(torch.int8)}, "zero points go with nibbles"),
        ({"w": w.view(torch.uint8)}, "wanted weights int32"),
        ({"x": x.float()}, "wanted x"),
    ):
        asked = {"x": x, "w": w, "w_scale": scales, "group": 32, **wrong}
        with pytest.raises(ValueError, match=reason):
            matmul_weight_only(**asked)  # type: ignore[arg-type]
    monkeypatch.setattr("kernels.matmul_weight_only_triton.target_arch", lambda: 86)
    with pytest.raises(UnsupportedError, match="sm_86 converts no float8_e4m3fn"):
        matmul_weight_only(x, torch.ones(8, 96).to(torch.float8_e4m3fn), w_scale=torch.ones(1, 8).half())
