"""Device code for keys, values and weights stored in 8 bits: into what is multiplied, in registers, without scales.

float8_e4m3fn and int8 values are float16 exactly, so 16-bit queries of either kind multiply them as float16. From sm_89
on one instruction converts two e4m3 values to float16; to bfloat16 takes two more, on the pipe of the exponentials.
"""

from __future__ import annotations

import triton
import triton.language as tl

EXPONENT = tl.constexpr(0x7F800000)
"""Of a float32: alone the power of two below it."""
LEAST = tl.constexpr(27 << 23)
"""2^-100, as bits: smaller powers of two have no inverse that is a normal float32."""
INVERSE = tl.constexpr(254 << 23)
"""Bits of a power of two less these are those of its inverse, negated."""
TOP = tl.constexpr(32768.0)
"""The largest query value becomes at least 2^15: float16 then holds all bits of those that are 2^29 smaller."""
UNSIGNED_PAST_1024 = tl.constexpr(0x6480)
"""int8's bits exclusive-or this are the float16 1024 + 128 + value: int8 to float16 has no fast instruction."""
ITS_OFFSET = tl.constexpr(1152.0)


@triton.jit
def widened(tile, DTYPE: tl.constexpr):
    """A tile of stored values in DTYPE, exactly; as it is where it has that already."""
    if tile.dtype == tl.int8 and tl.float16 == DTYPE:
        bits = tile.to(tl.uint8, bitcast=True).to(tl.uint16) ^ UNSIGNED_PAST_1024
        wide = (bits.to(tl.float16, bitcast=True) - ITS_OFFSET).to(tl.float16)
    else:
        wide = tile.to(DTYPE)
    return wide


@triton.jit
def as_half(q, scale_log2):
    """(q as float16, softmax scale to match): 16-bit queries times the power of two that float16 holds them best at.

    Exact but for values more than 2^29 below the tile's largest. Other queries stay as they are.
    """
    if q.dtype.primitive_bitwidth == 16:
        wide = q.to(tl.float32)
        largest = tl.max(tl.max(tl.abs(wide), 1), 0)
        power = tl.maximum(largest.to(tl.int32, bitcast=True) & EXPONENT, LEAST)
        q = (wide * (-power + INVERSE).to(tl.float32, bitcast=True) * TOP).to(tl.float16)
        scale_log2 *= power.to(tl.float32, bitcast=True) / TOP
    return q, scale_log2
