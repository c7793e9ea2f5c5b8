"""silu_mul: silu(gate) x up of gate_up [M, 2 K], the gate's K columns first; silu(x) = x / (1 + e^-x).

Bound: DRAM or L2, 6 bytes a value in 16 bits; the launch floor for a decode step's rows. Nothing is streamed.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.inputs import Sampler, torch_dtype
from kernels.layer_glue import DTYPES, check_workloads, choosing, describe_axes
from kernels.spec import TRITON_ON_CPU, Inputs, Op, Workload
from kernels.work import Work, glue_work


def silu_mul_torch(gate_up: torch.Tensor) -> torch.Tensor:
    """Two of torch's operators: [M, 2 K] -> [M, K]."""
    gate, up = gate_up.chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def silu_mul_triton(gate_up: torch.Tensor, **how: Any) -> torch.Tensor:
    """The Triton kernel: see `kernels.glue_triton.silu_mul`."""
    from kernels import glue_triton as kernel

    return kernel.silu_mul(gate_up, **how)


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """The formula in float64."""
    gate, up = gate_up.double().chunk(2, dim=1)
    return gate / (1 + (-gate).exp()) * up


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """gate_up [M, 2 K]."""
    shape = (workload.axes["M"], 2 * workload.axes["K"])
    return {"gate_up": Sampler(device, seed).normal(shape, torch_dtype(workload.dtype))}


def work(workload: Workload) -> Work:
    """gate_up read, half as much written."""
    return glue_work(3 * workload.axes["M"] * workload.axes["K"], workload.dtype)


OP = Op(
    name="silu_mul",
    summary="silu(gate) * up of gate_up[M, 2 K]",
    axes={"M": 1, "K": None},
    dtypes=DTYPES,
    make_inputs=make_inputs,
    reference=silu_mul_reference,
    eager=silu_mul_torch,
    providers={"triton": silu_mul_triton, "torch": silu_mul_torch},
    cuda_only=TRITON_ON_CPU,
    work=work,
    describe_axes=describe_axes,
    check_workloads=check_workloads((5, 300, "float16"), (3, 5000, "float32"), (70, 33, "float16")),
    roles={"gate_up": "resident"},
    **choosing("silu_mul"),
)
