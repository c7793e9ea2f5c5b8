"""The workloads of multi-head latent attention: its decode over the latent, and its prefill over keys made from it.

Decode is absorbed: all heads read one latent of 576 values a key (`kernels.attention_mla_decode`). Prefill is not: the
latent is expanded to keys of 192 and values of 128 for each head, as then arithmetic bounds it and the expanded heads
take (192 + 128) / (512 + 576) of the FLOPs. Which models, batches and lengths is left to `bench.technique_suite`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.models import Model, sharded
from kernels.spec import Workload


def mla_decode_workloads(
    model: Model, tp: int, batches: Sequence[int], kv_lens: Sequence[int], tokens: Sequence[int], page_size: int,
    dtype: str,
) -> list[Workload]:  # fmt: skip
    """Absorbed decode of so many new tokens a sequence (more than one where multi-token prediction drafts them).

    The latent is one for all heads, so every GPU of a tensor-parallel group holds and reads it whole. A model without a
    latent has no workloads.
    """
    heads = sharded(model, tp).q_heads
    return [
        Workload(
            axes={"batch": batch, "q_len": q_len, "kv_len": kv_len, "q_heads": heads, "page_size": page_size},
            dtype=dtype,
            phase="decode",
            technique="mla",
            source=(f"{model.name}: absorbed MLA, tp {tp}",),
        )
        for q_len in tokens
        for batch in batches
        for kv_len in kv_lens
        if model.kv_lora_rank
    ]


def mla_prefill_workloads(model: Model, tp: int, lengths: Sequence[int], dtype: str) -> list[Workload]:
    """Causal attention of one prompt of each length over keys and values expanded for each head."""
    shard = sharded(model, tp)
    heads = {"q_heads": shard.q_heads, "kv_heads": shard.kv_heads}
    widths = {"head_dim": model.head_dim, "v_head_dim": model.v_head_dim}
    return [
        Workload(
            axes={"batch": 1, "q_len": n, "kv_len": n, **heads, **widths, "causal": 1},
            dtype=dtype,
            phase="prefill",
            technique="mla",
            source=(f"{model.name}: expanded MLA, tp {tp}",),
        )
        for n in lengths
        if model.kv_lora_rank
    ]
