"""scale: y[N] = a * x[N]. The smallest op there is: what README's five steps make, and tests run through all proofs.

Bound: DRAM, 1 FLOP for 8 bytes of float32. Every program owns one block of y.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.inputs import Sampler, torch_dtype
from kernels.launch import OPTIONS
from kernels.spec import TRITON_ON_CPU, Inputs, Op, Workload
from kernels.work import Work, storage_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters: values of a program, and warps."""

    block: int = 1024
    num_warps: int = 4


CONFIGS = (Config(), Config(block=2048, num_warps=8))


@triton.jit
def _scale_kernel(x, y, a, N, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < N
    tl.store(y + places, tl.load(x + places, mask=inside) * a, mask=inside)


def scale(x: torch.Tensor, a: float, config: Config | None = None) -> torch.Tensor:
    """y = a * x by the Triton kernel; x [N] contiguous. Raises ValueError for another shape."""
    if x.ndim != 1 or not x.is_contiguous():
        raise ValueError(f"wanted x [N] contiguous, got {list(x.shape)} with strides {x.stride()}")
    config = config or CONFIGS[0]
    y = torch.empty_like(x)
    _scale_kernel[(triton.cdiv(x.numel(), config.block),)](
        x, y, a, x.numel(), BLOCK=config.block, num_warps=config.num_warps, **OPTIONS
    )
    return y


def scale_torch(x: torch.Tensor, a: float) -> torch.Tensor:
    """The same by torch."""
    return x * a


def scale_reference(x: torch.Tensor, a: float) -> torch.Tensor:
    """The same in float64."""
    return x.double() * a


def make_inputs(workload: Workload, device: Any, seed: int) -> Inputs:
    """x [N] and a."""
    return {"x": Sampler(device, seed).normal((workload.axes["N"],), torch_dtype(workload.dtype)), "a": 1.5}


def work(workload: Workload) -> Work:
    """One FLOP a value; x and y once."""
    N = workload.axes["N"]
    return Work(flops=N, bytes=2 * storage_bytes(N, workload.dtype))


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A workload of this size."""
    return Workload(axes=axes, dtype=dtype, phase="mixed", technique="glue", source=source)


OP = Op(
    name="scale",
    summary="y[N] = a * x[N]",
    axes={"N": None},
    dtypes=("bfloat16", "float16", "float32"),
    make_inputs=make_inputs,
    reference=scale_reference,
    eager=scale_torch,
    providers={"triton": scale, "torch": scale_torch},
    work=work,
    describe_axes=describe_axes,
    configs=lambda workload, arch: CONFIGS,
    check_workloads=tuple(describe_axes({"N": N}, "float32", ("ragged",)) for N in (1, 1000, 4096)),
    roles={"x": "streamed"},
    cuda_only=TRITON_ON_CPU,
)
