"""What the paged attention ops share: the pool, the truth, and other people's kernels for it.

The keys of a sequence lie in pages of `page_size` slots, anywhere in a pool: k_pool [pages, page_size, Hkv, D], v_pool
[pages, page_size, Hkv, Dv], of any strides. Key j of sequence b is in slot j % page_size of page
block_table[b, j // page_size]. Slots and block table entries past a sequence's length mean nothing, and hold -1 here as
some engines leave them. Queries are the last tokens of their sequence, so the mask is causal and bottom-right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernels import attention_decode
from kernels.attention import masked_attention, packed_backend, packed_sdpa, too_wide, visible_keys
from kernels.attention_part import part_of
from kernels.inputs import Sampler, torch_dtype
from kernels.spec import Inputs, Outputs, Workload
from kernels.work import Work, paged

CHECK_IN_FULL = 2**20
"""Scores up to which the float64 reference is computed whole; above it a sample of sequences, queries and heads."""
SAMPLED_QUERIES = 32
ROLES = {
    "q": "resident", "k_pool": "streamed", "v_pool": "streamed", "block_table": "resident", "kv_lens": "resident",
}  # fmt: skip
CUDA_ONLY = {"flash_attn": "flash-attn runs on CUDA only", "flashinfer": "FlashInfer runs on CUDA only"}
FLASH_PAGE = 256
"""flash-attn takes pages of whole multiples of this."""


def pages_of(lens: torch.Tensor, page_size: int) -> torch.Tensor:
    """Pages that hold the keys of sequences of these lengths."""
    return (lens.long() + page_size - 1) // page_size


def gathered(pool: torch.Tensor, block_table: torch.Tensor, keys: int) -> torch.Tensor:
    """The first `keys` keys of every sequence, [B, keys, Hkv, D]: a copy of whole pages, never of query heads.

    Entries that name no page stand for page 0: what they give lies past the length.
    """
    B, most_pages = block_table.shape
    if not pool.shape[0]:
        return pool.new_zeros((B, keys, *pool.shape[2:]))
    pages = pool[block_table.clamp(0, pool.shape[0] - 1).long()]
    return pages.reshape(B, most_pages * pool.shape[1], *pool.shape[2:])[:, :keys]


def attention_paged_torch(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    ragged: bool,
    provider: str = "torch",
) -> torch.Tensor:
    """torch's SDPA over pages gathered first, as torch has no paged attention; [B, Sq, Hq, Dv].

    Gathering reads and writes every key and value once more; ragged lengths take a mask over the allocation.
    """
    most = block_table.shape[1] * k_pool.shape[1]
    k, v = gathered(k_pool, block_table, most), gathered(v_pool, block_table, most)
    seen = visible_of(q.shape[1], kv_lens, most)[:, None] if ragged else None
    return packed_sdpa(provider, q, k, v, seen=seen)


def attention_paged_triton(**inputs: Any) -> Outputs:
    """The Triton kernels: see `kernels.attention_paged_triton.attention_paged`."""
    from kernels import attention_paged_triton as kernel

    return kernel.attention_paged(**inputs)


def visible_of(q_len: int, kv_lens: torch.Tensor, keys: int, behind: torch.Tensor | None = None) -> torch.Tensor:
    """bool [B, Sq, keys]: the keys that each query sees; `behind` as of `attention_paged_eager`."""
    if behind is None:
        behind = torch.arange(q_len - 1, -1, -1, device=kv_lens.device)
    return visible_keys(kv_lens[:, None] - 1 - behind, kv_lens, keys, causal=True)


def attention_paged_eager(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    ragged: bool = True,
    behind: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [B, Sq, Hq, Dv], lse [B, Hq, Sq]) by plain torch in the inputs' precision.

    Args:
        behind: [Sq] tokens that follow each query, where q holds only some of them.
    """
    most = block_table.shape[1] * k_pool.shape[1]
    # Lengths of the meta device have no values: shapes alone are asked for.
    keys = most if kv_lens.is_meta else int(kv_lens.max()) if kv_lens.numel() else 0
    k, v = gathered(k_pool, block_table, keys), gathered(v_pool, block_table, keys)
    return masked_attention(q, k, v, visible_of(q.shape[1], kv_lens, keys, behind))


