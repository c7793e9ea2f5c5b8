"""Projections of published models in fp8.

Shapes come from `kernels.models`; which models, projections and rows is left to `bench.technique_suite`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernels.models import Model, matmul_workloads
from kernels.spec import Workload

E4M3 = "float8_e4m3fn"


def fp8_workloads(
    model: Model, tp: int, rows: Sequence[int], scale: str, only: tuple[str, ...]
) -> dict[str, list[Workload]]:
    """Op name -> the projections named, at each number of rows, with scales of this granularity."""
    by_op = matmul_workloads(model, tp, rows, E4M3, only=only)
    return {op: [replace(w, scale=scale, technique="fp8") for w in workloads] for op, workloads in by_op.items()}
