"""Sequences of unlike lengths packed or put into pages, and every way to launch the ragged kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from guarded import surrounded
from paged_paths import in_pages
from test_attention import Answers, Array, arrays, by_loops, draw

from bench.check import poisoned
from kernels import attention_ragged_triton as kernel
from kernels.attention_decode_configs import Config
from kernels.attention_ragged import starts
from kernels.ragged_plan import Lengths
from kernels.spec import Inputs

LAUNCHES = (Config(block_n=16, block_m=16, splits=1), Config(block_n=32, block_m=16, splits=3, lazy=True))
"""Tiles of 16 keys that nobody shares; of 32 keys, in up to three pieces."""
Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""A sequence's q [Sq, Hq, D], k [Skv, Hkv, D] and v [Skv, Hkv, Dv]."""


def drawn(
    lengths: Lengths, *, Hq: int = 2, Hkv: int = 1, D: int = 16, Dv: int = 0, dtype: torch.dtype = torch.float32
) -> list[Part]:
    """Sequences of these lengths."""
    return [
        (
            draw(3 * b, q_len, Hq, D).to(dtype),
            draw(3 * b + 1, kv_len, Hkv, D).to(dtype),
            draw(3 * b + 2, kv_len, Hkv, Dv or D).to(dtype),
        )
        for b, (q_len, kv_len) in enumerate(lengths)
    ]


def lengths_of(parts: Sequence[Part]) -> Lengths:
    return tuple((len(q), len(k)) for q, k, _ in parts)


def varlen(parts: Sequence[Part], *, causal: bool = True) -> Inputs:
    """Inputs of op attention_varlen, between NaN."""
    lengths = lengths_of(parts)
    q, k, v = (surrounded(torch.cat(tensors), 8) for tensors in zip(*parts, strict=True))
    tables = {f"cu_seqlens_{x}": starts([of[i] for of in lengths], "cpu") for i, x in enumerate("qk")}
    return {"q": q, "k": k, "v": v, **tables, "lengths": lengths, "causal": causal}


def mixed(parts: Sequence[Part], page_size: int = 16, *, layout: str = "slots first") -> Inputs:
    """Inputs of op attention_mixed, with NaN in slots without a key and entries that name no page."""
    lengths = lengths_of(parts)
    most = max(kv_len for _, kv_len in lengths)
    whole = []
    for i in (1, 2):
        padded = parts[0][i].new_zeros((len(parts), most, *parts[0][i].shape[1:]))
        for b, part in enumerate(parts):
            padded[b, : lengths[b][1]] = part[i]
        whole.append(padded)
    cache = in_pages(whole[0], whole[1], [kv_len for _, kv_len in lengths], page_size, layout=layout)
    tables = {name: cache[name] for name in ("k_pool", "v_pool", "block_table", "kv_lens")}
    q = surrounded(torch.cat([q for q, _, _ in parts]), 8)
    return {"q": q, "cu_seqlens_q": starts((q_len for q_len, _ in lengths), "cpu"), **tables, "lengths": lengths}


def ask(inputs: Inputs, launches: Sequence[Config | None] = LAUNCHES, module: Any = kernel) -> Answers:
    """(out, lse) by these configurations, None that of the launch's own choice, in poisoned memory."""
    attention = module.attention_mixed if "block_table" in inputs else module.attention_varlen
    answers: Answers = {}
    with poisoned():
        for config in launches:
            answers[f"{attention.__name__} {config}"] = attention(**inputs, return_lse=True, config=config)
    return answers


def both(parts: Sequence[Part], launches: Sequence[Config | None] = LAUNCHES, page_size: int = 16) -> Answers:
    """By both ops."""
    return ask(varlen(parts), launches) | ask(mixed(parts, page_size), launches)


def truth(parts: Sequence[Part], *, causal: bool = True) -> tuple[Array, Array]:
    """(out [total_q, Hq, Dv], lse [Hq, total_q]) by loops over each sequence alone."""
    each = [by_loops(*arrays(*(t[None] for t in part)), [len(part[1])], causal=causal) for part in parts]
    return np.concatenate([out[0] for out, _ in each]), np.concatenate([lse[0] for _, lse in each], axis=1)
