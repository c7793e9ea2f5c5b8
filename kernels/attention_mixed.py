"""attention_mixed: one step of continuous batching: chunks of prompts and decode tokens in one launch over paged KV.

q [total_q, Hq, D] holds each sequence's new tokens one after another, cu_seqlens_q [B + 1] int32 their starts; keys and
values lie in pages, as `kernels.attention_paged` says, the new tokens' own among them. A sequence may have one new
token (decode), a few (a draft to verify), thousands (a chunk of a prompt) or none; decode of a batch of unlike lengths
is the case of one each. Causal, bottom-right. Bound: arithmetic for chunks, DRAM for decode tokens, so that together
they use both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernels import attention_paged
from kernels import attention_ragged as common
from kernels.attention import too_wide
from kernels.attention_ragged_peers import attention_mixed_flash_attn, attention_mixed_flashinfer
from kernels.inputs import Sampler, torch_dtype
from kernels.ragged_plan import Lengths
from kernels.spec import TRITON_ON_CPU, Inputs, Op, Outputs, Workload
from kernels.work import Work


def attention_mixed_torch(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    lengths: Lengths,
) -> torch.Tensor:
    """torch's SDPA, one call a sequence over its pages gathered first; [total_q, Hq, Dv].

    Gathering reads and writes every key and value once more. See `kernels.attention_ragged.ragged_sdpa`.
    """
    return common.ragged_sdpa(q, _keys_of(k_pool, v_pool, block_table, lengths), lengths, causal=True)


def attention_mixed_triton(**inputs: Any) -> Outputs:
    """The Triton kernels: see `kernels.attention_ragged_triton.attention_mixed`."""
    from kernels import attention_ragged_triton as kernel

    return kernel.attention_mixed(**inputs)


def attention_mixed_eager(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    lengths: Lengths,
    places: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [total_q, Hq, Dv], lse [Hq, total_q]); see `kernels.attention_ragged.ragged_eager`."""
    keys = _keys_of(k_pool, v_pool, block_table, lengths)
    return common.ragged_eager(q, keys, lengths, v_head_dim=v_pool.shape[3], causal=True, places=places)


def attention_mixed_reference(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, *tables: torch.Tensor, **how: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in float64 from the inputs' own values."""
    return attention_mixed_eager(q.double(), k_pool.double(), v_pool.double(), *tables, **how)


def _keys_of(k_pool: torch.Tensor, v_pool: torch.Tensor, block_table: torch.Tensor, lengths: Lengths) -> common.KeysOf:
    def keys(b: int) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = (attention_paged.gathered(pool, block_table[b : b + 1], lengths[b][1]) for pool in (k_pool, v_pool))
        return k, v

    return keys


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """q, the starts of its sequences, pools, block table and kv_lens (int32), and the lengths on the host."""
    a, lengths, draw = workload.axes, common.lengths_of(workload), Sampler(device, seed)
    q_lens = [q_len for q_len, _ in lengths]
    q = draw.normal((sum(q_lens), a["q_heads"], a["head_dim"]), torch_dtype(workload.dtype))
    cache = attention_paged.make_cache(workload, draw, seed)
    return {"q": q, "cu_seqlens_q": common.starts(q_lens, device), **cache, "lengths": lengths}


def validate(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, cu_seqlens_q: torch.Tensor, block_table: torch.Tensor,
    kv_lens: torch.Tensor, *, lengths: Lengths,
) -> None:  # fmt: skip
    """Raises ValueError when lengths on the device are not the host's, or a used entry names no page of the pool."""
    common.validate_starts("cu_seqlens_q", cu_seqlens_q, [q_len for q_len, _ in lengths], len(q), "q")
    wanted = [kv_len for _, kv_len in lengths]
    if kv_lens.tolist() != wanted:
        raise ValueError(f"kv_lens are {kv_lens.tolist()}: wanted {wanted}, the lengths that the host has")
    attention_paged.validate(q, k_pool, v_pool, block_table, kv_lens, ragged=True)


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[Outputs], Outputs]]:
    """The whole of a small problem; of a large one some sequences, queries, and KV heads with their query heads."""
    q, table, lengths = inputs["q"], inputs["block_table"], inputs["lengths"]
    if common.small(lengths, q.shape[1]):
        return inputs, lambda out: out
    fewer, chosen, kv_heads, cut = common.sampled_queries(q, lengths, inputs["k_pool"].shape[2])
    places = torch.arange(len(chosen) * table.shape[1], dtype=torch.int32, device=q.device)
    for name in ("k_pool", "v_pool"):
        fewer[name] = attention_paged.gathered_pages(inputs[name], table[chosen], kv_heads)
    fewer["block_table"] = places.view(len(chosen), table.shape[1])
    fewer["kv_lens"] = inputs["kv_lens"][chosen]
    fewer["cu_seqlens_q"] = common.starts([q_len for q_len, _ in fewer["lengths"]], q.device)
    return inputs | fewer, cut


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernel's configurations for this workload."""
    from kernels import attention_ragged_triton as kernel

    return kernel.configs_for(*_kind(workload), arch)


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernel's tuned table for this workload."""
    from kernels import attention_ragged_triton as kernel

    return kernel.bucket_of(*_kind(workload))