def attention_paged_reference(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, *tables: torch.Tensor, **how: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in float64 from the inputs' own values."""
    return attention_paged_eager(q.double(), k_pool.double(), v_pool.double(), *tables, **how)


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """q, k_pool, v_pool, block_table and kv_lens (int32), and whether some sequence leaves slots of its pages empty.

    The pool has just the pages that are needed, handed out in random order.
    """
    a = workload.axes
    draw, dtype, page = Sampler(device, seed), torch_dtype(workload.dtype), a["page_size"]
    lens = workload.kv_lens or (a["kv_len"],) * a["batch"]
    used = [math.ceil(length / page) for length in lens]
    order = torch.randperm(sum(used), generator=torch.Generator().manual_seed(seed)).int()
    table = torch.full((a["batch"], math.ceil(a["kv_len"] / page)), -1, dtype=torch.int32)
    for b, pages in enumerate(torch.split(order, used)):
        table[b, : len(pages)] = pages
    v_head_dim = a.get("v_head_dim", a["head_dim"])
    return {
        "q": draw.normal((a["batch"], a["q_len"], a["q_heads"], a["head_dim"]), dtype),
        "k_pool": draw.normal((sum(used), page, a["kv_heads"], a["head_dim"]), dtype),
        "v_pool": draw.normal((sum(used), page, a["kv_heads"], v_head_dim), dtype),
        "block_table": table.to(device),
        "kv_lens": torch.tensor(lens, dtype=torch.int32, device=device),
        "ragged": any(length != table.shape[1] * page for length in lens),
    }


def validate(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor,
    *, ragged: bool,
) -> None:  # fmt: skip
    """Raises ValueError when a length passes the block table, or an entry that is used names no page of the pool."""
    pages, page = k_pool.shape[:2]
    most_pages = block_table.shape[1]
    low, high = map(int, kv_lens.aminmax()) if kv_lens.numel() else (0, 0)
    if low < 0 or high > most_pages * page:
        raise ValueError(
            f"kv_lens must lie in 0..{most_pages * page} (block tables of {most_pages} pages of {page} keys), "
            f"got {low}..{high}"
        )
    used = torch.arange(most_pages, device=kv_lens.device) < pages_of(kv_lens, page)[:, None]
    wrong = (used & ((block_table < 0) | (block_table >= pages))).nonzero()
    if len(wrong):
        b, i = wrong[0].tolist()
        raise ValueError(
            f"block_table[{b}, {i}] is {int(block_table[b, i])}, and {len(wrong)} of the {int(used.sum())} entries "
            f"that hold keys are like it: wanted pages 0..{pages - 1} of the pool"
        )


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[Outputs], Outputs]]:
    """The whole of a small problem; of a large one some sequences, queries, and KV heads with their query heads."""
    q, k_pool, table = inputs["q"], inputs["k_pool"], inputs["block_table"]
    (B, Sq, Hq, _), (page, Hkv), most_pages = q.shape, k_pool.shape[1:3], table.shape[1]
    if B * Hq * Sq * most_pages * page <= CHECK_IN_FULL:
        return inputs, lambda out: out
    part = part_of(q, Hkv, tokens=SAMPLED_QUERIES)
    rows = part.sequences
    places = torch.arange(len(rows) * most_pages, dtype=torch.int32, device=q.device)
    fewer = {
        "q": part.queries(q),
        "k_pool": gathered_pages(k_pool, table[rows], part.kv_heads),
        "v_pool": gathered_pages(inputs["v_pool"], table[rows], part.kv_heads),
        "block_table": places.view(len(rows), most_pages),
        "kv_lens": inputs["kv_lens"][rows],
        "ragged": inputs["ragged"],
        "behind": Sq - 1 - part.tokens,
    }
    return fewer, part.cut


def gathered_pages(pool: torch.Tensor, block_table: torch.Tensor, kv_heads: torch.Tensor) -> torch.Tensor:
    """A pool of the pages that a block table names, in its order, with these KV heads alone."""
    pages = block_table.flatten().clamp(0, pool.shape[0] - 1).long()
    return pool[pages[:, None], :, kv_heads[None, :]].transpose(1, 2)


def width_and_rows(workload: Workload) -> tuple[int, int]:
    """Head width, and packed rows of a KV head."""
    a = workload.axes
    return max(a["head_dim"], a.get("v_head_dim", 0)), a["q_len"] * a["q_heads"] // a["kv_heads"]


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernel's configurations for this workload."""
    from kernels import attention_paged_triton as kernel

    return kernel.configs_for(torch_dtype(workload.dtype), *width_and_rows(workload), workload.axes["page_size"], arch)


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernel's tuned table for this workload."""
    from kernels import attention_paged_triton as kernel

    return kernel.bucket_of(torch_dtype(workload.dtype), *width_and_rows(workload), workload.axes["page_size"])


def work(workload: Workload) -> Work:
    """K and V once per KV head over the real lengths; lengths and the block table entries in use are overhead."""
    a = workload.axes
    lens = workload.kv_lens or (a["kv_len"],) * a["batch"]
    counted = attention_decode.work(workload)
    return paged(counted, batch=a["batch"], pages=sum(math.ceil(length / a["page_size"]) for length in lens))


def unsupported(workload: Workload, provider: str) -> str | None:
    """What a provider cannot express."""
    a = workload.axes
    shortest = min(workload.kv_lens or (a["kv_len"],))
    if a["q_heads"] % a["kv_heads"]:
        return f"{a['q_heads']} query heads do not divide among {a['kv_heads']} KV heads"
    if provider == "triton":
        return too_wide(a)
    if provider.startswith("torch") and shortest < a["q_len"]:
        return f"SDPA promises no value for queries that see no key (length {shortest}, q_len={a['q_len']})"
    if provider in ("flash_attn", "flashinfer") and workload.dtype == "float32":
        return f"{provider} computes in float16 and bfloat16 only"
    if provider == "flash_attn" and a["page_size"] % FLASH_PAGE:
        return f"flash-attn takes pages of multiples of {FLASH_PAGE} keys, not {a['page_size']}"
    if provider == "flashinfer" and shortest < 1:
        return "flashinfer plans no sequence without keys"
    return None


def facts(provider: str, inputs: Inputs) -> Mapping[str, str]:
    """Which SDPA backend ran, asked of a problem of the gathered shape."""
    if provider != "torch":
        return {}
    q, k_pool, v_pool, table = (inputs[name] for name in ("q", "k_pool", "v_pool", "block_table"))
    most = table.shape[1] * k_pool.shape[1]
    k, v = (pool.new_empty((q.shape[0], most, *pool.shape[2:])) for pool in (k_pool, v_pool))
    seen = visible_of(q.shape[1], inputs["kv_lens"], most)[:, None] if inputs["ragged"] else None
    return {"sdpa_backend": packed_backend(provider, q, k, v, seen=seen).name}


def describe(axes: Mapping[str, int], dtype: str, source: tuple[str, ...], phase: str) -> Workload:
    """A workload of technique paged."""
    sizes = {**axes, "kv_heads": axes["kv_heads"] or axes["q_heads"]}
    return Workload(axes=sizes, dtype=dtype, phase=phase, technique="paged", source=source)
