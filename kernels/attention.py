"""What both attention ops share: which keys a query sees, the float64 truth, the eager yardstick, and torch's SDPA.

Tensors are token-major, as serving engines hold them: q [B, Sq, Hq, D], k [B, Skv, Hkv, D], v [B, Skv, Hkv, Dv].
Query head h reads KV head h // (Hq / Hkv). A causal mask is aligned bottom-right. A query that sees no key gives 0
and a log-sum-exp of -inf. Log-sum-exp is natural.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own documentation calls it F
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.matmul import set_tf32
from kernels.spec import UnsupportedError

BACKENDS = {"torch_flash": SDPBackend.FLASH_ATTENTION, "torch_cudnn": SDPBackend.CUDNN_ATTENTION}
CUDA_ONLY = {
    "torch_flash": "SDPA's FlashAttention backend is a CUDA library; the CPU has one SDPA kernel: provider torch",
    "torch_cudnn": "cuDNN runs on CUDA only",
}
NO_LOWER_RIGHT = "SDPA's cuDNN backend has a bottom-right causal mask only as q_len x kv_len values made at each call"


WIDEST_HEAD = 256


def check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, quantised: bool = False) -> None:
    """Raises ValueError unless q, k and v fit together as the module's docstring says, with heads up to 256 wide.

    They have one dtype, unless K and V are quantised.
    """
    shapes = f"q {list(q.shape)} {q.dtype}, k {list(k.shape)} {k.dtype}, v {list(v.shape)} {v.dtype}"
    if {q.ndim, k.ndim, v.ndim} != {4} or k.shape[:3] != v.shape[:3] or q.shape[::3] != k.shape[::3]:
        raise ValueError(f"wanted q [B, Sq, Hq, D], k [B, Skv, Hkv, D], v [B, Skv, Hkv, Dv], got {shapes}")
    if not quantised and not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"wanted one dtype, got {shapes}")
    if q.shape[2] % max(1, k.shape[2]) or max(q.shape[3], v.shape[3]) > WIDEST_HEAD:
        raise ValueError(f"wanted Hq a multiple of Hkv and heads up to {WIDEST_HEAD} wide, got {shapes}")


def padded_width(head_dim: int) -> int:
    """The power of two, at least 64, that a Triton kernel pads a head to in registers and shared memory."""
    return max(64, 1 << (head_dim - 1).bit_length())


def too_wide(axes: Mapping[str, int]) -> str | None:
    """Why the Triton kernels do not take a head of this width; None when they do."""
    width = max(axes["head_dim"], axes.get("v_head_dim", 0))
    if width <= WIDEST_HEAD:
        return None
    return f"heads are {width} wide: a block's shared memory holds the Triton kernels' tiles to {WIDEST_HEAD}"


def visible_keys(
    q_positions: torch.Tensor, kv_lens: torch.Tensor, kv_len: int, *, causal: bool, window: int = 0
) -> torch.Tensor:
    """Which keys each query sees.

    Args:
        q_positions: [B, Sq] place of each query among its sequence's keys; negative for one that precedes them all.
        kv_lens: [B] keys of each sequence.
        kv_len: keys allocated.
        causal: a query sees no key after its own place.
        window: it sees its own key and window - 1 before; 0 for all.

    Returns:
        bool [B, Sq, kv_len].
    """
    keys = torch.arange(kv_len, device=q_positions.device)
    places = q_positions[:, :, None]
    seen = (keys < kv_lens[:, None, None]) & torch.ones_like(places, dtype=torch.bool)
    if causal:
        seen = seen & (keys <= places)
    return seen & (keys > places - window) if window else seen


def masked_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: torch.Tensor,
    *,
    scale: float | None = None,
    softcap: float = 0,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(q k^T * scale) v over the keys in `seen`, in the tensors' own precision but float32 scores and softmax.

    In float64 it is the truth; in a kernel's storage dtype it is the yardstick of the error rule: like a kernel, it
    accumulates scores in float32 (float16 ones would overflow past 65504) and rounds only the weights.

    Args:
        q, k, v: as in the module's docstring.
        seen: bool [B, Sq, Skv].
        scale: 1 / sqrt(D) when None.
        softcap, sinks: as of `kernels.attention_variants`, sinks [Hq]; 0 and None for none.

    Returns:
        (out [B, Sq, Hq, Dv] of q's dtype, lse [B, Hq, Sq] natural, float32 or float64; with sinks it includes them).
    """
    B, Sq, Hq, D = q.shape
    Hkv = k.shape[2]
    grouped = q.reshape(B, Sq, Hkv, Hq // Hkv, D).permute(0, 2, 3, 1, 4)
    soft = torch.float64 if q.dtype == torch.float64 else torch.float32
    set_tf32(q.device, False)
    scores = torch.matmul(grouped.to(soft), k.to(soft).permute(0, 2, 3, 1)[:, :, None])
    scores = scores * (1 / math.sqrt(D) if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores.masked_fill(~seen[:, None, None], -math.inf)
    if sinks is not None:  # a key of every row, last
        own = sinks.to(soft).reshape(1, Hkv, Hq // Hkv, 1, 1).expand(B, -1, -1, Sq, 1)
        scores = torch.cat((scores, own), dim=-1)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[1]].masked_fill(~seen[:, None, None], 0)
    v = v.masked_fill(~seen.any(dim=1)[:, :, None, None], 0)  # 0 x NaN is NaN: what lies past the keys stays out
    out = torch.matmul(weights.to(q.dtype), v.permute(0, 2, 1, 3)[:, :, None])
    return out.permute(0, 3, 1, 2, 4).reshape(B, Sq, Hq, v.shape[3]), lse.reshape(B, Hq, Sq)


def sdpa_backend(
    provider: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, seen: torch.Tensor | None = None
) -> SDPBackend:
    """The backend that `sdpa` pins for a torch provider; arguments as there.

    `torch` is what `scaled_dot_product_attention` would choose by itself; the others say it in their name.

    Raises:
        UnsupportedError: torch would fall back to the math backend, which expands K and V to the query heads.
    """
    if provider in BACKENDS:
        return BACKENDS[provider]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    gqa, square = q.shape[1] != k.shape[1], q.shape[2] == k.shape[2]
    if causal and seen is None and not square:
        # torch's bottom-right mask has an order of its own, which pinning another backend would turn into a dense mask.
        problem = SDPAParams(q, k, v, None, 0.0, False, gqa)
        if can_use_flash_attention(problem):
            return SDPBackend.FLASH_ATTENTION
        if can_use_efficient_attention(problem):
            return SDPBackend.EFFICIENT_ATTENTION
    top_left = causal and seen is None and square
    backend = SDPBackend(torch._fused_sdp_choice(q, k, v, seen, 0.0, top_left, enable_gqa=gqa))
    if backend == SDPBackend.MATH and gqa:
        raise UnsupportedError("SDPA has only its math backend for this, which expands K and V to the query heads")
    return backend


def sdpa(
    provider: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    seen: torch.Tensor | None = None,
) -> torch.Tensor:
    """`scaled_dot_product_attention` with a pinned backend, K and V never expanded.

    Args:
        provider: torch, torch_flash or torch_cudnn.
        q, k, v: token-major, as in the module's docstring.
        causal: bottom-right aligned.
        seen: bool [B, 1, Sq, Skv] instead of `causal`.

    Returns:
        [B, Sq, Hq, Dv].

    Raises:
        UnsupportedError: the backend refuses the problem.
    """
    set_tf32(q.device, False)
    backend = sdpa_backend(provider, q, k, v, causal=causal, seen=seen)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    Sq, Skv = q.shape[2], k.shape[2]
    mask = seen
    if mask is None and causal and Sq != Skv:
        from torch.nn.attention.bias import causal_lower_right  # imports torch._dynamo: half of a start

        mask = causal_lower_right(Sq, Skv)
    try:
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=q.shape[1] != k.shape[1]
            )
    except RuntimeError as error:
        if "No available kernel" in str(error) or "No viable backend" in str(error):
            raise UnsupportedError(f"SDPA's backend for {provider} refuses this problem: {error}") from error
        raise
    return out.transpose(1, 2)


def packed(q: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """One query token's heads [B, 1, Hq, D] as [B, Hq / Hkv, Hkv, D]: each KV head's own as its queries."""
    B, _, Hq, D = q.shape
    return q.view(B, kv_heads, Hq // kv_heads, D).transpose(1, 2)


def packed_sdpa(
    provider: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, seen: torch.Tensor | None
) -> torch.Tensor:
    """Causal `sdpa` of the newest tokens, one token's heads packed so that K and V are not expanded; [B, Sq, Hq, Dv].

    Args:
        seen: bool [B, 1, Sq, Skv] where sequences differ in length.
    """
    B, Sq, Hq, _ = q.shape
    if Sq > 1:
        return sdpa(provider, q, k, v, causal=True, seen=seen)
    out = sdpa(provider, packed(q, k.shape[2]), k, v, causal=False, seen=seen)
    return out.transpose(1, 2).reshape(B, Sq, Hq, v.shape[3])


def packed_backend(
    provider: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, seen: torch.Tensor | None
) -> SDPBackend:
    """The backend that `packed_sdpa` runs."""
    several = q.shape[1] > 1
    q = q if several else packed(q, k.shape[2])
    return sdpa_backend(provider, q, k, v, causal=several, seen=seen)
