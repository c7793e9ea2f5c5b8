"""The ops that `bench peaks` measures a device's own roofs with: compute, DRAM reads, copies, the launch floor.

They are ops like any other, so that a roof is measured by the very clock, cache rule and stopping that the cases
under it are measured by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from kernels import matmul
from kernels.inputs import Sampler
from kernels.spec import Inputs, Op, Workload
from kernels.work import Work, storage_bytes

PEAK_MATMUL = replace(
    matmul.OP,
    name="peak_matmul",
    summary="the best matmul of a list of shapes, per dtype",
    providers={"torch": matmul.matmul_torch},
    cuda_only={},
)


def read_torch(x: torch.Tensor) -> torch.Tensor:
    """Sums x [N]: reads every value, writes one."""
    return x.sum()


def copy_torch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Copies x [N] to y [N]."""
    return y.copy_(x)


def launch_torch(x: torch.Tensor) -> torch.Tensor:
    """The least that torch can launch: one value changed in place."""
    return x.zero_()


def _vectors(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    return {"x": Sampler(device, seed).normal((workload.axes["N"],), torch.float32)}


def _two_vectors(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    inputs = _vectors(workload, device, seed)
    return inputs | {"y": torch.full_like(inputs["x"], math.nan)}  # a value nobody writes cannot pass


def _every_so_often(inputs: Inputs) -> tuple[Inputs, Callable[[torch.Tensor], torch.Tensor]]:
    """A few thousand values spread over the vectors: float64 copies of gigabytes would take longer than the run."""
    step = max(1, inputs["x"].numel() // 4096)
    return {name: value[::step] for name, value in inputs.items()}, lambda out: out[::step]


def _describe(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    return Workload(axes=axes, dtype=dtype, phase="mixed", source=source)


def _check(N: int) -> tuple[Workload, ...]:
    return (_describe({"N": N}, "float32", ("for correctness",)),)


PEAK_READ = Op(
    name="peak_read",
    summary="sum(x[N]): how fast DRAM is read",
    axes={"N": None},
    dtypes=("float32",),
    make_inputs=_vectors,
    reference=lambda x: x.sum(dtype=torch.float64),
    eager=read_torch,
    providers={"torch": read_torch},
    work=lambda w: Work(flops=0, bytes=storage_bytes(w.axes["N"], "float32") + 4),
    describe_axes=_describe,
    check_workloads=_check(1000),
    roles={"x": "streamed"},
)
PEAK_COPY = Op(
    name="peak_copy",
    summary="y[N] = x[N]: how fast DRAM is read and written",
    axes={"N": None},
    dtypes=("float32",),
    make_inputs=_two_vectors,
    reference=lambda x, y: x.double(),
    eager=lambda x, y: x.clone(),
    providers={"torch": copy_torch},
    work=lambda w: Work(flops=0, bytes=2 * storage_bytes(w.axes["N"], "float32")),
    describe_axes=_describe,
    check_workloads=_check(1000),
    roles={"x": "streamed", "y": "streamed"},
    writes=("y",),
    sample=_every_so_often,
)
EMPTY_LAUNCH = Op(
    name="empty_launch",
    summary="one value set to 0: the launch floor",
    axes={"N": 1},
    dtypes=("float32",),
    make_inputs=_vectors,
    reference=lambda x: torch.zeros_like(x, dtype=torch.float64),
    eager=torch.zeros_like,
    providers={"torch": launch_torch},
    work=lambda w: Work(flops=0, bytes=0),
    describe_axes=_describe,
    check_workloads=_check(1),
    roles={"x": "resident"},
    writes=("x",),
)
