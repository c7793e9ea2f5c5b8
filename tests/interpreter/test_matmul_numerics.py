"""The Triton matmuls by the interpreter against independent truth: values worked by hand, loops, and the error rule.

Every path answers each question: by host and device descriptors, by pointers, and for few rows each form of
matmul_decode, with K whole and shared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from guarded import guard_bands, surrounded
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import only_programs
from test_op_numerics import by_loops, draw

from bench.check import judge, poisoned
from kernels import matmul as matmul_op
from kernels import matmul_configs as tiles
from kernels import matmul_decode as decode_op
from kernels import matmul_decode_configs as forms
from kernels import matmul_decode_triton as decode
from kernels import matmul_triton as matmul
from kernels.matmul_problem import path_for

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
TILES = (
    tiles.HOPPER[0],
    next(config for config in tiles.HOPPER if config.warp_specialize),
    replace(tiles.HOPPER[0], descriptors="host"),
    *tiles.HOPPER[-2:],
    tiles.POINTERS[1],
    tiles.OLDER_RAGGED[0],
    tiles.EXACT[0],
    tiles.EXACT_RAGGED[0],
)
FORMS = (
    forms.Config(form="tile", block_n=64, block_k=128),
    forms.Config(form="swap", block_n=64, block_k=64),
    forms.Config(form="tile", block_n=32, block_k=64, splits=3),
    forms.Config(form="swap", block_n=128, block_k=64, splits=5),
    forms.Config(form="gemv", block_n=8, block_k=1024),
    forms.Config(form="gemv", block_n=16, block_k=512, splits=2),
)
DTYPES = (torch.float16, torch.float32)


def paths(a: torch.Tensor, b: torch.Tensor) -> dict[str, Multiply]:
    """Every way to multiply a [M, K] by b [K, N]."""
    refused = path_for(a, b, 90, False)
    able = [config for config in TILES if not (refused and config.descriptors)]
    ways: dict[str, Multiply] = {"matmul": matmul.matmul}
    ways |= {f"matmul {config}": partial(matmul.matmul, config=config) for config in able}
    if a.shape[0] <= forms.MOST_ROWS:
        asked = [None, *(config for config in FORMS if config.form != "gemv" or a.shape[0] == 1)]
        ways |= {f"matmul_decode {config}": partial(few_rows, config=config) for config in asked}
    return ways


def few_rows(a: torch.Tensor, b: torch.Tensor, *, config: forms.Config | None) -> torch.Tensor:
    """matmul_decode with the weights as matmul takes them."""
    return decode.matmul_decode(a, b.t(), config=config)


def ask(a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
    """The product by every path, in poisoned memory."""
    with poisoned():
        return {who: multiply(a, b) for who, multiply in paths(a, b).items()}


def all_equal(answers: dict[str, torch.Tensor], value: float) -> None:
    assert answers
    for who, out in answers.items():
        assert (out == value).all(), f"{who}: {out.flatten()[:5].tolist()}, wanted {value} everywhere"


def agree(answers: dict[str, torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> None:
    """Each answer passes the error rule, with plain torch as yardstick."""
    truth, eager = matmul_op.OP.reference(a, b), matmul_op.OP.eager(a, b)
    for who, out in answers.items():
        verdict = judge((out,), (eager,), (truth,))
        assert not verdict.problem, (who, verdict)


def ones(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return surrounded(torch.ones(rows, columns, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "N", "K"), [(33, 17, 31), (5, 3, 1), (1, 8, 1001)])
def test_k01_ones_give_k_exactly_where_k_is_no_multiple_of_a_tile(dtype: torch.dtype, M: int, N: int, K: int) -> None:
    all_equal(ask(ones(M, K, dtype), ones(N, K, dtype).t()), K)


def test_k01_a_thousand_rows_of_ones_give_k_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 whole; float16, which the interpreter multiplies slowly, by the ragged corner."""
    whole = replace(tiles.EXACT[0], block_m=256, block_n=256, block_k=256)
    a, b = torch.ones(1000, 1001), torch.ones(999, 1001).t()
    all_equal({"matmul": matmul.matmul(a, b, config=whole)}, 1001)
    monkeypatch.setattr(matmul, "sm_count", lambda: 64)
    with only_programs(-1) as grids:
        out = matmul.matmul(a.half(), b.half(), config=tiles.POINTERS[0])
    assert grids == [(64,)]
    all_equal({"corner": out[896:, 896:]}, 1001)


