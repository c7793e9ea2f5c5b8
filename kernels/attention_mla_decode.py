"""attention_mla_decode: absorbed multi-head latent attention of 1 to 16 new tokens over a paged latent cache.

q [B, Sq, H, 576] over latent_pool [pages, page_size, 576]: out [B, Sq, H, 512] = softmax(q c^T x scale) c[:512], where
c is a key's latent of 512 values and its rotated part of 64. All heads share it. Absorbed means that the up-projections
W_UK and W_UV, which would make keys and values for each head, are multiplied into the queries before and into the
output after: scores and sums are the same, over fewer bytes. The scale is that of the head before, 1 / sqrt(192).

The latent is read once, not once as keys and once as values: 2 x H x (576 + 512) FLOPs for 1,152 bytes of bfloat16, so
that 128 heads are near the ridge of a GPU with one new token, and past it with two.

Pages and lengths are as `kernels.attention_paged` says; the projections are no part of this op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own documentation calls it F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels import attention_paged
from kernels.attention import masked_attention
from kernels.attention_mla_peers import FLASH_MLA_PAGE, attention_mla_flash_mla, attention_mla_flashinfer
from kernels.attention_paged import gathered, gathered_pages, visible_of
from kernels.attention_part import part_of
from kernels.inputs import torch_dtype
from kernels.matmul import set_tf32
from kernels.spec import TRITON_ON_CPU, Inputs, Op, Outputs, Workload
from kernels.work import DECODE_TOKENS, MLA_LATENT, MLA_ROPE, Work, mla_decode_work, paged, unmasked_pairs

CHECK_IN_FULL = 2**18
"""Scores up to which the float64 reference is computed whole; above it a sample of sequences, tokens and heads."""
UNABSORBED_HEAD = 192
"""Width of a query-key head before absorption: 128 and the rotated 64. It gives the scale of scores."""
NO_EXACT = "exact float32 is multiplied from registers, which do not hold rows of 512 sums: use float16 or bfloat16"
HALF_ONLY = ("flash_mla", "flashinfer")


def attention_mla_decode_torch(
    q: torch.Tensor,
    latent_pool: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    softmax_scale: float,
    ragged: bool,
) -> torch.Tensor:
    """torch's SDPA over a latent gathered first, as torch has no paged attention; [B, Sq, H, 512].

    Tokens and heads are packed as the queries of one head, so that the latent is not expanded to H heads. Several
    tokens or ragged lengths take a mask over the allocation.
    """
    set_tf32(q.device, False)
    problem = _packed_problem(q, latent_pool, block_table, kv_lens, ragged=ragged)
    with sdpa_kernel(_backend(*problem, softmax_scale)):
        rows, keys, values, seen = problem
        out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=seen, scale=softmax_scale)
    return out.view(*q.shape[:3], MLA_LATENT)


def _packed_problem(
    q: torch.Tensor, latent_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor, *, ragged: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(q [B, 1, Sq x H, 576], keys [B, 1, S, 576], values [B, 1, S, 512], mask [B, 1, Sq x H, S] or None)."""
    B, Sq, H, width = q.shape
    most = block_table.shape[1] * latent_pool.shape[1]
    latent = gathered(latent_pool, block_table, most)[:, None]
    seen = None
    if ragged or Sq > 1:
        seen = visible_of(Sq, kv_lens, most)[:, :, None].expand(-1, -1, H, -1).reshape(B, 1, Sq * H, most)
    return q.reshape(B, 1, Sq * H, width), latent, latent[..., :MLA_LATENT], seen


def _backend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor | None, softmax_scale: float
) -> SDPBackend:
    """What torch would choose by itself. Its math backend is no worse here than others: nothing is expanded."""
    return SDPBackend(torch._fused_sdp_choice(q, k, v, seen, 0.0, False, scale=softmax_scale))


