"""Other libraries' attention over ragged batches: flash-attn's and FlashInfer's kernels, where they are installed.

FlashInfer plans on the host, as `kernels.attention_paged_peers` says: at the first call for a table of starts.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from kernels.attention_paged_peers import WORKSPACE_BYTES, page_lists
from kernels.attention_ragged import starts
from kernels.optional import flash_attn, optional
from kernels.ragged_plan import Lengths


def attention_varlen_flash_attn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    *, lengths: Lengths, causal: bool,
) -> torch.Tensor:  # fmt: skip
    """The flash-attn package's kernel for packed sequences, bottom-right causal; [total_q, Hq, Dv].

    Raises:
        UnsupportedError: the package cannot be loaded here.
    """
    out: torch.Tensor = flash_attn().flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, *_longest(lengths), causal=causal
    )
    return out


def attention_mixed_flash_attn(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, cu_seqlens_q: torch.Tensor, block_table: torch.Tensor,
    kv_lens: torch.Tensor, *, lengths: Lengths,
) -> torch.Tensor:  # fmt: skip
    """The same over a paged cache; [total_q, Hq, Dv].

    Raises:
        UnsupportedError: the package cannot be loaded here.
    """
    out: torch.Tensor = flash_attn().flash_attn_varlen_func(
        q, k_pool, v_pool, cu_seqlens_q, _starts_of(kv_lens, lengths), *_longest(lengths), causal=True,
        block_table=block_table,
    )  # fmt: skip
    return out


def attention_varlen_flashinfer(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    *, lengths: Lengths, causal: bool,
) -> torch.Tensor:  # fmt: skip
    """FlashInfer's prefill of packed sequences; [total_q, Hq, Dv].

    Raises:
        UnsupportedError: the package cannot be loaded here.
    """
    asked = (lengths, causal, q.shape, k.shape, v.shape, q.dtype)
    plans = _PLANS.setdefault(cu_seqlens_q, {})
    if asked not in plans:
        wrapper = optional("flashinfer", "flashinfer-python").BatchPrefillWithRaggedKVCacheWrapper(_workspace(q), "NHD")
        wrapper.plan(
            cu_seqlens_q, cu_seqlens_k, q.shape[1], k.shape[1], q.shape[2], head_dim_vo=v.shape[2], causal=causal,
            q_data_type=q.dtype, kv_data_type=k.dtype,
        )  # fmt: skip
        plans[asked] = wrapper
    out: torch.Tensor = plans[asked].run(q, k, v)
    return out


def attention_mixed_flashinfer(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, cu_seqlens_q: torch.Tensor, block_table: torch.Tensor,
    kv_lens: torch.Tensor, *, lengths: Lengths,
) -> torch.Tensor:  # fmt: skip
    """FlashInfer's prefill over a paged cache, whose rows are a sequence's new tokens, one or many; [total_q, Hq, Dv].

    Raises:
        UnsupportedError: the package cannot be loaded here.
    """
    asked = (lengths, q.shape, k_pool.shape[1:], v_pool.shape[1:], q.dtype)
    plans = _PLANS.setdefault(block_table, {})
    if asked not in plans:
        wrapper = optional("flashinfer", "flashinfer-python").BatchPrefillWithPagedKVCacheWrapper(_workspace(q), "NHD")
        page, kv_heads = k_pool.shape[1:3]
        wrapper.plan(
            cu_seqlens_q, *page_lists(block_table, kv_lens, page), q.shape[1], kv_heads, q.shape[2], page,
            head_dim_vo=v_pool.shape[3], causal=True, q_data_type=q.dtype, kv_data_type=k_pool.dtype,
        )  # fmt: skip
        plans[asked] = wrapper
    out: torch.Tensor = plans[asked].run(q, (k_pool, v_pool))
    return out


_PLANS: MutableMapping[torch.Tensor, dict[Any, Any]] = WeakIdKeyDictionary()
"""Table -> what was asked -> FlashInfer's planned wrapper, for as long as the table lives."""
_STARTS: MutableMapping[torch.Tensor, dict[Lengths, torch.Tensor]] = WeakIdKeyDictionary()


def _workspace(q: torch.Tensor) -> torch.Tensor:
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)


def _longest(lengths: Lengths) -> tuple[int, int]:
    return max(q_len for q_len, _ in lengths), max(kv_len for _, kv_len in lengths)


def _starts_of(kv_lens: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    """Keys' starts, which flash-attn wants beside a block table: made once for a table of lengths."""
    made = _STARTS.setdefault(kv_lens, {})
    if lengths not in made:
        made[lengths] = starts((kv_len for _, kv_len in lengths), kv_lens.device)
    return made[lengths]
