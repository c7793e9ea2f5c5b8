"""Other libraries' decode attention over a contiguous cache: torch's SDPA, and flash-attn's kernel where installed."""

from __future__ import annotations

import torch

from kernels.attention import packed_sdpa, visible_keys
from kernels.optional import flash_attn


def visible_of(q: torch.Tensor, k: torch.Tensor, kv_lens: torch.Tensor, window: int = 0) -> torch.Tensor:
    """bool [B, Sq, S]: the keys that each new token sees."""
    Sq = q.shape[1]
    places = kv_lens[:, None] - Sq + torch.arange(Sq, device=q.device)
    return visible_keys(places, kv_lens, k.shape[1], causal=True, window=window)


def attention_decode_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    ragged: bool,
    window: int = 0,
    provider: str = "torch",
) -> torch.Tensor:
    """torch's SDPA with the backend that `provider` names; [B, Sq, Hq, Dv].

    One query token's heads of a KV head are packed as if they were queries, so that K and V are not expanded.
    Ragged lengths take a mask over the allocation, since SDPA knows no lengths: the padding is read too, and with a
    window what lies before it. Equal lengths under a window are what it reaches, with a mask for several tokens.
    """
    k, v, seen = for_sdpa(q, k, v, kv_lens, ragged, window)
    return packed_sdpa(provider, q, k, v, seen=seen)


def for_sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_lens: torch.Tensor, ragged: bool, window: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The keys, the values and the mask [B, 1, Sq, S] that SDPA is given."""
    Sq, S = q.shape[1], k.shape[1]
    if not ragged and not window:
        return k, v, None
    seen = visible_of(q, k, kv_lens, window)[:, None]
    if ragged:
        return k, v, seen
    begin = max(0, S - Sq + 1 - window)
    return k[:, begin:], v[:, begin:], None if Sq == 1 else seen[..., begin:]


def attention_decode_flash_attn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    ragged: bool,
    window: int = 0,
    softcap: int = 0,
) -> torch.Tensor:
    """The flash-attn package's decode kernel with a contiguous cache; [B, Sq, Hq, Dv].

    Raises:
        UnsupportedError: the package cannot be loaded here.
    """
    reach = (window - 1, 0) if window else (-1, -1)
    out: torch.Tensor = flash_attn().flash_attn_with_kvcache(
        q, k, v, cache_seqlens=kv_lens, causal=True, window_size=reach, softcap=float(softcap)
    )
    return out