def attention_mla_decode_triton(**inputs: Any) -> Outputs:
    """The Triton kernels: see `kernels.attention_mla_decode_triton.attention_mla_decode`."""
    from kernels import attention_mla_decode_triton as kernel

    return kernel.attention_mla_decode(**inputs)


def attention_mla_decode_eager(
    q: torch.Tensor,
    latent_pool: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    softmax_scale: float,
    ragged: bool = True,
    behind: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [B, Sq, H, 512], lse [B, H, Sq]) by plain torch in the inputs' precision.

    Args:
        behind: [Sq] tokens that follow each query, where q holds only some of them.
    """
    most = block_table.shape[1] * latent_pool.shape[1]
    # Lengths of the meta device have no values: shapes alone are asked for.
    keys = most if kv_lens.is_meta else int(kv_lens.max()) if kv_lens.numel() else 0
    latent = gathered(latent_pool, block_table, keys)[:, :, None]
    seen = visible_of(q.shape[1], kv_lens, keys, behind)
    return masked_attention(q, latent, latent[..., :MLA_LATENT], seen, scale=softmax_scale)


def attention_mla_decode_reference(
    q: torch.Tensor, latent_pool: torch.Tensor, *tables: torch.Tensor, **how: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in float64 from the inputs' own values."""
    return attention_mla_decode_eager(q.double(), latent_pool.double(), *tables, **how)


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """q, latent_pool, block_table, kv_lens (int32), the scale, and whether some page has empty slots."""
    one_head = {"kv_heads": 1, "head_dim": MLA_LATENT + MLA_ROPE, "v_head_dim": 0}
    made = attention_paged.make_inputs(replace(workload, axes={**workload.axes, **one_head}), device, seed)
    return {
        "q": made["q"],
        "latent_pool": made["k_pool"].squeeze(2),
        "block_table": made["block_table"],
        "kv_lens": made["kv_lens"],
        "softmax_scale": 1 / math.sqrt(UNABSORBED_HEAD),
        "ragged": made["ragged"],
    }


def validate(
    q: torch.Tensor, latent_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor,
    *, softmax_scale: float, ragged: bool,
) -> None:  # fmt: skip
    """Raises ValueError when a length passes the block table, or an entry that is used names no page of the pool."""
    attention_paged.validate(q, latent_pool, latent_pool, block_table, kv_lens, ragged=ragged)


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[Outputs], Outputs]]:
    """The whole of a small problem; of a large one some sequences and heads."""
    q, pool, table = inputs["q"], inputs["latent_pool"], inputs["block_table"]
    (B, Sq, H, _), (page, most_pages) = q.shape, (pool.shape[1], table.shape[1])
    if B * H * Sq * most_pages * page <= CHECK_IN_FULL:
        return inputs, lambda out: out
    part = part_of(q, H)  # each head like a KV head of its own: any of them stands for the others
    rows, one_head = part.sequences, torch.zeros(1, dtype=torch.long, device=q.device)
    places = torch.arange(len(rows) * most_pages, dtype=torch.int32, device=q.device)
    fewer = inputs | {
        "q": part.queries(q),
        "latent_pool": gathered_pages(pool[:, :, None], table[rows], one_head)[:, :, 0],
        "block_table": places.view(len(rows), most_pages),
        "kv_lens": inputs["kv_lens"][rows],
    }
    return fewer, part.cut


def _kind(workload: Workload) -> tuple[torch.dtype, int, int]:
    """dtype, packed rows and page size."""
    a = workload.axes
    return torch_dtype(workload.dtype), a["q_len"] * a["q_heads"], a["page_size"]


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernel's configurations for this workload."""
    from kernels import attention_mla_decode_triton as kernel

    return kernel.configs_for(*_kind(workload), arch)


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernel's tuned table for this workload."""
    from kernels import attention_mla_decode_triton as kernel

    return kernel.bucket_of(*_kind(workload))


