"""Device code of scaled products: float32 accumulators times the scales of operands stored in 8 bits.

Scales of whole rows and columns leave the sum and are multiplied once; those of blocks along K are multiplied step by
step, which is why such a sum is in float32 registers by construction.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

ROWS, BLOCKS = 1, 2
"""How a kernel scales (0: not at all): each row and each column once, or each step of K."""
BLOCK = tl.constexpr(128)
"""Places of K, and of N, that share a scale of weights."""


def scaling_of(x: torch.Tensor, x_scale: torch.Tensor | None, w: torch.Tensor, w_scale: torch.Tensor | None) -> int:
    """0, ROWS or BLOCKS, by the shapes of the scales of x [M, K] and w [N, K].

    Raises:
        ValueError: scales that are not float32, or fit no granularity.
    """
    if x_scale is None or w_scale is None:
        if x_scale is not w_scale or x.element_size() == 1:
            raise ValueError(
                f"{x.dtype} operands need {'both or neither of' if x.element_size() > 1 else ''} two scales"
            )
        return 0
    (M, K), N = x.shape, w.shape[0]
    if x_scale.dtype != torch.float32 or w_scale.dtype != torch.float32:
        raise ValueError(f"wanted scales of float32, got {x_scale.dtype} and {w_scale.dtype}")
    shapes = tuple(x_scale.shape), tuple(w_scale.shape)
    if shapes[0] in ((1, 1), (M, 1)) and shapes[1] in ((1, 1), (N, 1)):
        return ROWS
    if x.dtype == torch.int8:
        raise ValueError(f"wanted scales [1 or {M}, 1] and [1 or {N}, 1] of int8, got {shapes}")
    steps = triton.cdiv(K, BLOCK.value)
    wanted = (M, steps), (triton.cdiv(N, BLOCK.value), steps)
    if shapes != wanted:
        raise ValueError(f"wanted scales [1 or {M}, 1] and [1 or {N}, 1], or {wanted[0]} and {wanted[1]}, got {shapes}")
    return BLOCKS


def promotes(dtype: torch.dtype, scaling: int, fast: bool) -> bool:
    """Whether each step of K is added in registers: int8 sums are exact where they are."""
    return scaling == BLOCKS or (scaling == ROWS and dtype != torch.int8 and not fast)


def sum_dtype(dtype: torch.dtype) -> tl.dtype:
    """What products of operands of a dtype are added in."""
    return tl.int32 if dtype == torch.int8 else tl.float32


def scale_strides(scale: torch.Tensor | None) -> tuple[int, int]:
    """Of scales by place and by step of K; 0 where one is for all."""
    if scale is None:
        return 0, 0
    place, step = (0 if size == 1 else stride for size, stride in zip(scale.shape, scale.stride(), strict=True))
    return place, step


@triton.jit
def scaled(acc, row_scales, column_scales, rows, columns, R, C, stride_r, stride_c):
    """acc [rows, columns] of a matrix [R, C] in float32, times the scale of each row and of each column."""
    left = tl.load(row_scales + rows.to(tl.int64) * stride_r, mask=rows < R, other=0.0)
    right = tl.load(column_scales + columns.to(tl.int64) * stride_c, mask=columns < C, other=0.0)
    return acc.to(tl.float32) * left[:, None] * right[None, :]


@triton.jit
def block_scales(x_scale, w_scale, ms, n, k, M, stride_xm, stride_xk, stride_wn, stride_wk):
    """[rows of x]: scales of the products of x's rows `ms` and weights `n` onwards, none past its block, at depth k."""
    step = tl.cast(k // BLOCK, tl.int64)
    of_rows = tl.load(x_scale + ms.to(tl.int64) * stride_xm + step * stride_xk, mask=ms < M, other=0.0)
    return of_rows * tl.load(w_scale + tl.cast(n // BLOCK, tl.int64) * stride_wn + step * stride_wk)
