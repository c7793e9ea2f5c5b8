"""Device code of kernels whose rows are the query tokens times the query heads of one KV head: their begin and end.

Leaves the walk over keys and the arithmetic of softmax to `kernels.softmax`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.softmax import finished


@triton.jit
def load_packed_rows(
    q, batch, token, head, inside, stride_qb, stride_qs, stride_qh, stride_qd, D: tl.constexpr, WIDTH: tl.constexpr
):
    """q's rows [rows, WIDTH] of one sequence, a token and a head each; zeros where not `inside` and past D."""
    d = tl.arange(0, WIDTH)
    rows = q + batch.to(tl.int64) * stride_qb + token.to(tl.int64) * stride_qs + head.to(tl.int64) * stride_qh
    spots = rows[:, None] + d.to(tl.int64)[None, :] * stride_qd
    return tl.load(spots, mask=inside[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def store_rows(
    acc, m, total, out, lse, partial, partial_lse, batch, token, head, inside, q_len, q_heads, split, splits, any_keys,
    DV: tl.constexpr, WIDTH_V: tl.constexpr, SPLIT: tl.constexpr, LSE: tl.constexpr, value_scale=1.0,
):  # fmt: skip
    """Ends packed rows: into the output, or when SPLIT into a part for `kernels.attention_merge_triton`.

    Rows of all outputs are (batch, token, head), the partials' with the split before the width. What is stored is
    multiplied by `value_scale`.
    """
    result, row_lse = finished(acc, m, total)
    result *= value_scale
    dv = tl.arange(0, WIDTH_V)
    flat = (batch.to(tl.int64) * q_len + token) * q_heads + head
    if SPLIT:
        tl.store(partial_lse + flat * splits + split, row_lse, mask=inside)
        if any_keys:
            spot = partial + (flat * splits + split)[:, None] * DV + dv[None, :]
            tl.store(spot, result, mask=inside[:, None] & (dv < DV)[None, :])
    else:
        spot = out + flat[:, None] * DV + dv[None, :]
        tl.store(spot, result.to(out.dtype.element_ty), mask=inside[:, None] & (dv < DV)[None, :])
        if LSE:
            tl.store(lse + (batch.to(tl.int64) * q_heads + head) * q_len + token, row_lse, mask=inside)
