"""What the ops over sequences of unlike lengths share: packed queries, the truth, torch's answer, and what is checked.

Queries of all sequences lie one after another, q [total_q, Hq, D]; cu_seqlens_q [B + 1] int32 says where each starts
and at last their total, as engines and other libraries have it. The mask is bottom-right. The host knows the lengths
too, (new tokens, keys) of each sequence, as an engine does: what is planned or looped over takes them from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

import torch

from kernels.attention import WIDEST_HEAD, masked_attention, packed_sdpa, sdpa, visible_keys
from kernels.attention_part import SAMPLED_SEQUENCES, part_of
from kernels.matmul import spread
from kernels.ragged_plan import Lengths, keys_of, pairs_of
from kernels.spec import Workload
from kernels.work import Work, attention_work

CHECK_IN_FULL = 2**20
"""Scores up to which the float64 reference is computed whole; above it a sample of sequences, queries and heads."""
SAMPLED_QUERIES = 16
CUDA_ONLY = {"flash_attn": "flash-attn runs on CUDA only", "flashinfer": "FlashInfer runs on CUDA only"}
KeysOf = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
"""Sequence -> its keys and values [1, Skv, Hkv, D]."""


def lengths_of(workload: Workload) -> Lengths:
    """(new tokens, keys) of each sequence."""
    a = workload.axes
    q_lens, kv_lens = workload.q_lens or (a["q_len"],) * a["batch"], workload.kv_lens or (a["kv_len"],) * a["batch"]
    return tuple(zip(q_lens, kv_lens, strict=True))


def starts(lens: Iterable[int], device: torch.device | str) -> torch.Tensor:
    """Cumulative lengths [B + 1] int32 from 0."""
    return torch.tensor([0, *accumulate(lens)], dtype=torch.int32, device=device)


def sequences(q: torch.Tensor, lengths: Lengths) -> Iterator[tuple[int, torch.Tensor]]:
    """(number, its queries [1, Sq, Hq, D]) of each sequence."""
    yield from enumerate(part[None] for part in torch.split(q, [q_len for q_len, _ in lengths]))


def ragged_eager(
    q: torch.Tensor, keys: KeysOf, lengths: Lengths, *, v_head_dim: int, causal: bool,
    places: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(out [total_q, Hq, Dv], lse [Hq, total_q]) by plain torch in the inputs' precision, one sequence at a time.

    Args:
        places: of each sequence's queries among its keys, where q holds only some of them.
    """
    outs = [q.new_zeros((0, q.shape[1], v_head_dim))]
    lses = [torch.zeros((q.shape[1], 0), dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)]
    for b, queries in sequences(q, lengths):
        q_len, kv_len = lengths[b]
        at = torch.arange(q_len, device=q.device) + kv_len - q_len if places is None else places[b].to(q.device)
        lens = torch.full((1,), kv_len, device=q.device)
        seen = visible_keys(at[None], lens, kv_len, causal=causal)
        out, lse = masked_attention(queries, *keys(b), seen)
        outs.append(out[0])
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, dim=1)


def ragged_sdpa(q: torch.Tensor, keys: KeysOf, lengths: Lengths, *, causal: bool) -> torch.Tensor:
    """torch's SDPA once a sequence, K and V never expanded; [total_q, Hq, Dv].

    One call for all would take a mask of all queries by all keys, or pad every sequence to the longest.
    """
    outs = []
    for b, queries in sequences(q, lengths):
        if not queries.shape[1]:
            continue
        k, v = keys(b)
        if queries.shape[1] == 1:
            outs.append(packed_sdpa("torch", queries, k, v, seen=None)[0])
        else:
            outs.append(sdpa("torch", queries, k, v, causal=causal)[0])
    return torch.cat(outs)


def small(lengths: Lengths, q_heads: int) -> bool:
    """Whether all scores of a batch are few enough to be checked."""
    return q_heads * sum(q_len * kv_len for q_len, kv_len in lengths) <= CHECK_IN_FULL


def sampled_queries(
    q: torch.Tensor, lengths: Lengths, kv_heads: int
) -> tuple[dict[str, Any], list[int], torch.Tensor, Callable[[Any], Any]]:
    """(q, lengths and places of a sample, its sequences, its KV heads, how to cut outputs alike)."""
    cpu = torch.device("cpu")
    chosen = spread(len(lengths), SAMPLED_SEQUENCES, cpu).tolist()
    tokens = [spread(lengths[b][0], SAMPLED_QUERIES, cpu) for b in chosen]
    part = part_of(q[None], kv_heads)
    first = [0, *accumulate(q_len for q_len, _ in lengths)]
    rows = torch.cat([first[b] + at for b, at in zip(chosen, tokens, strict=True)]).to(q.device)
    fewer = {
        "q": q[rows][:, part.heads],
        "lengths": tuple((len(at), lengths[b][1]) for b, at in zip(chosen, tokens, strict=True)),
        "places": tuple(at + lengths[b][1] - lengths[b][0] for b, at in zip(chosen, tokens, strict=True)),
    }

    def cut(outputs: Any) -> Any:
        if isinstance(outputs, tuple):
            return cut(outputs[0]), outputs[1][part.heads][:, rows]
        return outputs[rows][:, part.heads]

    return fewer, chosen, part.kv_heads, cut


