"""The cases that measure a device's own roofs; what they mean is the analysis's business."""

from __future__ import annotations

from dataclasses import replace

from bench.case import Case
from bench.l2 import ROUND_OVER_CACHE
from kernels import roofs
from kernels.spec import Op, Workload

CPU_DTYPES = ("bfloat16", "float32")
CUDA_DTYPES = ("bfloat16", "float16", "tfloat32", "float32", "float8_e4m3fn")
CPU_SHAPES = ((512, 2048, 2048), (1024, 1024, 1024), (1024, 2048, 2048), (2048, 2048, 2048))
CUDA_SHAPES = ((4096, 4096, 4096), (6144, 6144, 6144), (8192, 8192, 4096), (8192, 8192, 8192), (8192, 10240, 8192))
"""The best of these per dtype is the compute roof: no single shape is the best on every part."""
LEAST_BYTES = 256 * 2**20
SOURCE = ("roof of this device",)


def roof_cases(device: str, cache_bytes: int) -> list[Case]:
    """Best matmul per dtype, reads and copies past the last cache, and the launch floor."""
    dtypes, shapes = (CPU_DTYPES, CPU_SHAPES) if device == "cpu" else (CUDA_DTYPES, CUDA_SHAPES)
    values = max(LEAST_BYTES, ROUND_OVER_CACHE * cache_bytes) // 4
    cases = [
        Case(roofs.PEAK_MATMUL, "torch", _workload(roofs.PEAK_MATMUL, dict(zip("MNK", shape, strict=True)), dtype))
        for dtype in dtypes
        for shape in shapes
    ]
    cases += [Case(op, "torch", _workload(op, {"N": values}, "float32")) for op in (roofs.PEAK_READ, roofs.PEAK_COPY)]
    return [*cases, Case(roofs.EMPTY_LAUNCH, "torch", _workload(roofs.EMPTY_LAUNCH, {"N": 1}, "float32"))]


def _workload(op: Op, axes: dict[str, int], dtype: str) -> Workload:
    workload = op.describe_axes(axes, dtype, SOURCE)
    return replace(workload, scale="tensor") if workload.scale else workload  # the scales that cost least
