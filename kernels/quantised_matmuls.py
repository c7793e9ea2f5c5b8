"""Projections of published models with operands of 8 bits, and the quantisation of what they are fed with.

Shapes come from `kernels.models`; which models, projections and rows is left to `bench.technique_suite`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernels.models import Model, matmul_workloads
from kernels.spec import DECODE_ROWS, Workload

TECHNIQUES = {"float8_e4m3fn": "fp8", "int8": "int8"}


def w8a8_workloads(
    model: Model, tp: int, rows: Sequence[int], dtype: str, scale: str, only: tuple[str, ...]
) -> dict[str, list[Workload]]:
    """Op name -> the projections named, at each number of rows, with scales of this granularity."""
    by_op, technique = matmul_workloads(model, tp, rows, dtype, only=only), TECHNIQUES[dtype]
    return {op: [replace(w, scale=scale, technique=technique) for w in workloads] for op, workloads in by_op.items()}


def quantise_workloads(model: Model, rows: Sequence[int], scales: Sequence[str], dtype: str) -> list[Workload]:
    """The residual stream of so many tokens, as it is quantised for qkv_proj and gate_up_proj."""
    return [
        Workload(
            axes={"M": m, "K": model.hidden},
            dtype=dtype,
            phase="decode" if m <= DECODE_ROWS else "prefill",
            technique="fp8",
            scale=scale,
            source=(f"{model.name}: hidden state",),
        )
        for scale in scales
        for m in rows
    ]
