"""The workloads of techniques that use what a cache holds already: chunked prefill, shared prefixes, drafted tokens.

Shapes come from `kernels.models`; which models and sizes is left to `bench.technique_suite`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.attention_layers import full_attention
from kernels.models import Model
from kernels.spec import Workload


def chunked_workloads(
    model: Model, tp: int, chunks: Sequence[int], cached: Sequence[int], dtype: str
) -> list[Workload]:
    """Op attention_prefill: a chunk of each number of tokens of one prompt, on top of each number that is cached."""
    return [
        Workload(
            axes={"batch": 1, "q_len": chunk, "kv_len": before + chunk, **heads, "causal": 1},
            dtype=dtype,
            phase="prefill",
            technique="chunked",
            source=_told(source, f"a chunk of {chunk} on {before} cached"),
        )
        for heads, source in full_attention(model, tp)
        for chunk in chunks
        for before in cached
    ]


def drafted_workloads(
    model: Model, tp: int, batches: Sequence[int], drafts: Sequence[int], kv_len: int, dtype: str
) -> list[Workload]:
    """Op attention_decode: drafts of each number of tokens, verified at once at the end of `kv_len` keys."""
    return [
        Workload(
            axes={"batch": batch, "q_len": draft, "kv_len": kv_len, **heads},
            dtype=dtype,
            phase="decode",
            technique="speculative",
            source=_told(source, f"{draft} drafted tokens verified"),
        )
        for heads, source in full_attention(model, tp)
        for batch in batches
        for draft in drafts
    ]


def shared_prefix_workloads(
    model: Model, tp: int, batches: Sequence[int], prefixes: Sequence[int], own: int, dtype: str
) -> dict[str, list[Workload]]:
    """By op: a decode step of each batch behind a shared system prompt with `own` keys a sequence after it, and for
    comparison the plain decode of the same sequences, whose caches each hold the prompt."""
    by_op: dict[str, list[Workload]] = {"attention_prefix_decode": [], "attention_decode": []}
    for heads, source in full_attention(model, tp):
        for batch in batches:
            for prefix in prefixes:
                split = {"kv_len": own, "prefix_len": prefix}
                for op, lengths, technique, how in (
                    ("attention_prefix_decode", split, "prefix", "shared"),
                    ("attention_decode", {"kv_len": prefix + own}, "kv_cache", "not shared"),
                ):
                    by_op[op].append(
                        Workload(
                            axes={"batch": batch, "q_len": 1, **lengths, **heads},
                            dtype=dtype,
                            phase="decode",
                            technique=technique,
                            source=_told(source, f"a system prompt of {prefix}, {how}"),
                        )
                    )
    return by_op


def _told(source: tuple[str, ...], what: str) -> tuple[str, ...]:
    return tuple(f"{line}, {what}" for line in source)