def ragged_work(workload: Workload, *, causal: bool, table_entries: int) -> Work:
    """Pairs counted exactly for each sequence, K and V once per KV head over the keys that some query sees.

    Args:
        table_entries: of 4 bytes each, read beside them.
    """
    a, lengths = workload.axes, lengths_of(workload)
    counted = attention_work(
        batch=1,
        q_heads=a["q_heads"],
        kv_heads=a["kv_heads"],
        q_len=sum(q_len for q_len, _ in lengths),
        pairs=pairs_of(lengths, causal=causal),
        kv_tokens=keys_of(lengths),
        head_dim=a["head_dim"],
        v_head_dim=a.get("v_head_dim", a["head_dim"]),
        dtype=workload.dtype,
    )
    return Work(flops=counted.flops, bytes=counted.bytes, overhead_bytes=4 * table_entries)


def most_rows(workload: Workload) -> int:
    """Packed rows of a KV head of the sequence with the most new tokens."""
    a = workload.axes
    return max((q_len for q_len, _ in lengths_of(workload)), default=0) * a["q_heads"] // a["kv_heads"]


def validate_starts(name: str, table: torch.Tensor, lens: list[int], total: int, of: str) -> None:
    """Raises ValueError unless a table of starts is that of these lengths and ends with the tensor that it is of."""
    wanted = [0, *accumulate(lens)]
    got = table.tolist()
    if got != wanted:
        at = next(i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b)
        raise ValueError(f"{name}[{at}] is {got[at]}: wanted {wanted[at]}, the sum of the lengths before it")
    if wanted[-1] != total:
        raise ValueError(f"{name} ends with {wanted[-1]}: wanted {total}, the rows of {of}")


def check_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    lengths: Lengths,
) -> None:  # fmt: skip
    """Raises ValueError unless the shapes fit together as op attention_varlen wants them."""
    tables = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    shapes = _shapes({"q": q, "k": k, "v": v, **tables}, lengths)
    if {q.ndim, k.ndim, v.ndim} != {3} or k.shape[:2] != v.shape[:2] or q.shape[2] != k.shape[2]:
        raise ValueError(f"wanted q [total_q, Hq, D], k [total_k, Hkv, D], v [total_k, Hkv, Dv], got {shapes}")
    if {table.shape for table in tables.values()} != {(len(lengths) + 1,)}:
        raise ValueError(f"wanted cu_seqlens_q and cu_seqlens_k [B + 1] for B lengths, got {shapes}")
    _check_heads(q, k, v, lengths, shapes)


def check_mixed(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, cu_seqlens_q: torch.Tensor, block_table: torch.Tensor,
    kv_lens: torch.Tensor, lengths: Lengths,
) -> None:  # fmt: skip
    """Raises ValueError unless the shapes fit together as op attention_mixed wants them."""
    given = {"q": q, "k_pool": k_pool, "v_pool": v_pool, "cu_seqlens_q": cu_seqlens_q, "block_table": block_table}
    shapes = _shapes({**given, "kv_lens": kv_lens}, lengths)
    fits = q.ndim == 3 and {k_pool.ndim, v_pool.ndim} == {4} and k_pool.shape[:3] == v_pool.shape[:3]
    if not fits or q.shape[2] != k_pool.shape[3] or k_pool.shape[1] < 1:
        raise ValueError(
            f"wanted q [total_q, Hq, D], k_pool [pages, page_size, Hkv, D] and v_pool [pages, page_size, Hkv, Dv] with "
            f"pages of at least 1 key, got {shapes}"
        )
    B = len(lengths)
    if cu_seqlens_q.shape != (B + 1,) or block_table.ndim != 2 or len(block_table) != B or kv_lens.shape != (B,):
        raise ValueError(f"wanted cu_seqlens_q [B + 1], block_table [B, most pages], kv_lens [B], got {shapes}")
    _check_heads(q, k_pool, v_pool, lengths, shapes)


def _shapes(tensors: dict[str, torch.Tensor], lengths: Lengths) -> str:
    told = [f"{name} {list(tensor.shape)} {tensor.dtype}" for name, tensor in tensors.items()]
    return f"{', '.join(told)} and {len(lengths)} lengths of {sum(q_len for q_len, _ in lengths)} new tokens"


def _check_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Lengths, shapes: str) -> None:
    if sum(q_len for q_len, _ in lengths) != len(q):
        raise ValueError(f"wanted lengths that add up to q's rows, got {shapes}")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"wanted one dtype, got {shapes}")
    if q.shape[1] % max(1, k.shape[-2]) or max(q.shape[2], v.shape[-1]) > WIDEST_HEAD:
        raise ValueError(f"wanted Hq a multiple of Hkv and heads up to {WIDEST_HEAD} wide, got {shapes}")


def unsupported(workload: Workload, provider: str, *, causal: bool) -> str | None:
    """What a provider cannot express of any ragged batch."""
    a, lengths = workload.axes, lengths_of(workload)
    if a["q_heads"] % a["kv_heads"]:
        return f"{a['q_heads']} query heads do not divide among {a['kv_heads']} KV heads"
    blind = [(q, kv) for q, kv in lengths if q and kv < (q if causal else 1)]
    if provider == "torch" and blind:
        return f"SDPA promises no value for queries that see no key (q_len, kv_len = {blind[0]})"
    if provider in CUDA_ONLY and workload.dtype == "float32":
        return f"{provider} computes in float16 and bfloat16 only"
    if provider == "flashinfer" and any(kv < 1 for _, kv in lengths):
        return "flashinfer plans no sequence without keys"
    return None
