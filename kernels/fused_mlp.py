"""The gate and up projections of published models' MLPs, as workloads of op gate_up_silu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernels.models import Model, matmul_workloads
from kernels.spec import Workload


def gate_up_workloads(model: Model, tp: int, rows: Sequence[int], dtype: str) -> dict[str, list[Workload]]:
    """The model's gate and up projections with the activation that follows, at each M of `rows`."""
    by_op = matmul_workloads(model, tp, rows, dtype, only=("gate_up_proj",))
    return {
        "gate_up_silu": [
            replace(
                workload,
                axes=dict(workload.axes) | {"N": workload.axes["N"] // 2},
                technique="fused_mlp",
                source=(f"{model.name}: gate_up_proj and silu, tp {tp}",),
            )
            for op in ("matmul_decode", "matmul")
            for workload in by_op[op]
        ]
    }
