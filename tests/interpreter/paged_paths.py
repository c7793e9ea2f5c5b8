"""Keys and values put into pages of any layout, and every way that the paged Triton kernel can be launched, at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from attention_paths import follow_the_rule
from guarded import surrounded
from test_attention import Answers
from triton.runtime import interpreter

from bench.check import poisoned
from kernels import attention_paged_triton as kernel
from kernels.attention_decode_configs import Config
from kernels.attention_paged_prefill import OP
from kernels.spec import Inputs

LAYOUTS = ("slots first", "heads first", "interleaved", "width slow", "between NaN")
NOWHERE = (-1, 999, 2**31 - 1)
"""What block table entries past a sequence's pages hold: read, each would end the process or be refused."""
LAUNCHES = (
    Config(block_n=16, block_m=16, num_warps=8, splits=1, lazy=True),
    Config(block_n=32, num_warps=1, splits=3),
)
"""One split of tiles of 16 keys, in whole pages where their size lets them; three of 32, an entry a key."""


def laid_out(pages: int, page_size: int, heads: int, widths: tuple[int, int], layout: str, dtype: torch.dtype) -> tuple[
    torch.Tensor, torch.Tensor
]:  # fmt: skip
    """Pools of keys and values, all NaN, [pages, page_size, heads, width] each."""
    D, Dv = widths
    if layout == "interleaved":  # keys and values of a slot side by side
        both = torch.full((pages, page_size, heads, D + Dv), math.nan, dtype=dtype)
        return both[..., :D], both[..., D:]
    made = []
    for width in widths:
        if layout == "heads first":
            pool = torch.full((pages, heads, page_size, width), math.nan, dtype=dtype).transpose(1, 2)
        elif layout == "width slow":
            pool = torch.full((pages, page_size, width, heads), math.nan, dtype=dtype).transpose(2, 3)
        else:
            pool = torch.full((pages, page_size, heads, width), math.nan, dtype=dtype)
        made.append(surrounded(pool, 3) if layout == "between NaN" else pool)
    return made[0], made[1]


def in_pages(
    k: torch.Tensor, v: torch.Tensor, lens: Sequence[int], page_size: int, *, layout: str = "slots first", seed: int = 0
) -> Inputs:
    """Pools, block table and lengths that hold the first keys of each sequence of k [B, S, Hkv, D] and v.

    Slots without a key are NaN, pages are shuffled, and entries past a sequence's pages name none.
    """
    B, heads = k.shape[0], k.shape[2]
    used = [math.ceil(length / page_size) for length in lens]
    pools = laid_out(sum(used) + 2, page_size, heads, (k.shape[3], v.shape[3]), layout, k.dtype)
    order = torch.randperm(sum(used) + 2, generator=torch.Generator().manual_seed(seed)).tolist()
    table = torch.tensor(NOWHERE, dtype=torch.int32).repeat(B, max(used, default=0) + 1)
    for b, length in enumerate(lens):
        for place in range(length):
            slot = place % page_size
            if not slot:
                table[b, place // page_size] = order.pop()
            page = int(table[b, place // page_size])
            for pool, keys in zip(pools, (k, v), strict=True):
                pool[page, slot] = keys[b, place]
    lengths = torch.tensor(lens, dtype=torch.int32)
    return {"k_pool": pools[0], "v_pool": pools[1], "block_table": table, "kv_lens": lengths, "ragged": True}


def paged(q: torch.Tensor, cache: Inputs, *, launches: Sequence[Config | None] = LAUNCHES) -> Answers:
    """(out, lse) by these configurations; None lets the launch choose."""
    answers: Answers = {}
    with poisoned():
        for config in launches:
            out = kernel.attention_paged(q, **cache, return_lse=True, config=config)
            assert isinstance(out, tuple)
            answers[f"paged {config}"] = out
    return answers


def paged_is_right(q: torch.Tensor, cache: Inputs, *, launches: Sequence[Config | None] = LAUNCHES) -> Answers:
    """The answers, which pass the error rule."""
    OP.validate(q, **cache)
    answers = paged(q, cache, launches=launches)
    follow_the_rule(OP, answers, {"q": q, **cache})
    return answers


@contextmanager
def entries_read(table: torch.Tensor) -> Iterator[set[tuple[int, int]]]:
    """Collects (sequence, place) of every entry of a contiguous block table that interpreted kernels inside read."""
    found: set[tuple[int, int]] = set()
    builder, first, each = interpreter.InterpreterBuilder, table.data_ptr(), table.element_size()
    original = builder.create_masked_load

    def load(self: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        inside = np.asarray(mask.data).astype(bool)
        places = np.broadcast_to(np.asarray(pointers.data), inside.shape)[inside].astype(np.int64) - first
        places = places[(places >= 0) & (places < table.numel() * each)] // each
        found.update((int(place) // table.shape[1], int(place) % table.shape[1]) for place in places)
        return original(self, pointers, mask, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_masked_load", load)
        yield found
