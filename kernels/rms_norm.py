"""rms_norm: y = x / sqrt(mean(x^2) + eps) x weight, over the rows of x [M, K].

Bound: DRAM or L2, 4 bytes a value in 16 bits; the launch floor for a decode step's rows. All of it is small and was
just written, so nothing is streamed.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.inputs import Sampler, torch_dtype
from kernels.layer_glue import DTYPES, EPS, check_workloads, choosing, describe_axes
from kernels.spec import TRITON_ON_CPU, Inputs, Op, Workload
from kernels.work import Work, glue_work


def rms_norm_torch(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """torch's own norm: [M, K], [K] -> [M, K]."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPS)


def rms_norm_triton(x: torch.Tensor, weight: torch.Tensor, **how: Any) -> torch.Tensor:
    """The Triton kernel: see `kernels.glue_triton.rms_norm`."""
    from kernels import glue_triton as kernel

    return kernel.rms_norm(x, weight, eps=EPS, **how)


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The formula in float64."""
    wide = x.double()
    return wide / (wide.square().mean(1, keepdim=True) + EPS).sqrt() * weight.double()


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """x [M, K] and weight [K]."""
    M, K = workload.axes["M"], workload.axes["K"]
    draw, dtype = Sampler(device, seed), torch_dtype(workload.dtype)
    return {"x": draw.normal((M, K), dtype), "weight": draw.normal((K,), dtype)}


def work(workload: Workload) -> Work:
    """x and the weight read, y written."""
    M, K = workload.axes["M"], workload.axes["K"]
    return glue_work(2 * M * K + K, workload.dtype)


OP = Op(
    name="rms_norm",
    summary="y = x / sqrt(mean(x^2) + eps) * weight, row by row",
    axes={"M": 1, "K": None},
    dtypes=DTYPES,
    make_inputs=make_inputs,
    reference=rms_norm_reference,
    eager=rms_norm_torch,
    providers={"triton": rms_norm_triton, "torch": rms_norm_torch},
    cuda_only=TRITON_ON_CPU,
    work=work,
    describe_axes=describe_axes,
    check_workloads=check_workloads((5, 300, "float16"), (3, 9000, "float32"), (37, 80, "float16")),
    roles={"x": "resident", "weight": "resident"},
    **choosing("rms_norm"),
)
