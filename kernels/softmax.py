"""Device code that every attention kernel shares: loads, the online softmax, and the merge of partial results.

Scores are kept in base 2: log2(e) is folded into the scale once, so that a score costs one fused multiply-add and one
exp2. A row that has seen no key has maximum -inf and sum 0; it ends as 0 with a log-sum-exp of -inf.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def load_rows(
    x, batch, start, head, stride_b, stride_s, stride_h, stride_d, rows, width,
    BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """A [BLOCK_ROWS, BLOCK_WIDTH] tile of x[batch, start:, head, :], zero past `rows` and `width`.

    RANK says what x is: 4 a descriptor of [B, S, H, D], 2 one of this batch and head's [S, D], 0 a pointer.
    """
    if RANK == 4:
        tile = x.load([batch, start, head, 0]).reshape([BLOCK_ROWS, BLOCK_WIDTH])
    elif RANK == 2:
        tile = x.load([start, 0])
    else:
        s = start + tl.arange(0, BLOCK_ROWS)
        d = tl.arange(0, BLOCK_WIDTH)
        base = x + batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h
        pointers = base + s.to(tl.int64)[:, None] * stride_s + d.to(tl.int64)[None, :] * stride_d
        if width == BLOCK_WIDTH:
            tile = tl.load(pointers, mask=(s < rows)[:, None], other=0.0)
        else:
            tile = tl.load(pointers, mask=(s < rows)[:, None] & (d < width)[None, :], other=0.0)
    return tile


@triton.jit
def softmax_step(qk, m, total, scale_log2, GUARDED: tl.constexpr):
    """One step of the online softmax over a tile of raw scores.

    Args:
        qk: [rows, keys] float32, -inf where masked.
        m, total: [rows] running maximum (base 2) and sum.
        scale_log2: softmax scale times log2(e), positive.
        GUARDED: rows may have no visible key yet.

    Returns:
        (weights [rows, keys], new maximum, new sum, factor for what was accumulated before).
    """
    m_new = tl.maximum(m, tl.max(qk, 1) * scale_log2)
    shift = tl.where(m_new == float("-inf"), 0.0, m_new) if GUARDED else m_new
    p = tl.exp2(qk * scale_log2 - shift[:, None])
    alpha = tl.exp2(m - shift)
    return p, m_new, total * alpha + tl.sum(p, 1), alpha


@triton.jit
def walk_keys(
    acc, m, total, q, k, v, batch, kv_head, lo, hi, q_positions, kv_len, scale_log2,
    stride_kb, stride_ks, stride_kh, stride_kd, stride_vb, stride_vs, stride_vh, stride_vd,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, RANK: tl.constexpr, WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """Attends the query rows to keys lo .. hi - 1 in tiles of BLOCK_N, lo a multiple of it from the caller's start.

    Args:
        acc, m, total: accumulated weights x values, maximum and sum of each row; returned updated.
        q: [rows, WIDTH] tile; q_positions [rows] are its places among the keys.
        k, v: as RANK says (see `load_rows`), with the strides that follow; kv_len rows exist.
        MASKED: whether a tile may hold keys that some row does not see: past hi or, when CAUSAL, past its place.
    """
    for start in tl.range(lo, hi, BLOCK_N, warp_specialize=WARP_SPECIALIZE):
        keys = load_rows(
            k, batch, start, kv_head, stride_kb, stride_ks, stride_kh, stride_kd, kv_len, D, BLOCK_N, WIDTH, RANK
        )
        qk = tl.dot(q, keys.T, input_precision="ieee")
        if MASKED:
            places = start + tl.arange(0, BLOCK_N)
            seen = (places < hi)[None, :]
            if CAUSAL:
                seen = seen & (places[None, :] <= q_positions[:, None])
            qk = tl.where(seen, qk, float("-inf"))
        p, m, total, alpha = softmax_step(qk, m, total, scale_log2, MASKED)
        values = load_rows(
            v, batch, start, kv_head, stride_vb, stride_vs, stride_vh, stride_vd, kv_len, DV, BLOCK_N, WIDTH_V, RANK)
        acc = tl.dot(p.to(values.dtype), values, acc * alpha[:, None], input_precision="ieee")
    return acc, m, total


@triton.jit
def finished(acc, m, total):
    """(output rows, natural log-sum-exp) from the accumulated weights x values, maximum and sum."""
    empty = total == 0.0
    out = acc / tl.where(empty, 1.0, total)[:, None]
    lse = tl.where(empty, float("-inf"), (m + tl.log2(tl.where(empty, 1.0, total))) * LN_2)
    return out, lse
