"""Other libraries' paged attention: flash-attn's and FlashInfer's kernels over the same pool, where they are installed.

FlashInfer plans a batch on the host, once for all layers of a serving step; so here the plan is made at the first call
for a block table and is no part of the calls after it, which are those that are timed.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from kernels.attention_paged import pages_of
from kernels.optional import flash_attn, optional

WORKSPACE_BYTES = 128 * 2**20
"""What FlashInfer's own examples give a wrapper for plans and partial results."""
TENSOR_CORE_GROUP = 4
"""Query heads of a KV head from which FlashInfer's decode is told to use tensor cores, as its documentation advises."""


def attention_paged_flash_attn(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor,
    *, ragged: bool,
) -> torch.Tensor:  # fmt: skip
    """The flash-attn package's kernel over a paged cache; [B, Sq, Hq, Dv].

    Raises:
        UnsupportedError: the package cannot be loaded here.
    """
    out: torch.Tensor = flash_attn().flash_attn_with_kvcache(
        q, k_pool, v_pool, cache_seqlens=kv_lens, block_table=block_table, causal=True
    )
    return out


def attention_paged_flashinfer(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor,
    *, ragged: bool,
) -> torch.Tensor:  # fmt: skip
    """FlashInfer's batch kernels, that for decode where there is one new token; [B, Sq, Hq, Dv].

    Raises:
        UnsupportedError: the package cannot be loaded here.
    """
    plan = _PLANS.get(block_table)
    if plan is None or not plan.fits(q, k_pool, kv_lens):
        plan = _PLANS[block_table] = _planned(q, k_pool, v_pool, block_table, kv_lens)
    out: torch.Tensor = plan.wrapper.run(q.flatten(0, 1), (k_pool, v_pool))
    return out.view(*q.shape[:3], v_pool.shape[3])


@dataclass(frozen=True, slots=True)
class _Plan:
    """A planned wrapper, and what it was planned for."""

    wrapper: Any
    q_shape: torch.Size
    kv_lens: torch.Tensor
    page: torch.Size
    dtype: torch.dtype

    def fits(self, q: torch.Tensor, k_pool: torch.Tensor, kv_lens: torch.Tensor) -> bool:
        """Whether the same block table is asked about the same problem."""
        same = (self.q_shape, self.page, self.dtype) == (q.shape, k_pool.shape[1:], q.dtype)
        return same and self.kv_lens is kv_lens


_PLANS: MutableMapping[torch.Tensor, _Plan] = WeakIdKeyDictionary()
"""Block table -> plan, for as long as the table lives."""


def _planned(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor
) -> _Plan:
    flashinfer = optional("flashinfer", "flashinfer-python")
    (B, Sq, Hq, D), (page, Hkv), Dv = q.shape, k_pool.shape[1:3], v_pool.shape[3]
    starts, indices, last = page_lists(block_table, kv_lens, page)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    if Sq == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_tensor_cores=Hq // Hkv >= TENSOR_CORE_GROUP
        )
        wrapper.plan(starts, indices, last, Hq, Hkv, D, page, q_data_type=q.dtype, kv_data_type=k_pool.dtype)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        queries = torch.arange(0, (B + 1) * Sq, Sq, dtype=torch.int32, device=q.device)
        wrapper.plan(
            queries, starts, indices, last, Hq, Hkv, D, page, head_dim_vo=Dv, causal=True,
            q_data_type=q.dtype, kv_data_type=k_pool.dtype,
        )  # fmt: skip
    return _Plan(wrapper, q.shape, kv_lens, k_pool.shape[1:], q.dtype)


def page_lists(
    block_table: torch.Tensor, kv_lens: torch.Tensor, page: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(starts [B + 1], page numbers, keys of the last page [B]) of sequences of at least one key, all int32."""
    pages = pages_of(kv_lens, page)
    starts = torch.zeros(len(kv_lens) + 1, dtype=torch.int32, device=kv_lens.device)
    starts[1:] = pages.cumsum(0)
    indices = block_table[torch.arange(block_table.shape[1], device=kv_lens.device) < pages[:, None]]
    return starts, indices, (kv_lens - (pages - 1).int() * page).int()
