"""What the ops between a layer's matmuls share: their workloads, of published models too, and how they are chosen for.

An op is M rows of K values, K the width of the residual stream, of an MLP or of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernels.inputs import torch_dtype
from kernels.models import Model, sharded
from kernels.spec import DECODE_ROWS, Workload

EPS = 1e-5
"""Of RMSNorm, as Llama 3 has it."""
DTYPES = ("bfloat16", "float16", "float32")
UNFUSED_ROWS = (16, 4096)
"""Rows of what serving engines mostly fuse: norms without, and additions by themselves."""


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """M rows of K values of the glue of a layer."""
    phase = "decode" if axes["M"] <= DECODE_ROWS else "prefill"
    return Workload(axes=axes, dtype=dtype, phase=phase, technique="glue", source=source)


def check_workloads(*sizes: tuple[int, int, str]) -> tuple[Workload, ...]:
    """Small ones of (M, K, dtype)."""
    return tuple(describe_axes({"M": M, "K": K}, dtype, ("ragged, for correctness",)) for M, K, dtype in sizes)


def glue_workloads(model: Model, rows: Sequence[int], dtype: str) -> dict[str, list[Workload]]:
    """Op -> workloads of one GPU of one, at each number of tokens."""

    def of(what: str, width: int, tokens: Sequence[int]) -> list[Workload]:
        source = (f"{model.name}: {what}, tp 1",)
        return [describe_axes({"M": M, "K": width}, dtype, source) for M in tokens]

    unfused = [M for M in rows if M in UNFUSED_ROWS]
    return {
        "add_rms_norm": of("residual stream", model.hidden, rows),
        "silu_mul": of("gate and up", sharded(model, 1).intermediate, rows),
        "rms_norm": of("residual stream", model.hidden, unfused),
        "residual_add": of("residual stream", model.hidden, unfused),
    }


def head_norm_workloads(model: Model, tokens: int, dtype: str) -> dict[str, list[Workload]]:
    """The queries of so many tokens, normalised head by head."""
    axes = {"M": tokens * model.q_heads, "K": model.head_dim}
    return {"rms_norm": [describe_axes(axes, dtype, (f"{model.name}: q_norm of {tokens} tokens, tp 1",))]}


def choosing(kind: str) -> dict[str, Any]:
    """`configs` and `bucket` of the op of this name."""

    def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
        from kernels import glue_triton as kernel

        return kernel.configs_for(kind, torch_dtype(workload.dtype), workload.axes["M"], arch)

    def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
        from kernels import glue_triton as kernel

        return kernel.bucket_of(kind, torch_dtype(workload.dtype), workload.axes["M"])

    return {"configs": configs, "bucket": bucket}
