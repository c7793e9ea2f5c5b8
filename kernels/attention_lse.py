"""torch's fused attention together with its log-sum-exp, and the merge of two such results in plain torch.

`scaled_dot_product_attention` keeps its log-sum-exp to itself; the operators that it dispatches to return it, and
torch's own context parallelism asks them as is done here.
"""

from __future__ import annotations

import math

import torch

from kernels.matmul import set_tf32

BIAS_ALIGNMENT = 16
"""Values to which the rows of a mask are padded in memory, as torch itself does for its memory-efficient kernel."""


def sdpa_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention without a causal mask by torch's fused kernels, heads first.

    FlashAttention in half precision without a mask, else the memory-efficient kernel; the CPU has one.

    Args:
        q: [B, H, Sq, D].
        k, v: [B, H, S, D].
        seen: bool, broadcast to [B, H, Sq, S]; None for all.

    Returns:
        (out [B, H, Sq, D] of q's dtype, lse [B, H, Sq] float32, natural; 0 and -inf where nothing is seen).
    """
    if not k.shape[2]:  # the CPU's kernel divides by it
        return torch.zeros_like(q), torch.full(q.shape[:3], -math.inf, device=q.device)
    set_tf32(q.device, False)
    mask = None if seen is None else _bias(seen, q.dtype)
    if not q.is_cuda:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask)
    elif mask is None and q.dtype != torch.float32:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[:2]
    else:
        bias = None if mask is None else mask.expand(*q.shape[:3], k.shape[2])
        out, lse = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True)[:2]
    lse = lse.narrow(2, 0, q.shape[2])  # the memory-efficient kernel pads it
    if seen is not None:  # a row that sees nothing has no number that the kernels agree on
        empty = seen.any(dim=-1).logical_not()
        out, lse = out.masked_fill(empty.unsqueeze(-1), 0), lse.masked_fill(empty, -math.inf)
    return out, lse


def _bias(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    width = seen.shape[-1]
    padded = -(-width // BIAS_ALIGNMENT) * BIAS_ALIGNMENT
    bias = torch.zeros((*seen.shape[:-1], padded), dtype=dtype, device=seen.device)
    return bias.narrow(-1, 0, width).masked_fill_(seen.logical_not(), -math.inf)


def merged(a: torch.Tensor, a_lse: torch.Tensor, b: torch.Tensor, b_lse: torch.Tensor) -> torch.Tensor:
    """Attention over the keys of both, from that over each: rows [..., D] with log-sum-exps [...]."""
    lse = torch.logaddexp(a_lse, b_lse)
    safe = lse.masked_fill(lse == -math.inf, 0)
    out = a * torch.exp(a_lse - safe).unsqueeze(-1) + b * torch.exp(b_lse - safe).unsqueeze(-1)
    return out.to(a.dtype)
