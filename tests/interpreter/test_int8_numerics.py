"""int8 matmuls by the interpreter: exact integers, scales in their places, by every path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from guarded import surrounded
from test_fp8_numerics import all_give

from bench.check import poisoned
from kernels import matmul_configs, matmul_decode_configs
from kernels.matmul_decode_triton import matmul_decode
from kernels.matmul_triton import matmul
from kernels.matmul_w8a8 import scaled_eager, scaled_mm_torch

TILES = (*matmul_configs.INT8, matmul_configs.FP8_POINTERS[0], *matmul_configs.FP8_RAGGED)
FORMS = (
    matmul_decode_configs.FP8_FEW[0],
    matmul_decode_configs.FP8_MANY[0],
    replace(matmul_decode_configs.FP8[0], splits=2),
)
ONE = torch.ones(1, 1)


def ask(
    x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor = ONE, w_scale: torch.Tensor = ONE
) -> dict[str, torch.Tensor]:
    """x @ w^T by every path, eager torch and torch._int_mm, in poisoned memory."""
    able = [c for c in TILES if not (c.descriptors and x.shape[1] % 16)]
    how: dict[str, Any] = {"a_scale": x_scale, "b_scale": w_scale.t()}
    with poisoned():
        answers = {f"matmul {config}": matmul(x, w.t(), config=config, **how) for config in (None, *able)}
        for form in (None, *FORMS):
            answers[f"few rows {form}"] = matmul_decode(x, w, x_scale=x_scale, w_scale=w_scale, config=form)
        answers["eager"] = scaled_eager(x, x_scale, w, w_scale)
    if x.shape[1] % 8 == 0:  # of K = 1 torch 2.13 returns what its output held before
        answers["torch"] = scaled_mm_torch(x.contiguous(), x_scale, w.contiguous(), w_scale)
    assert all(out.dtype == torch.bfloat16 for out in answers.values())
    return answers


@pytest.mark.parametrize(("M", "N", "K"), [(33, 17, 31), (5, 3, 1), (1, 8, 1008), (20, 40, 144)])
def test_k01_ones_give_k_where_k_is_no_multiple_of_a_tile(M: int, N: int, K: int) -> None:
    x, w = torch.ones(M, K, dtype=torch.int8), torch.ones(N, K, dtype=torch.int8)
    all_give(ask(x, w), torch.tensor(float(K)))


def test_sums_past_what_float32_holds_are_exact() -> None:
    """1,500 products of 127 x 127 are 24,193,500, past 2^24, between which float32 has even numbers alone: it loses
    odd ones on the way. All are taken away again but for 127 x 2. (Split sums are float32 once each, here even.)"""
    K = 3008
    x, w = torch.full((3, K), 127, dtype=torch.int8), torch.zeros(8, K, dtype=torch.int8)
    w[:, :1500], w[:, 1500:3000], w[:, 3007] = 127, -127, 2
    all_give(ask(x, w), torch.tensor(254.0))


def test_the_least_int8_is_multiplied_as_it_is() -> None:
    """-128 x -128 x 16 = 2^18; -128 x 127 x 16 = -260,096, a bfloat16 number."""
    x = torch.full((2, 16), -128, dtype=torch.int8)
    all_give(ask(x, x.new_full((8, 16), -128)), torch.tensor(2.0**18))
    all_give(ask(x, x.new_full((8, 16), 127)), torch.tensor(-260_096.0))


@pytest.mark.parametrize("K", [64, 77])
def test_each_row_and_each_column_has_its_own_scale(K: int) -> None:
    M, N = 20, 40
    rows, columns = 2.0 ** -(torch.arange(M) % 5), 2.0 ** (torch.arange(N) % 3)
    x, w = torch.ones(M, K, dtype=torch.int8), torch.ones(N, K, dtype=torch.int8)
    all_give(ask(x, w, rows[:, None], columns[:, None]), K * rows[:, None] * columns[None, :])
    all_give(ask(x, w, rows[:, None], torch.tensor([[0.5]])), K * rows[:, None] / 2)


def test_strided_operands_give_what_contiguous_ones_give() -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randint(-2, 3, (9, 48), generator=draw, dtype=torch.int8)
    w = torch.randint(-2, 3, (24, 48), generator=draw, dtype=torch.int8)
    wanted = (x.long() @ w.long().t()).float()
    assert wanted.abs().max() <= 256, "bfloat16 numbers"
    all_give(ask(surrounded(x, 16), surrounded(w, 16)), wanted)
    all_give({"fast M": matmul(x.t().contiguous().t(), w.t(), a_scale=ONE, b_scale=ONE)}, wanted)


def test_scales_of_blocks_and_missing_scales_are_refused() -> None:
    x = torch.ones(4, 256, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"wanted scales \[1 or 4, 1\] and \[1 or 4, 1\] of int8"):
        matmul_decode(x, x, x_scale=torch.ones(4, 2), w_scale=torch.ones(1, 2))
    with pytest.raises(ValueError, match="operands need"):
        matmul(x, x.t())
