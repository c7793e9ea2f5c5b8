"""The workloads that each technique of LLM serving means for a published model on one GPU.

Shapes come from `kernels.models`; which models, batches and lengths is left to `bench.technique_suite`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.attention_layers import full_attention
from kernels.models import Model
from kernels.spec import Workload
from kernels.work import DECODE_TOKENS

SHARED_BY = 8
"""Query heads of one KV head in the grouped variant of every model's shape."""


def kv_append_workloads(
    model: Model, tp: int, batches: Sequence[int], kv_len: int, prompts: Sequence[int], dtype: str
) -> list[Workload]:
    """One new token a sequence, last of a cache of `kv_len` keys; and one prompt of each length, alone in its cache."""
    sizes = [{"batch": batch, "q_len": 1, "kv_len": kv_len} for batch in batches]
    sizes += [{"batch": 1, "q_len": length, "kv_len": length} for length in prompts]
    return [
        Workload(
            axes={**size, "kv_heads": heads["kv_heads"], "head_dim": heads["head_dim"]},
            dtype=dtype,
            phase="decode" if size["q_len"] <= DECODE_TOKENS else "prefill",
            technique="kv_cache",
            source=source,
        )
        for heads, source in full_attention(model, tp)
        for size in sizes
    ]


def kv_head_workloads(
    model: Model, tp: int, batches: Sequence[int], kv_lens: Sequence[int], dtype: str
) -> list[Workload]:
    """The model's decode with a KV head for each query head (MHA), for `SHARED_BY` (GQA), for all (MQA), and its own:
    the same attention over fewer and fewer bytes."""
    made = []
    for heads, source in full_attention(model, tp):
        q_heads, own = heads["q_heads"], heads["kv_heads"]
        for kv_heads in dict.fromkeys((q_heads, max(1, q_heads // SHARED_BY), 1, own)):
            other = "" if kv_heads == own else f", with {kv_heads} KV heads for {own}"
            made += [
                Workload(
                    axes={"batch": batch, "q_len": 1, "kv_len": kv_len, **heads, "kv_heads": kv_heads},
                    dtype=dtype,
                    phase="decode",
                    technique="kv_cache",
                    source=tuple(line + other for line in source),
                )
                for batch in batches
                for kv_len in kv_lens
            ]
    return made


def paged_decode_workloads(
    model: Model, tp: int, batches: Sequence[int], kv_lens: Sequence[int], page_sizes: Sequence[int], dtype: str
) -> list[Workload]:
    """One new token a sequence over a paged cache of each length and page size."""
    return [
        _paged("decode", source, dtype, {"batch": batch, "q_len": 1, "kv_len": kv_len, **heads, "page_size": page_size})
        for heads, source in full_attention(model, tp)
        for page_size in page_sizes
        for batch in batches
        for kv_len in kv_lens
    ]


def paged_prefill_workloads(
    model: Model, tp: int, lengths: Sequence[int], page_sizes: Sequence[int], dtype: str
) -> list[Workload]:
    """Causal attention of one prompt of each length, whose keys and values have just been written into pages."""
    return [
        _paged("prefill", source, dtype, {"batch": 1, "q_len": n, "kv_len": n, **heads, "page_size": page_size})
        for heads, source in full_attention(model, tp)
        for page_size in page_sizes
        for n in lengths
    ]


def _paged(phase: str, source: tuple[str, ...], dtype: str, axes: dict[str, int]) -> Workload:
    return Workload(axes=axes, dtype=dtype, phase=phase, technique="paged", source=source)
