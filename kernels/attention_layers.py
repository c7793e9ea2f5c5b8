"""The attention of a model's layers on one GPU of a tensor-parallel group: full, windowed, with sinks or a cap.

Pure Python. Leaves shapes to `kernels.models`, layers with a latent to `kernels.latent_attention`, and the choice of
sizes to `bench.suites` and `bench.technique_suite`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.models import Model, sharded
from kernels.spec import Workload


def attention_prefill_workloads(model: Model, tp: int, lengths: Sequence[int], dtype: str) -> list[Workload]:
    """Causal attention of one prompt of each length, in the model's full-attention layers."""
    return [
        Workload(
            axes={"batch": 1, "q_len": length, "kv_len": length, **heads, "causal": 1},
            dtype=dtype,
            phase="prefill",
            source=source,
        )
        for heads, source in full_attention(model, tp)
        for length in lengths
    ]


def attention_decode_workloads(
    model: Model, tp: int, batches: Sequence[int], kv_lens: Sequence[int], dtype: str
) -> list[Workload]:
    """One new token a sequence over a cache of each length, in the model's full-attention layers."""
    return [
        Workload(
            axes={"batch": batch, "q_len": 1, "kv_len": kv_len, **heads},
            dtype=dtype,
            phase="decode",
            technique="kv_cache",
            source=source,
        )
        for heads, source in full_attention(model, tp)
        for batch in batches
        for kv_len in kv_lens
    ]


def full_attention(model: Model, tp: int) -> list[tuple[dict[str, int], tuple[str, ...]]]:
    """Head axes and source of the full-attention layers: one entry, or none.

    Layers with a latent are those of `kernels.latent_attention`, windowed ones those of `windowed_workloads`. Sinks and
    caps on logits are left out: few providers have them, and published measurements are without.
    """
    shard = sharded(model, tp)
    if model.kv_lora_rank or model.window_layers == model.layers:
        return []
    heads = {"q_heads": shard.q_heads, "kv_heads": shard.kv_heads, "head_dim": model.head_dim}
    if model.v_head_dim != model.head_dim:
        heads["v_head_dim"] = model.v_head_dim
    what = "global attention" if model.window_layers else "attention"
    return [(heads, (f"{model.name}: {what}, tp {tp}",))]


def windowed_workloads(
    model: Model, tp: int, lengths: Sequence[int], batches: Sequence[int], kv_lens: Sequence[int], dtype: str
) -> dict[str, list[Workload]]:
    """Op -> a prompt of each length, and a new token a sequence, in the layers that have a window, sinks or a cap."""
    prompts = [{"batch": 1, "q_len": length, "kv_len": length} for length in lengths]
    steps = [{"batch": batch, "q_len": 1, "kv_len": kv_len} for batch in batches for kv_len in kv_lens]
    layers = variant_layers(model, tp)

    def made(phase: str, size: dict[str, int], plain: str, **more: int) -> list[Workload]:
        return [
            Workload(
                axes={**size, **heads, **more, **variant},
                dtype=dtype,
                phase=phase,
                technique="window" if "window" in variant else plain,
                source=source,
            )
            for heads, variant, source in layers
        ]

    return {
        "attention_prefill": [w for size in prompts for w in made("prefill", size, "dense", causal=1)],
        "attention_decode": [w for size in steps for w in made("decode", size, "kv_cache")],
    }


def variant_layers(model: Model, tp: int) -> list[tuple[dict[str, int], dict[str, int], tuple[str, ...]]]:
    """Head axes, axes of the variant and source of the layers with any: windowed ones, and full ones with the rest."""
    shard = sharded(model, tp)
    if model.kv_lora_rank:
        return []
    heads = {"q_heads": shard.q_heads, "kv_heads": shard.kv_heads, "head_dim": model.head_dim}
    rest = ({"sinks": 1} if model.sinks else {}) | ({"softcap": model.softcap} if model.softcap else {})
    kinds = {
        "windowed attention": {"window": model.window, **rest} if model.window_layers else {},
        "global attention": rest if model.window_layers < model.layers else {},
    }
    return [(heads, axes, (f"{model.name}: {kind}, tp {tp}",)) for kind, axes in kinds.items() if axes]
