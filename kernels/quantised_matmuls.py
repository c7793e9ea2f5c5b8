"""Projections of published models with operands or weights of few bits, and the quantisation of what they are fed with.

Shapes come from `kernels.models`; which models, projections and rows is left to `bench.technique_suite`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernels.models import Model, matmul_workloads
from kernels.spec import DECODE_ROWS, Workload

TECHNIQUES = {"float8_e4m3fn": "fp8", "int8": "int8", "int4": "int4", "uint4": "int4"}
NIBBLES, EIGHT_BITS, USUAL_GROUP = ("int4", "uint4"), ("int8", "float8_e4m3fn"), 128
"""Storage of weights beside 16-bit activations: in groups along K that share a scale, and with a scale a column."""


def with_weights(workload: Workload, weight_dtype: str, group: int = 0) -> Workload:
    """The workload with weights stored so: nibbles in groups of `group`, or 8 bits with a scale a column."""
    axes = {axis: size for axis, size in workload.axes.items() if axis != "group_size"}
    if weight_dtype in NIBBLES:
        axes["group_size"] = group or USUAL_GROUP
    scale = "" if weight_dtype in NIBBLES else "channel"
    return replace(workload, axes=axes, weight_dtype=weight_dtype, scale=scale, technique=TECHNIQUES[weight_dtype])


def w8a8_workloads(
    model: Model, tp: int, rows: Sequence[int], dtype: str, scale: str, only: tuple[str, ...]
) -> dict[str, list[Workload]]:
    """Op name -> the projections named, at each number of rows, with scales of this granularity."""
    by_op, technique = matmul_workloads(model, tp, rows, dtype, only=only), TECHNIQUES[dtype]
    return {op: [replace(w, scale=scale, technique=technique) for w in workloads] for op, workloads in by_op.items()}


def weight_only_workloads(
    model: Model, tp: int, rows: Sequence[int], stored: str, group: int, only: tuple[str, ...], dtype: str
) -> list[Workload]:
    """The projections named, at each number of rows, of 16-bit activations and weights stored in 4 or 8 bits."""
    by_op = matmul_workloads(model, tp, rows, dtype, only=only)
    return [with_weights(workload, stored, group) for workloads in by_op.values() for workload in workloads]


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
