"""Device code that every attention kernel shares: loads, the online softmax, and the merge of partial results.

Scores are kept in base 2: log2(e) is folded into the scale once, so that a score costs one fused multiply-add and one
exp2. A row that has seen no key has maximum `FLOOR` and sum 0; it ends as 0 with a log-sum-exp of -inf.

An attention sink is a key without a value that comes before all others: it has a weight in the sum and none in the
output, and a row that has seen only it ends as 0 with the sink itself as log-sum-exp.

The maximum need not be the largest score, only near it: what it is cancels out. A lazy walk raises it when a tile's
weights come out large, instead of finding each tile's largest score: on sm_90 that saves a compare for every score and
a multiplication for every accumulator. The first tile always raises it, later ones of usual data hardly ever do.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.stored_values import widened

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
FLOOR = tl.constexpr(-(2.0**126))
"""The maximum of a row that has seen no key: finite, so that a masked score less it is -inf and not NaN, and so low
that the weight of any other score is inf."""
MOST = tl.constexpr(1024.0)
"""A lazy maximum is raised where some weights add up to more; float16 holds such weights, and no sum overflows."""
PARTS = tl.constexpr(8)
"""Columns of lazy sums: a tensor core's result has each thread hold whole ones, so that adding up a tile needs no other
thread; they are joined once, at the end."""
WGMMA_ROWS = tl.constexpr(64)
"""From so many rows on sm_90 multiplies by wgmma, and there ptxas waits for each one in full if addresses are counted
from the tile's start."""


BEND = tl.constexpr(0.625)
"""Up to this a polynomial gives the hyperbolic tangent in float32, to 2 units of its last place (Cephes' tanhf); past
it 1 - 2 / (exp(2 x) + 1) is as good, and near 0 its rounding would be as large as the scores."""


@triton.jit
def load_rows(
    x, batch, start, head, stride_b, stride_s, stride_h, stride_d, rows, width,
    BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr, RANK: tl.constexpr,
    WHOLE: tl.constexpr = False, FROM_START: tl.constexpr = False,
):  # fmt: skip
    """A [BLOCK_ROWS, BLOCK_WIDTH] tile of x[batch, start:, head, :], zero past `rows` and `width`.

    RANK says what x is: 4 a descriptor of [B, S, H, D], 2 one of this batch and head's [S, D], 0 a pointer.
    WHOLE: no row lies past `rows`. FROM_START: count addresses from the tile's first row, so that a
    loop adds one scalar to offsets that stay.
    """
    if RANK == 4:
        tile = x.load([batch, start, head, 0]).reshape([BLOCK_ROWS, BLOCK_WIDTH])
    elif RANK == 2:
        tile = x.load([start, 0])
    else:
        s = start + tl.arange(0, BLOCK_ROWS)
        d = tl.arange(0, BLOCK_WIDTH)
        base = x + batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h
        if FROM_START:
            base += tl.cast(start, tl.int64) * stride_s
            steps = tl.arange(0, BLOCK_ROWS).to(tl.int64)
        else:
            steps = s.to(tl.int64)
        pointers = base + steps[:, None] * stride_s + d.to(tl.int64)[None, :] * stride_d
        if WHOLE and width == BLOCK_WIDTH:
            tile = tl.load(pointers)
        elif WHOLE:
            tile = tl.load(pointers, mask=(d < width)[None, :], other=0.0)
        elif width == BLOCK_WIDTH:
            tile = tl.load(pointers, mask=(s < rows)[:, None], other=0.0)
        else:
            tile = tl.load(pointers, mask=(s < rows)[:, None] & (d < width)[None, :], other=0.0)
    return tile


