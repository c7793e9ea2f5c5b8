"""residual_add: residual + x, over rows [M, K]: the residual stream where no norm is fused with it.

Bound: DRAM or L2, 6 bytes a value in 16 bits; the launch floor for a decode step's rows. Nothing is streamed.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.inputs import Sampler, torch_dtype
from kernels.layer_glue import DTYPES, check_workloads, choosing, describe_axes
from kernels.spec import TRITON_ON_CPU, Inputs, Op, Workload
from kernels.work import Work, glue_work


def residual_add_torch(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """torch's addition: [M, K], [M, K] -> [M, K]."""
    return residual + x


def residual_add_triton(x: torch.Tensor, residual: torch.Tensor, **how: Any) -> torch.Tensor:
    """The Triton kernel: see `kernels.glue_triton.residual_add`."""
    from kernels import glue_triton as kernel

    return kernel.residual_add(x, residual, **how)


def residual_add_reference(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """The sum in float64."""
    return residual.double() + x.double()


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """x and residual [M, K]."""
    shape = (workload.axes["M"], workload.axes["K"])
    draw, dtype = Sampler(device, seed), torch_dtype(workload.dtype)
    return {"x": draw.normal(shape, dtype), "residual": draw.normal(shape, dtype)}


def work(workload: Workload) -> Work:
    """x and the residual read, the sum written."""
    return glue_work(3 * workload.axes["M"] * workload.axes["K"], workload.dtype)


OP = Op(
    name="residual_add",
    summary="residual + x, row by row",
    axes={"M": 1, "K": None},
    dtypes=DTYPES,
    make_inputs=make_inputs,
    reference=residual_add_reference,
    eager=residual_add_torch,
    providers={"triton": residual_add_triton, "torch": residual_add_torch},
    cuda_only=TRITON_ON_CPU,
    work=work,
    describe_axes=describe_axes,
    check_workloads=check_workloads((5, 300, "float16"), (3, 5000, "float32"), (70, 33, "float16")),
    roles={"x": "resident", "residual": "resident"},
    **choosing("residual_add"),
)
