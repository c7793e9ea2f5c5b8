"""gate_up_silu: Y[M, N] = silu(X Wg^T) * (X Wu^T), W[2N, K] = Wg over Wu: the first half of a gated MLP as one kernel.

Run as a linear layer and an activation, the [M, 2N] between them is written and read again: 8 M N bytes in 16 bits,
which this saves, with a launch, and one rounding. Beside the weights' 4 N K that is little for a few rows and the
most where M is near K / 2. Bound: DRAM below some 300 rows on an H100, arithmetic above. Both sums are in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernels import matmul
from kernels.inputs import Sampler, torch_dtype
from kernels.spec import DECODE_ROWS, TRITON_ON_CPU, Inputs, Op, Workload
from kernels.work import Work, gate_up_work


def gate_up_silu_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Not fused: `torch.nn.functional.linear`, then silu and a product over [M, 2N] in memory.

    Args:
        x: [M, K].
        w: [2N, K] of the same dtype, the gate's rows first.

    Returns:
        [M, N] of the same dtype.
    """
    gate, up = torch.nn.functional.linear(x, w).chunk(2, 1)
    return torch.nn.functional.silu(gate) * up


def gate_up_silu_reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """[M, N] in float64 from the inputs' own values."""
    gate, up = (x.double() @ w.double().t()).chunk(2, 1)
    return gate * torch.sigmoid(gate) * up


def gate_up_silu_triton(x: torch.Tensor, w: torch.Tensor, **how: Any) -> torch.Tensor:
    """The Triton kernel: see `kernels.gate_up_silu_triton.gate_up_silu`."""
    from kernels import gate_up_silu_triton as kernel

    return kernel.gate_up_silu(x, w, **how)


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """x [M, K] and w [2N, K]."""
    M, N, K = (workload.axes[axis] for axis in "MNK")
    draw, dtype = Sampler(device, seed), torch_dtype(workload.dtype)
    return {"x": draw.normal((M, K), dtype), "w": draw.normal((2 * N, K), dtype)}


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[torch.Tensor], torch.Tensor]]:
    """The whole of a small product; rows and columns spread over a large one, each with its gate and its up row."""
    x, w = inputs["x"], inputs["w"]
    M, N = x.shape[0], w.shape[0] // 2
    if x.numel() * w.shape[0] <= matmul.CHECK_IN_FULL // 8:
        return inputs, lambda out: out
    rows = matmul.spread(M, matmul.SAMPLED_ROWS, x.device)
    columns = matmul.spread(N, matmul.SAMPLED_COLUMNS, x.device)
    return {"x": x[rows], "w": w[torch.cat((columns, N + columns))]}, lambda out: out[rows][:, columns]


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernel's configurations for this workload."""
    from kernels import gate_up_silu_triton as kernel

    return kernel.configs_for(*_asked(workload), arch)


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernel's tuned table for this workload."""
    from kernels import gate_up_silu_triton as kernel

    return kernel.bucket_of(*_asked(workload))


def _asked(workload: Workload) -> tuple[int, int, torch.dtype]:
    return workload.axes["M"], workload.axes["K"], torch_dtype(workload.dtype)


def work(workload: Workload) -> Work:
    """4 M N K FLOPs; X, W and Y once, nothing between."""
    return gate_up_work(*(workload.axes[axis] for axis in "MNK"), dtype=workload.dtype)


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A workload of these sizes: decode up to 64 rows, prefill above."""
    phase = "decode" if axes["M"] <= DECODE_ROWS else "prefill"
    return Workload(axes=axes, dtype=dtype, phase=phase, technique="fused_mlp", source=source)


def _check(M: int, N: int, K: int) -> Workload:
    return describe_axes({"M": M, "N": N, "K": K}, "float16", ("ragged, for correctness",))


OP = Op(
    name="gate_up_silu",
    summary="Y[M, N] = silu(X Wg^T) * (X Wu^T), W[2N, K] = Wg over Wu",
    axes={"M": 1, "N": None, "K": None},
    dtypes=("bfloat16", "float16"),
    make_inputs=make_inputs,
    reference=gate_up_silu_reference,
    eager=gate_up_silu_torch,
    providers={"triton": gate_up_silu_triton, "torch": gate_up_silu_torch},
    cuda_only=TRITON_ON_CPU,
    configs=configs,
    bucket=bucket,
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(1, 70, 144),
        _check(17, 65, 77),
        _check(33, 96, 136),
        _check(130, 131, 72),
        _check(5, 3, 1),
    ),
    roles={"x": "resident", "w": "streamed"},
    sample=sample,
)
