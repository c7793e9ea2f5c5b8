"""Other libraries' absorbed MLA decode: FlashMLA's and FlashInfer's kernels over the same pool, where installed.

Both plan a batch on the host or by a small kernel, once for all layers of a serving step. As in
`kernels.attention_paged_peers`, the plan is made at the first call for a block table and is no part of those after it,
which are those that are timed.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from kernels.attention_paged import pages_of
from kernels.attention_paged_peers import WORKSPACE_BYTES
from kernels.optional import optional
from kernels.work import MLA_LATENT, MLA_ROPE

FLASH_MLA_PAGE = 64
"""Keys of a page that FlashMLA takes."""


def attention_mla_flash_mla(
    q: torch.Tensor, latent_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor,
    *, softmax_scale: float, ragged: bool,
) -> torch.Tensor:  # fmt: skip
    """FlashMLA's kernel; [B, Sq, H, 512].

    Raises:
        UnsupportedError: the package cannot be loaded here.
    """
    flash_mla = optional("flash_mla", "git+https://github.com/deepseek-ai/FlashMLA")
    rows = q.shape[1] * q.shape[2]
    schedule, splits = _planned("flash_mla", q, latent_pool, block_table, kv_lens, softmax_scale, lambda: (
        flash_mla.get_mla_metadata(kv_lens, rows, 1)
    ))  # fmt: skip
    out: torch.Tensor = flash_mla.flash_mla_with_kvcache(
        q, latent_pool.unsqueeze(2), block_table, kv_lens, MLA_LATENT, schedule, splits,
        softmax_scale=softmax_scale, causal=True,
    )[0]  # fmt: skip
    return out


def attention_mla_flashinfer(
    q: torch.Tensor, latent_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor,
    *, softmax_scale: float, ragged: bool,
) -> torch.Tensor:  # fmt: skip
    """FlashInfer's kernel for absorbed MLA; [B, Sq, H, 512].

    Raises:
        UnsupportedError: the package cannot be loaded here.
    """
    mla = optional("flashinfer.mla", "flashinfer-python")

    def plan() -> Any:
        B, Sq, H, _ = q.shape
        page = latent_pool.shape[1]
        pages = pages_of(kv_lens, page)
        starts = torch.zeros(B + 1, dtype=torch.int32, device=q.device)
        starts[1:] = pages.cumsum(0)
        indices = block_table[torch.arange(block_table.shape[1], device=q.device) < pages[:, None]]
        queries = torch.arange(0, (B + 1) * Sq, Sq, dtype=torch.int32, device=q.device)
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
        wrapper = mla.BatchMLAPagedAttentionWrapper(workspace)
        wrapper.plan(
            queries, starts, indices, kv_lens, H, MLA_LATENT, MLA_ROPE, page, True, softmax_scale, q.dtype,
            latent_pool.dtype,
        )  # fmt: skip
        return wrapper

    wrapper = _planned("flashinfer", q, latent_pool, block_table, kv_lens, softmax_scale, plan)
    parts = [part for x in (q.flatten(0, 1), latent_pool) for part in torch.split(x, [MLA_LATENT, MLA_ROPE], dim=-1)]
    out: torch.Tensor = wrapper.run(*parts)
    return out.view(*q.shape[:3], MLA_LATENT)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan, and what it was made for."""

    made: Any
    problem: tuple[Any, ...]
    kv_lens: torch.Tensor


_PLANS: MutableMapping[torch.Tensor, _Plan] = WeakIdKeyDictionary()
"""Block table -> its last plan, for as long as the table lives."""


def _planned(
    who: str, q: torch.Tensor, latent_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor,
    softmax_scale: float, make: Callable[[], Any],
) -> Any:  # fmt: skip
    """The plan for this problem: made anew where the block table, its lengths or a shape is another."""
    problem = (who, q.shape, q.dtype, latent_pool.shape[1:], softmax_scale)
    plan = _PLANS.get(block_table)
    if plan is None or plan.problem != problem or plan.kv_lens is not kv_lens:
        plan = _PLANS[block_table] = _Plan(make(), problem, kv_lens)
    return plan.made
