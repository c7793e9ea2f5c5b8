"""Memory that tells on a kernel: NaN around inputs, guard bands around what is allocated, NaN where nobody wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

BAND = 2**15
"""Elements on each side: a whole tile, and whole 16 bytes, so that a guarded tensor is aligned like any other."""
MARK = -416.0
"""A number of every floating dtype, float8_e4m3fn too."""


def surrounded(tensor: torch.Tensor, slack: int = 8) -> torch.Tensor:
    """The same values in a strided view, with NaN between the rows of every axis and past the end; of integers 101.

    Args:
        tensor: of any dtype.
        slack: elements past each axis; 8 keeps strides in whole 16 bytes where the last axis is too.
    """
    around = torch.nan if tensor.dtype.is_floating_point else 101
    whole = torch.full([size + slack for size in tensor.shape], around, dtype=tensor.dtype)
    view = whole[tuple(slice(size) for size in tensor.shape)]
    view.copy_(tensor)
    return view


@contextmanager
def guard_bands() -> Iterator[list[torch.Tensor]]:
    """`torch.empty` gives floating tensors full of NaN between bands of MARK inside, which must stay as they are.

    Yields:
        The tensors given, in order.
    """
    given: list[torch.Tensor] = []
    buffers: list[torch.Tensor] = []

    def empty(*sizes: Any, dtype: torch.dtype = torch.float32, **options: Any) -> torch.Tensor:
        shape = torch.Size(sizes[0] if isinstance(sizes[0], tuple) else sizes)
        buffers.append(torch.full((shape.numel() + 2 * BAND,), MARK, dtype=dtype))
        given.append(buffers[-1][BAND : BAND + shape.numel()].view(shape).fill_(torch.nan))
        return given[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        yield given
    for tensor, buffer in zip(given, buffers, strict=True):
        for band in (buffer[:BAND], buffer[BAND + tensor.numel() :]):
            assert (band.float() == MARK).all(), f"a guard band of a tensor {list(tensor.shape)} was written"
