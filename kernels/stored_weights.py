"""Device code of matmuls whose weights are stored in 4 bits: widened, exactly, in registers.

A nibble is put under an exponent with logic alone (float16 1024 + nibble, bfloat16 128 + nibble) and the offset is
subtracted. Walks are over words as `kernels.quantisation.packed_nibbles` makes them: nibble i of all words of a step is
one tile of weights, so that none has to change its place. Weights of 8 bits are left to `kernels.stored_values`.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAGIC_HALF, MAGIC_BFLOAT = tl.constexpr(0x6400), tl.constexpr(0x4300)
"""The float16 1024 and bfloat16 128, whose last four bits are free for a nibble; exclusive-or with 8 makes one in two's
complement unsigned, 8 more."""
TWICE = tl.constexpr(0x00010001)
"""Times it, 16 bits are both halves of a word."""


@triton.jit
def nibble(words, place, SIGNED: tl.constexpr, DTYPE: tl.constexpr):
    """Nibble `place` of each word as the low half of one: 1024 (bfloat16: 128) + value, + 8 where SIGNED."""
    magic: tl.constexpr = (MAGIC_HALF if tl.float16 == DTYPE else MAGIC_BFLOAT) ^ (8 if SIGNED else 0)
    return ((words >> (4 * place)) & 15) ^ magic


@triton.jit
def unrolled_nibble(words, PLACE: tl.constexpr, SIGNED: tl.constexpr, DTYPE: tl.constexpr):
    """The same of a place that is known: both halves of a word at once, which places that are 4 apart share."""
    magic: tl.constexpr = (MAGIC_HALF if tl.float16 == DTYPE else MAGIC_BFLOAT) ^ (8 if SIGNED else 0)
    pair = ((words >> (4 * (PLACE % 4))) & (15 * TWICE)) ^ (magic * TWICE)
    if PLACE >= 4:
        pair = pair >> 16
    return pair


@triton.jit
def values(halves, zeros, SIGNED: tl.constexpr, DTYPE: tl.constexpr):
    """What `nibble` made of words [columns, words] in DTYPE, less its column's zero point where not SIGNED."""
    above = halves.to(tl.uint16).to(DTYPE, bitcast=True)
    if SIGNED:
        less = above - (1032.0 if tl.float16 == DTYPE else 136.0)
    else:
        magic: tl.constexpr = MAGIC_HALF if tl.float16 == DTYPE else MAGIC_BFLOAT
        less = above - (zeros.to(tl.uint16) | magic).to(tl.uint16).to(DTYPE, bitcast=True)[:, None]
    return less.to(DTYPE)


@triton.jit
def load_x(x_rows, k, stride_xk, inside, K, WIDTH: tl.constexpr, EVEN_K: tl.constexpr):
    """WIDTH places of rows from depth k on, zeros past K."""
    ks = k + tl.arange(0, WIDTH)
    places = x_rows + ks.to(tl.int64)[None, :] * stride_xk
    if EVEN_K:
        tile = tl.load(places, mask=inside, other=0.0)
    else:
        tile = tl.load(places, mask=inside & (ks < K)[None, :], other=0.0)
    return tile


@triton.jit
def of_group(scales, zeros, k, columns, N, K, stride_sg, GROUP: tl.constexpr, SIGNED: tl.constexpr):
    """(scales, zero points) of columns at depth k; past K none are read."""
    places = tl.cast(k // GROUP, tl.int64) * stride_sg + columns
    there = (columns < N) & (k < K)
    scale = tl.load(scales + places, mask=there, other=0.0)
    zero = columns
    if not SIGNED:
        zero = tl.load(zeros + places, mask=there, other=0)
    return scale, zero


@triton.jit
def nibble_step(
    acc, x_rows, words, scales, zeros, k, columns, inside, N, K, stride_xk, stride_sg,
    GROUP: tl.constexpr, WORDS: tl.constexpr, SIGNED: tl.constexpr, DTYPE: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """acc and the products of 8 WORDS places from k on: those that share scales added up before they are scaled."""
    tiles: tl.constexpr = GROUP // WORDS
    for part in tl.static_range(8 // tiles):
        scale, zero = of_group(scales, zeros, k + part * GROUP, columns, N, K, stride_sg, GROUP, SIGNED)
        product = tl.zeros(acc.shape, tl.float32)
        for tile in tl.static_range(tiles):
            x = load_x(x_rows, k + (part * tiles + tile) * WORDS, stride_xk, inside, K, WORDS, EVEN_K)
            halves = unrolled_nibble(words, part * tiles + tile, SIGNED, DTYPE)
            product = tl.dot(x, values(halves, zero, SIGNED, DTYPE).T, product)
        acc += product * scale.to(tl.float32)[None, :]
    return acc


@triton.jit
def nibble_loop(
    acc, x_rows, w_rows, scales, zeros, lo, hi, columns, inside, w_inside, N, K, stride_xk, stride_sg,
    GROUP: tl.constexpr, WORDS: tl.constexpr, SIGNED: tl.constexpr, DTYPE: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """acc and the products of all places from lo to hi; words, scales and zero points are read one turn ahead."""
    js = tl.arange(0, WORDS)
    ahead = tl.load(w_rows + (lo // 8 + js)[None, :], mask=w_inside & (lo < hi), other=0)
    next_scale, next_zero = of_group(scales, zeros, lo, columns, N, K, stride_sg, GROUP, SIGNED)
    for k in range(lo, hi, 8 * WORDS):
        words = ahead.to(tl.uint32, bitcast=True)
        ahead = tl.load(w_rows + (k // 8 + WORDS + js)[None, :], mask=w_inside & (k + 8 * WORDS < hi), other=0)
        for place in range(8):
            scale = next_scale
            zero = next_zero
            next_scale, next_zero = of_group(
                scales, zeros, k + (place + 1) * WORDS, columns, N, K, stride_sg, GROUP, SIGNED
            )
            x = load_x(x_rows, k + place * WORDS, stride_xk, inside, K, WORDS, EVEN_K)
            weights = values(nibble(words, place, SIGNED, DTYPE), zero, SIGNED, DTYPE) * scale[:, None]
            acc = tl.dot(x, weights.to(DTYPE).T, acc)
    return acc