@triton.jit
def weights_of(qk, m, scale_log2, DTYPE: tl.constexpr, LAZY: tl.constexpr):
    """exp2(qk x scale - m) in DTYPE, and the sums of its rows in float32, when LAZY in PARTS columns."""
    p = tl.exp2(qk * scale_log2 - m[:, None])
    if LAZY:
        sums = tl.sum(p.reshape(qk.shape[0], qk.shape[1] // PARTS, PARTS), 1)
    else:
        sums = tl.sum(p, 1)
    return p.to(DTYPE), sums


@triton.jit
def raise_maximum(acc, qk, m, total, scale_log2, LAZY: tl.constexpr):
    """(acc, m, total) with the maximum at least that of the tile, and what was accumulated before scaled to it."""
    m_new = tl.maximum(m, tl.max(qk, 1) * scale_log2)
    alpha = tl.exp2(m - m_new)
    return acc * alpha[:, None], m_new, total * (alpha[:, None] if LAZY else alpha)


@triton.jit
def no_sums(ROWS: tl.constexpr, LAZY: tl.constexpr):
    """The sums of rows that have seen no key, as `softmax_step` takes them."""
    if LAZY:
        sums = tl.zeros([ROWS, PARTS], tl.float32)
    else:
        sums = tl.zeros([ROWS], tl.float32)
    return sums


@triton.jit
def seen_sink(sink, LAZY: tl.constexpr):
    """(m, total) of rows [rows] that have seen only their sink, a natural logit; -inf is none."""
    m = tl.maximum(sink * LOG2_E, FLOOR)
    total = tl.exp2(sink * LOG2_E - m)
    if LAZY:
        total = total[:, None] + tl.zeros([sink.shape[0], PARTS], tl.float32)
        total = total / PARTS
    return m, total


@triton.jit
def capped(qk, scale_log2, SOFTCAP: tl.constexpr, EXACT: tl.constexpr):
    """SOFTCAP x tanh(raw scores x scale / SOFTCAP) in base 2, of any score: where the exp2 is inf or 0 it is the cap.

    EXACT: to float32's last places; otherwise off by up to 2^-23 of the cap, which no half-precision weight shows.
    """
    bent = 1.0 - 2.0 / (tl.exp2(qk * (scale_log2 * (2.0 / SOFTCAP))) + 1.0)
    if EXACT:
        x = qk * (scale_log2 * (LN_2 / SOFTCAP))
        z = x * x
        series = ((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1
        bent = tl.where(tl.abs(x) < BEND, x + x * z * (series * z - 3.33332819422e-1), bent)
    return bent * (SOFTCAP * LOG2_E)


@triton.jit
def softmax_step(acc, qk, m, total, scale_log2, DTYPE: tl.constexpr, LAZY: tl.constexpr):
    """One step of the online softmax over a tile of raw scores.

    Args:
        acc: [rows, width] float32, weights x values so far; scaled where the maximum rises.
        qk: [rows, keys] float32, -inf where masked.
        m, total: [rows] maximum (base 2) and sums, from `FLOOR` and `no_sums` on.
        scale_log2: softmax scale times log2(e), positive.
        DTYPE: of the weights.
        LAZY: raise the maximum only where a sum of weights passes `MOST`.

    Returns:
        (weights [rows, keys], acc, m, total).
    """
    if LAZY:
        p, sums = weights_of(qk, m, scale_log2, DTYPE, LAZY)
        if tl.max(sums) > MOST:
            acc, m, total = raise_maximum(acc, qk, m, total, scale_log2, LAZY)
            p, sums = weights_of(qk, m, scale_log2, DTYPE, LAZY)
    else:
        acc, m, total = raise_maximum(acc, qk, m, total, scale_log2, LAZY)
        p, sums = weights_of(qk, m, scale_log2, DTYPE, LAZY)
    return p, acc, m, total + sums


@triton.jit
def walk_keys(
    acc, m, total, q, k, v, batch, kv_head, lo, hi, q_positions, kv_len, scale_log2,
    stride_kb, stride_ks, stride_kh, stride_kd, stride_vb, stride_vs, stride_vh, stride_vd,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, RANK: tl.constexpr, WARP_SPECIALIZE: tl.constexpr,
    LAZY: tl.constexpr, SOFTCAP: tl.constexpr = 0, WINDOW: tl.constexpr = False, window=0,
):  # fmt: skip
    """Attends the query rows to keys lo .. hi - 1 in tiles of BLOCK_N, lo a multiple of it from the caller's start.

    Args:
        acc, m, total: accumulated weights x values, maximum and sums of each row; returned updated.
        q: [rows, WIDTH] tile; q_positions [rows] are its places among the keys.
        k, v: as RANK says (see `load_rows`), with the strides that follow; kv_len rows exist.
        LAZY: as of `softmax_step`, and of the `no_sums` that total started as.
        MASKED: whether a tile may hold keys that some row does not see: past hi or, when CAUSAL, past its place, or
            when WINDOW before what its window reaches: its own key and window - 1 before.
        SOFTCAP: of the scores, before the mask; 0 for none.
    """
    for start in tl.range(lo, hi, BLOCK_N, warp_specialize=WARP_SPECIALIZE):
        keys = load_rows(
            k, batch, start, kv_head, stride_kb, stride_ks, stride_kh, stride_kd, kv_len, D, BLOCK_N, WIDTH, RANK,
            not MASKED, LAZY and not MASKED and q.shape[0] < WGMMA_ROWS)
        qk = tl.dot(q, widened(keys, q.dtype).T, input_precision="ieee")
        if SOFTCAP:
            qk = capped(qk, scale_log2, SOFTCAP, q.dtype == tl.float32)
        if MASKED:
            places = start + tl.arange(0, BLOCK_N)
            seen = (places < hi)[None, :]
            if CAUSAL:
                seen = seen & (places[None, :] <= q_positions[:, None])
            if WINDOW:
                seen = seen & (places[None, :] > q_positions[:, None] - window)
            qk = tl.where(seen, qk, float("-inf"))
        values = load_rows(
            v, batch, start, kv_head, stride_vb, stride_vs, stride_vh, stride_vd, kv_len, DV, BLOCK_N, WIDTH_V, RANK,
            not MASKED, LAZY and not MASKED and q.shape[0] < WGMMA_ROWS)
        values = widened(values, q.dtype)
        p, acc, m, total = softmax_step(acc, qk, m, total, 1.0 if SOFTCAP else scale_log2, values.dtype, LAZY)
        acc = tl.dot(p, values, acc, input_precision="ieee")
    return acc, m, total


@triton.jit
def finished(acc, m, total):
    """(output rows, natural log-sum-exp) from the accumulated weights x values, maximum and sums."""
    if len(total.shape) == 2:
        total = tl.sum(total, 1)
    empty = total == 0.0
    out = acc / tl.where(empty, 1.0, total)[:, None]
    lse = tl.where(empty, float("-inf"), (m + tl.log2(tl.where(empty, 1.0, total))) * LN_2)
    return out, lse
