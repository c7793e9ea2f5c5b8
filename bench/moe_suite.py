"""Suite `techniques`: the experts of published models, at even and skewed routing.

Which rows an expert gets is left to `kernels.expert_routing`, shapes to `kernels.models`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.models import Model, model_named, sharded
from kernels.spec import DECODE_ROWS, Workload

TOKENS, SKEWED = (1, 16, 64, 256, 4096), (16, 256, 4096)
EXPERTS: tuple[tuple[str, int, tuple[int, ...], tuple[int, ...]], ...] = (
    ("qwen3-30b-a3b", 1, TOKENS, SKEWED),
    ("mixtral-8x7b", 1, TOKENS, ()),
    ("deepseek-v3", 8, (16, 256, 4096), ()),
)
"""Model, tensor parallel size, tokens at even and at skewed routing."""


def moe() -> dict[str, list[Workload]]:
    """Op name -> workloads."""
    return {
        "grouped_matmul": [
            workload
            for name, tp, even, skewed in EXPERTS
            for tokens, skew in ((even, 0), (skewed, 1))
            for workload in expert_workloads(model_named(name), tp, tokens, skew, "bfloat16")
        ]
    }


def expert_workloads(model: Model, tp: int, tokens: Sequence[int], skewed: int, dtype: str) -> list[Workload]:
    """Both projections of the routed experts, whose columns the GPUs share, at each number of tokens."""
    sharded(model, tp)
    width, told = model.expert_intermediate // tp, ", skewed" if skewed else ""
    return [
        Workload(
            axes={"M": m, "N": n, "K": k, "experts": model.experts, "top_k": model.experts_active, "skewed": skewed},
            dtype=dtype,
            phase="decode" if m <= DECODE_ROWS else "prefill",
            technique="moe",
            source=(f"{model.name}: {name} of experts, tp {tp}{told}",),
        )
        for name, n, k in (("gate_up_proj", 2 * width, model.hidden), ("down_proj", model.hidden, width))
        for m in tokens
    ]
