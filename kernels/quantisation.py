"""Quantisation by torch on the host: symmetric scales from the largest absolute value, no zero points.

value = stored * scale, scale in float32. Which values share a scale is the caller's choice of dimensions; the kernels
that read stored values live with their ops.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.inputs import DRAWN_AT_ONCE

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""Storage dtype -> the largest value it is given: e4m3's own, int8's without -128: both signs reach alike."""
LEAST_SCALE = torch.finfo(torch.float32).tiny
"""The smallest normal float32: a smaller scale loses bits, and counts as zero where a device flushes it."""


def scales_of(values: torch.Tensor, dtype: torch.dtype, dims: Sequence[int]) -> torch.Tensor:
    """One scale for all values along `dims`, which stay with size 1: float32, 1 where all values are zero.

    Raises:
        ValueError: a dtype that values are not quantised to.
    """
    largest = _largest(dtype)
    dims = tuple(dims)
    most = torch.maximum(values.amax(dims, keepdim=True), -values.amin(dims, keepdim=True)).float()
    scales = (most / largest).clamp(min=LEAST_SCALE)
    return scales.masked_fill(most == 0, 1.0)


def quantised(values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The stored values nearest to values / scales: clamped to the largest, so that e4m3 never gets to its NaN.

    Args:
        values: of any shape and floating dtype.
        scales: float32, of a shape that broadcasts to it.
        dtype: float8_e4m3fn, or int8, which rounds halves to even.

    Raises:
        ValueError: a dtype that values are not quantised to.
    """
    largest = _largest(dtype)
    stored = torch.empty(values.shape, dtype=dtype, device=values.device)
    if not values.numel():
        return stored
    rows = max(1, DRAWN_AT_ONCE * len(values) // values.numel())  # a float32 copy of all may not fit
    pieces = (torch.split(tensor, rows) for tensor in (stored, values, scales.expand(values.shape)))
    for target, piece, scale in zip(*pieces, strict=True):
        exact = (piece.float() / scale).clamp(-largest, largest)
        target.copy_(exact.round() if dtype == torch.int8 else exact)
    return stored


def dequantised(stored: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """stored * scales, multiplied in float32 or, where that is asked for, float64, and rounded to `dtype` once."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return (stored.to(wide) * scales.to(wide)).to(dtype)


def _largest(dtype: torch.dtype) -> float:
    if dtype not in LARGEST:
        raise ValueError(f"values are quantised to {', '.join(map(str, LARGEST))}, not to {dtype}")
    return LARGEST[dtype]
