"""The workloads of continuous batching: packed prompts of unlike lengths, and steps of chunks and decode tokens.

Shapes come from `kernels.models`; which models and lengths is left to `bench.technique_suite`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernels.attention_layers import full_attention
from kernels.models import Model
from kernels.ragged_plan import Lengths
from kernels.spec import Workload


def prompt_workloads(model: Model, tp: int, batches: Mapping[str, Sequence[int]], dtype: str) -> list[Workload]:
    """Op attention_varlen: whole prompts of the lengths of each batch, causal, packed one after another."""
    made = []
    for heads, source in full_attention(model, tp):
        for what, prompts in batches.items():
            lengths = tuple((length, length) for length in prompts)
            axes = {**_sizes(lengths), **heads, "causal": 1}
            made.append(_continuous("prefill", axes, lengths, _told(source, what), dtype))
    return made


def step_workloads(model: Model, tp: int, steps: Mapping[str, Lengths], page_size: int, dtype: str) -> list[Workload]:
    """Op attention_mixed: (new tokens, keys) of the sequences of each step, over a paged cache."""
    made = []
    for heads, source in full_attention(model, tp):
        for what, lengths in steps.items():
            axes = {**_sizes(lengths), **heads, "page_size": page_size}
            made.append(_continuous("mixed", axes, lengths, _told(source, what), dtype))
    return made


def _sizes(lengths: Lengths) -> dict[str, int]:
    q_lens, kv_lens = zip(*lengths, strict=True)
    return {"batch": len(lengths), "q_len": max(q_lens), "kv_len": max(kv_lens)}


def _continuous(phase: str, axes: dict[str, int], lengths: Lengths, source: tuple[str, ...], dtype: str) -> Workload:
    """Lengths are told only where sequences differ: batches of equal ones are points of one line."""
    q_lens, kv_lens = zip(*lengths, strict=True)
    return Workload(
        axes=axes,
        dtype=dtype,
        phase=phase,
        technique="continuous",
        source=source,
        q_lens=q_lens if len(set(q_lens)) > 1 else (),
        kv_lens=kv_lens if len(set(kv_lens)) > 1 else (),
    )


def _told(source: tuple[str, ...], what: str) -> tuple[str, ...]:
    return tuple(f"{line}, {what}" for line in source)
