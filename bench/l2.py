"""A cold cache by rotation: each launch reads streamed inputs that the cache no longer holds.

Streamed inputs (weights, KV) are copied until one round over the copies is at least three times the last cache;
resident ones (activations, tables) stay, as in serving. Where that would take more copies than a graph has nodes, a
buffer larger than the cache is written between samples, outside the timed window, and the record says `flush`. Where
nothing reports the cache's size, nothing is called cold: the record says `hot`, as where one set of inputs is read
again and again because a hot cache was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from kernels.spec import Inputs

ROUND_OVER_CACHE = 3
"""Bytes of one round in units of the cache: twice evicts it under LRU, the third covers other policies."""
MAX_NODES = 8000
"""Of a CUDA graph: tens of thousands have crashed drivers."""
MAX_COPIES = MAX_NODES // 2
"""A graph holds one whole round, and a second graph twice that (the head of a replay is fitted from the two)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """How the inputs of a case are kept cold.

    Attributes:
        cache: cold, flush, hot or resident: what the record says.
        copies: sets of streamed inputs.
        streamed_bytes: of one set.
        resident_bytes: of everything else.
        cache_bytes: the last cache's size, 0 where it is not known.
    """

    cache: str
    copies: int
    streamed_bytes: int
    resident_bytes: int
    cache_bytes: int

    @property
    def needed_bytes(self) -> int:
        """Memory that all copies take together, the flush buffer included."""
        flush = 2 * self.cache_bytes if self.cache == "flush" else 0
        return self.copies * self.streamed_bytes + self.resident_bytes + flush


def plan(inputs: Inputs, roles: Mapping[str, str], cache_bytes: int, cache: str = "cold") -> Rotation:
    """The rotation for inputs (of any device, "meta" too), cold or hot as `cache` asks."""
    sizes = {name: tensor_bytes(value) for name, value in inputs.items()}
    streamed = sum(size for name, size in sizes.items() if roles.get(name) == "streamed")
    common = {"streamed_bytes": streamed, "resident_bytes": sum(sizes.values()) - streamed, "cache_bytes": cache_bytes}
    if not streamed:
        return Rotation(cache="resident", copies=1, **common)
    if cache == "hot" or cache_bytes <= 0:
        return Rotation(cache="hot", copies=1, **common)
    copies = math.ceil(ROUND_OVER_CACHE * cache_bytes / streamed)
    if copies > MAX_COPIES:
        return Rotation(cache="flush", copies=1, **common)
    return Rotation(cache="cold", copies=max(copies, 1), **common)


def tensor_bytes(value: object) -> int:
    """Bytes of a tensor's own values; 0 for anything else."""
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def rotate(inputs: Inputs, roles: Mapping[str, str], rotation: Rotation) -> list[Inputs]:
    """One set of inputs a copy, sharing the resident ones.

    Raises:
        ValueError: the sets do not cover three times the cache, so "cold" would be untrue.
    """
    streamed = {n: v for n, v in inputs.items() if roles.get(n) == "streamed" and isinstance(v, torch.Tensor)}
    sets = [inputs]
    for _ in range(rotation.copies - 1):
        sets.append(inputs | {name: _copy(tensor) for name, tensor in streamed.items()})
    covered = len(sets) * sum(map(tensor_bytes, streamed.values()))
    if rotation.cache == "cold" and covered < ROUND_OVER_CACHE * rotation.cache_bytes:
        raise ValueError(
            f"a round of {len(sets)} copies covers {covered} bytes, "
            f"not {ROUND_OVER_CACHE} x {rotation.cache_bytes}: not cold"
        )
    return sets


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """With the same strides, which `clone` keeps only where no memory lies between the values."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def flusher(rotation: Rotation, device: str) -> Callable[[], None] | None:
    """Writes a buffer of twice the cache, for `flush`; None where rotation or residence needs none."""
    if rotation.cache != "flush":
        return None
    buffer = torch.empty(2 * rotation.cache_bytes, dtype=torch.int8, device=device)

    def flush() -> None:
        buffer.zero_()

    return flush
