"""Decode steps of published models over KV caches in 8 bits.

Shapes come from `kernels.models`; which models and sizes is left to `bench.technique_suite`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.attention_layers import full_attention
from kernels.models import Model
from kernels.spec import Workload


def quantised_decode_workloads(
    model: Model,
    tp: int,
    batches: Sequence[int],
    kv_lens: Sequence[int],
    stored: Sequence[tuple[str, str]],
    dtype: str,
    page_size: int = 0,
) -> list[Workload]:
    """One new token a sequence over a cache of each length, in each (storage, granularity of scales).

    In pages of `page_size` keys, unless that is 0.
    """
    pages = {"page_size": page_size} if page_size else {}
    return [
        Workload(
            axes={"batch": batch, "q_len": 1, "kv_len": kv_len, **heads, **pages},
            dtype=dtype,
            phase="decode",
            technique="quantised_kv",
            source=source,
            kv_dtype=kv_dtype,
            scale=scale,
        )
        for heads, source in full_attention(model, tp)
        for kv_dtype, scale in stored
        for batch in batches
        for kv_len in kv_lens
    ]