def _kind(workload: Workload) -> tuple[torch.dtype, int, int, int]:
    a = workload.axes
    width = max(a["head_dim"], a.get("v_head_dim", 0))
    return torch_dtype(workload.dtype), width, common.most_rows(workload), a["page_size"]


def work(workload: Workload) -> Work:
    """Each sequence's own pairs and keys; starts, lengths and the block table entries in use are overhead."""
    a = workload.axes
    pages = sum(math.ceil(kv_len / a["page_size"]) for _, kv_len in common.lengths_of(workload))
    return common.ragged_work(workload, causal=True, table_entries=pages + 2 * a["batch"] + 1)


def unsupported(workload: Workload, provider: str) -> str | None:
    """What a provider cannot express."""
    if reason := common.unsupported(workload, provider, causal=True):
        return reason
    if provider == "flash_attn" and workload.axes["page_size"] % attention_paged.FLASH_PAGE:
        return f"flash-attn takes pages of multiples of {attention_paged.FLASH_PAGE} keys"
    return too_wide(workload.axes) if provider == "triton" else None


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A step in which every sequence has as many new tokens and keys; `q_lens` and `kv_lens` make them unlike."""
    sizes = {**axes, "kv_heads": axes["kv_heads"] or axes["q_heads"]}
    return Workload(axes=sizes, dtype=dtype, phase="mixed", technique="continuous", source=source)


def _check(dtype: str = "float32", lengths: Lengths = (), **axes: int) -> Workload:
    sizes = {"batch": 3, "q_len": 1, "kv_len": 40, "q_heads": 4, "kv_heads": 2, "head_dim": 64, "page_size": 16}
    q_lens, kv_lens = zip(*lengths, strict=True) if lengths else ((), ())
    if lengths:
        sizes |= {"batch": len(lengths), "q_len": max(q_lens), "kv_len": max(kv_lens)}
    made = describe_axes(sizes | axes, dtype, ("ragged, for correctness",))
    return replace(made, q_lens=q_lens, kv_lens=kv_lens)


OP = Op(
    name="attention_mixed",
    summary="chunks of prompts and decode tokens together over a paged KV cache, causal bottom-right",
    axes={
        "batch": 64, "q_len": 1, "kv_len": None, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "page_size": 16,
    },
    dtypes=("bfloat16", "float16", "float32"),
    make_inputs=make_inputs,
    reference=attention_mixed_reference,
    eager=attention_mixed_eager,
    providers={
        "triton": attention_mixed_triton,
        "torch": attention_mixed_torch,
        "flash_attn": attention_mixed_flash_attn,
        "flashinfer": attention_mixed_flashinfer,
    },
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(),
        _check("float16", kv_len=33, batch=2, q_heads=8, kv_heads=1, head_dim=128, page_size=32),
        _check(lengths=((19, 30), (1, 40), (1, 1), (4, 20))),
        _check(lengths=((1, 0), (0, 9), (5, 3), (1, 100), (0, 0), (2, 2)), q_heads=3, kv_heads=1, page_size=1),
    ),
    roles=attention_paged.ROLES | {"cu_seqlens_q": "resident"},
    unsupported=unsupported,
    configs=configs,
    bucket=bucket,
    cuda_only=TRITON_ON_CPU | common.CUDA_ONLY,
    sample=sample,
    validate=validate,
)  # fmt: skip
