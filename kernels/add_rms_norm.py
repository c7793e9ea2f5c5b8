"""add_rms_norm: total = residual + x, y = total / sqrt(mean(total^2) + eps) x weight, over rows [M, K].

The residual stream of a layer with the norm that follows, as serving engines fuse them. They update the residual in
place; here total is another tensor, so that a second launch does the same as the first: the bytes are the same.
Bound: DRAM or L2, 8 bytes a value in 16 bits; the launch floor for a decode step's rows. Nothing is streamed.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.inputs import Sampler, torch_dtype
from kernels.layer_glue import DTYPES, EPS, check_workloads, choosing, describe_axes
from kernels.rms_norm import rms_norm_reference, rms_norm_torch
from kernels.spec import TRITON_ON_CPU, Inputs, Op, Workload
from kernels.work import Work, glue_work

Both = tuple[torch.Tensor, torch.Tensor]
"""y and total, [M, K] each."""


def add_rms_norm_torch(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Both:
    """Two of torch's operators: [M, K], [M, K], [K] -> (y, total)."""
    total = residual + x
    return rms_norm_torch(total, weight), total


def add_rms_norm_triton(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, **how: Any) -> Both:
    """The Triton kernel: see `kernels.glue_triton.add_rms_norm`."""
    from kernels import glue_triton as kernel

    return kernel.add_rms_norm(x, residual, weight, eps=EPS, **how)


def add_rms_norm_reference(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Both:
    """The formula in float64, with nothing rounded between."""
    total = residual.double() + x.double()
    return rms_norm_reference(total, weight), total


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """x and residual [M, K], weight [K]."""
    M, K = workload.axes["M"], workload.axes["K"]
    draw, dtype = Sampler(device, seed), torch_dtype(workload.dtype)
    x, residual = draw.normal((M, K), dtype), draw.normal((M, K), dtype)
    return {"x": x, "residual": residual, "weight": draw.normal((K,), dtype)}


def work(workload: Workload) -> Work:
    """x, the residual and the weight read, total and y written."""
    M, K = workload.axes["M"], workload.axes["K"]
    return glue_work(4 * M * K + K, workload.dtype)


OP = Op(
    name="add_rms_norm",
    summary="total = residual + x; y = total / sqrt(mean(total^2) + eps) * weight",
    axes={"M": 1, "K": None},
    dtypes=DTYPES,
    make_inputs=make_inputs,
    reference=add_rms_norm_reference,
    eager=add_rms_norm_torch,
    providers={"triton": add_rms_norm_triton, "torch": add_rms_norm_torch},
    cuda_only=TRITON_ON_CPU,
    work=work,
    describe_axes=describe_axes,
    check_workloads=check_workloads((5, 300, "float16"), (3, 9000, "float32"), (37, 80, "float16")),
    roles={"x": "resident", "residual": "resident", "weight": "resident"},
    **choosing("add_rms_norm"),
)