def test_k01_random_inputs_are_within_a_hundredth_of_float32() -> None:
    a, b = draw(1, 60, 1001).half(), draw(2, 70, 1001).half().t()
    expected = a.numpy().astype(np.float32) @ b.numpy().astype(np.float32)
    for who, out in ask(a, b).items():
        np.testing.assert_allclose(out.float().numpy(), expected, rtol=1e-2, atol=1e-2 * expected.std(), err_msg=who)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("M", [1, 2, 7, 15, 17])
def test_k04_rows_and_columns_below_a_tensor_core_tile(M: int, dtype: torch.dtype) -> None:
    all_equal(ask(ones(M, 16, dtype), ones(8, 16, dtype).t()), 16)
    a, b = draw(M, M, 16).to(dtype), draw(M + 50, 8, 16).to(dtype).t()
    tolerance = 1e-5 if dtype == torch.float32 else 4e-3
    for who, out in ask(a, b).items():
        np.testing.assert_allclose(out.double().numpy(), by_loops(a, b), rtol=tolerance, atol=tolerance, err_msg=who)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 17, 48])
def test_k53_sizes_of_one_tile_and_not(size: int, dtype: torch.dtype) -> None:
    a, b = draw(size, size, size).to(dtype), draw(size + 50, size, size).to(dtype).t()
    tolerance = 1e-5 if dtype == torch.float32 else 4e-3
    for who, out in ask(a, b).items():
        np.testing.assert_allclose(out.double().numpy(), by_loops(a, b), rtol=tolerance, atol=tolerance, err_msg=who)


@pytest.mark.parametrize("M", [1, 3])
def test_k45_float32_is_not_tf32(M: int) -> None:
    """TF32 keeps 10 bits after the point and makes 1 + 2^-12 one."""
    all_equal(ask(torch.full((M, 1), 1 + 2.0**-12), torch.ones(1, 5)), 1.000244140625)


@pytest.mark.parametrize("M", [1, 4])
def test_k47_the_first_call_is_as_right_as_the_second(M: int) -> None:
    x, w = ones(M, 64, torch.float16), ones(9, 64, torch.float16)
    all_equal(ask(x, w.t()), 64)
    for form in ("tile", "swap", "gemv")[: 3 if M == 1 else 2]:
        shared = forms.Config(form=form, block_n=16, block_k=16, splits=4)
        all_equal({f"{form}, call {call}": decode.matmul_decode(x, w, config=shared) for call in (1, 2)}, 64)
    a, b = draw(1, M, 700).half(), draw(2, 9, 700).half().t()
    first, second = ask(a, b), ask(a, b)
    assert all(torch.equal(first[who], second[who]) for who in first)


@pytest.mark.parametrize("M", [1, 2])
def test_sums_past_the_range_and_the_precision_of_float16_are_kept_in_float32(M: int) -> None:
    """4 x 60,000 passes 65,504 before -4 x 60,000 and 5 follow; 2048 + 1 is 2048 in float16, 4097 ones are 4096."""
    a = torch.zeros(M, 1000).half()
    a[:, :4], a[:, 700:704], a[:, 999] = 60000, -60000, 5
    all_equal(ask(a, torch.ones(9, 1000).half().t()), 5)
    all_equal(ask(torch.ones(M, 4097).half(), torch.ones(9, 4097).half().t()), 4096)


@pytest.mark.parametrize("M", [1, 2])
def test_the_smallest_float16_numbers_are_not_flushed(M: int) -> None:
    """2^-14 x 2^-10 = 2^-24 is the smallest there is, and 2^-24 x 1 is it again."""
    all_equal(ask(torch.full((M, 1), 2.0**-14).half(), torch.full((1, 8), 2.0**-10).half()), 2.0**-24)
    all_equal(ask(torch.full((M, 1), 2.0**-24).half(), torch.ones(1, 8).half()), 2.0**-24)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_and_nan_stay_in_their_row_and_column(dtype: torch.dtype) -> None:
    a, b = torch.ones(6, 37, dtype=dtype), torch.ones(24, 37, dtype=dtype)
    a[2, 5], a[4, 36], b[7, 0] = math.inf, math.nan, math.nan
    expected = torch.full((6, 24), 37.0, dtype=dtype)
    expected[2], expected[4], expected[:, 7] = math.inf, math.nan, math.nan
    for who, out in ask(surrounded(a), surrounded(b).t()).items():
        np.testing.assert_array_equal(out.numpy(), expected.numpy(), err_msg=who)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["n fast", "every other row", "m fast", "one row repeated", "odd start"])
