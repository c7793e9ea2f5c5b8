"""Quantisation by torch on the host: symmetric scales from the largest absolute value, no zero points.

value = stored * scale, scale in float32. Which values share a scale is the caller's choice of dimensions; the kernels
that read stored values live with their ops.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.inputs import DRAWN_AT_ONCE
from kernels.spec import UnsupportedError, Workload

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""Storage dtype -> the largest value it is given: e4m3's own, int8's without -128: both signs reach alike."""
FP8_ARCH = 89
"""The first arch that converts and multiplies float8_e4m3fn."""
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


def quantised_in_tiles(
    values: torch.Tensor, rows: int, columns: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix whose tiles of `rows` x `columns` each share a scale; those at the edges may be smaller.

    Args:
        values: [R, K], of a floating dtype.
        rows, columns: of a tile; 0 for all of them.
        dtype: float8_e4m3fn or int8.

    Returns:
        (stored [R, K] contiguous, scales [ceil(R / rows), ceil(K / columns)] float32).
    """
    R, K = values.shape
    rows, columns = rows or R, columns or K
    more = (0, -K % columns, 0, -R % rows)
    padded = torch.nn.functional.pad(values, more) if any(more) else values
    tiles = padded.view(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    scales = scales_of(tiles, dtype, (1, 3))
    stored = quantised(tiles, scales, dtype).view(padded.shape)
    return stored[:R, :K].contiguous(), scales[:, 0, :, 0]


def over_tiles(scales: torch.Tensor, shape: Sequence[int], edge: int) -> torch.Tensor:
    """Scales of tiles so that they broadcast over the matrix of `shape`; an axis has one, one a place, or one for
    each `edge` places."""
    for dim, size in enumerate(shape):
        if scales.shape[dim] not in (1, size):
            scales = scales.repeat_interleave(edge, dim).narrow(dim, 0, size)
    return scales


def least_arch(workload: Workload) -> int:
    """The first arch whose GPUs can take what the workload stores or multiplies; 0 for all."""
    used = (workload.dtype, workload.weight_dtype, workload.kv_dtype)
    return FP8_ARCH if "float8_e4m3fn" in used or workload.technique == "fp8" else 0


def check_arch(dtype: torch.dtype, arch: int) -> None:
    """Raises UnsupportedError for a storage dtype that GPUs of an arch do not convert."""
    if dtype == torch.float8_e4m3fn and arch < FP8_ARCH:
        raise UnsupportedError(f"sm_{arch} converts no float8_e4m3fn, as sm_{FP8_ARCH} and newer do")


def _largest(dtype: torch.dtype) -> float:
    if dtype not in LARGEST:
        raise ValueError(f"values are quantised to {', '.join(map(str, LARGEST))}, not to {dtype}")
    return LARGEST[dtype]