def work(workload: Workload) -> Work:
    """The latent once over the real lengths; lengths and the block table entries in use are overhead."""
    a = workload.axes
    lens = workload.kv_lens or (a["kv_len"],) * a["batch"]
    counted = mla_decode_work(
        batch=a["batch"],
        q_heads=a["q_heads"],
        q_len=a["q_len"],
        kv_tokens=sum(lens),
        pairs=sum(unmasked_pairs(a["q_len"], length, causal=True) for length in lens),
        dtype=workload.dtype,
    )
    return paged(counted, batch=a["batch"], pages=sum(math.ceil(length / a["page_size"]) for length in lens))


def unsupported(workload: Workload, provider: str) -> str | None:
    """More query tokens than decode has, and what a provider cannot express."""
    a = workload.axes
    shortest = min(workload.kv_lens or (a["kv_len"],))
    if not 1 <= a["q_len"] <= DECODE_TOKENS:
        return f"q_len={a['q_len']}: attention_mla_decode is for 1 to {DECODE_TOKENS} new tokens"
    if provider == "triton":
        return NO_EXACT if workload.dtype == "float32" else None
    if provider == "torch" and shortest < a["q_len"]:
        return f"SDPA promises no value for queries that see no key (length {shortest}, q_len={a['q_len']})"
    if provider in HALF_ONLY and workload.dtype == "float32":
        return f"{provider} computes in float16 and bfloat16 only"
    if provider == "flash_mla" and a["page_size"] != FLASH_MLA_PAGE:
        return f"FlashMLA takes pages of {FLASH_MLA_PAGE} keys, not {a['page_size']}"
    if provider in HALF_ONLY and shortest < 1:
        return f"{provider} plans no sequence without keys"
    return None


def facts(provider: str, inputs: Inputs) -> Mapping[str, str]:
    """Which SDPA backend ran, asked of a problem of the gathered shape."""
    if provider != "torch":
        return {}
    problem = {name: value for name, value in inputs.items() if name != "softmax_scale"}
    return {"sdpa_backend": _backend(*_packed_problem(**problem), inputs["softmax_scale"]).name}


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A decode workload of technique mla."""
    return Workload(axes=axes, dtype=dtype, phase="decode", technique="mla", source=source)


def _check(dtype: str = "float16", kv_lens: tuple[int, ...] = (), **axes: int) -> Workload:
    sizes = {"batch": 2, "q_len": 1, "kv_len": 70, "q_heads": 16, "page_size": 64} | axes
    return replace(describe_axes(sizes, dtype, ("ragged, for correctness",)), kv_lens=kv_lens)


OP = Op(
    name="attention_mla_decode",
    summary="absorbed MLA: 1 to 16 new tokens of all heads attend to their sequence's paged latent cache",
    axes={"batch": 1, "q_len": 1, "kv_len": None, "q_heads": 128, "page_size": 64},
    dtypes=("bfloat16", "float16", "float32"),
    make_inputs=make_inputs,
    reference=attention_mla_decode_reference,
    eager=attention_mla_decode_eager,
    providers={
        "triton": attention_mla_decode_triton,
        "torch": attention_mla_decode_torch,
        "flash_mla": attention_mla_flash_mla,
        "flashinfer": attention_mla_flashinfer,
    },
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(),
        _check(kv_len=33, q_heads=3, page_size=16),
        _check(kv_lens=(5, 0, 1), batch=3, q_heads=7, page_size=1),
        _check(q_len=2, kv_len=130, kv_lens=(2, 130), q_heads=20, page_size=24),
        _check(q_len=4, batch=1, q_heads=32),
        _check("float32", kv_lens=(70, 33), q_heads=5),
    ),
    roles={"q": "resident", "latent_pool": "streamed", "block_table": "resident", "kv_lens": "resident"},
    unsupported=unsupported,
    configs=configs,
    bucket=bucket,
    cuda_only=TRITON_ON_CPU
    | {"flash_mla": "FlashMLA runs on CUDA only", "flashinfer": attention_paged.CUDA_ONLY["flashinfer"]},
    sample=sample,
    facts=facts,
    validate=validate,
)