def test_strided_inputs_give_what_contiguous_ones_give(layout: str, dtype: torch.dtype) -> None:
    a, b = draw(1, 9, 72).to(dtype), draw(2, 40, 72).to(dtype).t()
    if layout == "n fast":
        b = b.contiguous()
    elif layout == "every other row":
        a, b = draw(1, 18, 72).to(dtype)[::2], draw(2, 80, 72).to(dtype)[::2].t()
    elif layout == "m fast":
        a = a.t().contiguous().t()
    elif layout == "one row repeated":
        a, b = a[:1].expand(9, 72), b[:, :1].expand(72, 40)
    else:
        a, b = draw(1, 9, 73).to(dtype)[:, 1:], draw(2, 2881).to(dtype)[1:].view(40, 72).t()
    agree(ask(a, b), a, b)


@pytest.mark.parametrize(("M", "N", "K"), [(0, 8, 16), (4, 0, 16), (4, 8, 0), (0, 0, 0), (1, 8, 0)])
def test_empty_dimensions_give_an_empty_product_or_zeros(M: int, N: int, K: int) -> None:
    for dtype in DTYPES:
        answers = ask(torch.ones(M, K, dtype=dtype), torch.ones(N, K, dtype=dtype).t())
        assert {out.shape for out in answers.values()} == {(M, N)}
        all_equal(answers, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "N", "K"), [(1, 31, 129), (5, 40, 72), (64, 129, 65), (70, 264, 72), (130, 36, 40)])
def test_guard_bands_stay_and_all_of_the_output_is_written(M: int, N: int, K: int, dtype: torch.dtype) -> None:
    a, b = surrounded(draw(1, M, K).to(dtype)), surrounded(draw(2, N, K).to(dtype)).t()
    with guard_bands() as given:
        answers = {who: multiply(a, b) for who, multiply in paths(a, b).items()}
    assert len(given) >= len(answers)
    agree(answers, a, b)


@pytest.mark.parametrize("op", [matmul_op.OP, decode_op.OP], ids=lambda op: op.name)
def test_every_tile_of_a_persistent_walk_and_every_split_is_right(op: object) -> None:
    """Groups of 8 tile rows and a ragged last group; splits up to more than there are steps of K."""
    if op is matmul_op.OP:
        config = replace(tiles.POINTERS[1], block_m=16, block_n=16, group_m=3)
        for M, N in ((16 * 7 + 3, 40), (16, 100), (16 * 3, 16)):
            a, b = draw(1, M, 40).half(), draw(2, 40, N).half()
            agree({"walk": matmul.matmul(a, b, config=config)}, a, b)
    else:
        a, b = draw(1, 3, 300).half(), draw(2, 50, 300).half().t()
        for form in FORMS[:2]:
            for splits in range(1, 9):
                split = replace(form, splits=splits)
                agree({str(split): decode.matmul_decode(a, b.t(), config=split)}, a, b)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(1, 140), st.integers(1, 140), st.integers(1, 300), st.sampled_from(DTYPES), st.sampled_from((3, 8)))
def test_any_shape_passes_the_error_rule(M: int, N: int, K: int, dtype: torch.dtype, slack: int) -> None:
    a, b = surrounded(draw(K, M, K).to(dtype), slack), surrounded(draw(K + 1, N, K).to(dtype), slack).t()
    agree({"matmul": matmul.matmul(a, b)}, a, b)
    if M <= forms.MOST_ROWS:
        agree({"matmul_decode": decode.matmul_decode(a, b.t())}, a, b)
        agree({"shared": decode.matmul_decode(a, b.t(), config=replace(FORMS[M % 2], splits=4))}, a, b)
