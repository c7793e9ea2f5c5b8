"""Memory of which little more is touched: tensors whose elements lie past 2^31 of others, and what is told of them."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from launches import only_programs

HALF = 2  # bytes of a float16
BEFORE = 2**32
"""Elements in front of every far tensor."""
NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, which `mmap` names from Python 3.13."""
ROW = 2**31 // 100 + 12  # whole 16 bytes
"""A stride with which row 100 lies past 2^31."""


def far(shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """A float16 tensor of zeros with these strides, in memory that is given page by page as it is touched."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    pages = mmap.mmap(-1, (BEFORE + reach) * HALF, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    whole = torch.frombuffer(pages, dtype=torch.float16)
    return torch.as_strided(whole, shape, strides, BEFORE)


def dense(*shape: int) -> torch.Tensor:
    """The same, contiguous."""
    return far(shape, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))))


@contextmanager
def far_allocations() -> Iterator[None]:
    """What is allocated inside is memory like this; float32 in that of twice as many float16."""

    def empty(shape: tuple[int, ...], *, dtype: torch.dtype, **options: Any) -> torch.Tensor:
        if math.prod(shape) == 0 or dtype == torch.float16:
            return dense(*shape) if math.prod(shape) else torch.zeros(shape, dtype=dtype)
        return dense(*shape[:-1], 2 * shape[-1]).view(dtype)

    with patch("torch.empty", empty):
        yield


@contextmanager
def outputs_in(tensor: torch.Tensor) -> Iterator[None]:
    """The first tensor that is allocated inside is this one."""
    taken, real = [tensor], torch.empty

    def empty(*sizes: Any, **options: Any) -> torch.Tensor:
        return taken.pop() if taken else real(*sizes, **options)

    with patch("torch.empty", empty), only_programs(*range(64)):
        yield


def alone(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The output of attention without its log-sum-exp."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def equal(got: torch.Tensor, expected: torch.Tensor | float) -> str:
    wanted = torch.as_tensor(expected, dtype=got.dtype).expand_as(got)
    wrong = (got != wanted).nonzero()
    if not len(wrong):
        return "right"
    first = tuple(wrong[0].tolist())
    return f"{len(wrong)} values, at {first} {got[first].item()}, wanted {wanted[first].item()}"
