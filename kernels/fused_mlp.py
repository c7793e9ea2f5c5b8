"""The gate and up projections of published models' MLPs, as workloads of op gate_up_silu."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.models import Model, projections
from kernels.spec import DECODE_ROWS, Workload


def gate_up_workloads(model: Model, tp: int, rows: Sequence[int], dtype: str) -> dict[str, list[Workload]]:
    """The model's gate and up projections with the activation that follows, at each M of `rows`."""
    [(name, n, k)] = [found for found in projections(model, tp) if found.name == "gate_up_proj"]
    workloads = [
        Workload(
            axes={"M": m, "N": n // 2, "K": k},
            dtype=dtype,
            phase="decode" if m <= DECODE_ROWS else "prefill",
            technique="fused_mlp",
            source=(f"{model.name}: {name} and silu, tp {tp}",),
        )
        for m in rows
    ]
    return {"gate_up_silu": workloads}
