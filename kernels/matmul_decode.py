"""matmul_decode: Y[M, N] = X[M, K] @ W[N, K]^T for 1 to 64 rows, the projections of a decode step.

Every weight is read for at most 64 multiply-adds, so DRAM bounds it on a GPU (intensity about M FLOP/byte in
bfloat16) and the launch floor bounds the small ones. W is a linear layer's weight as it lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernels import matmul
from kernels.inputs import Sampler, torch_dtype
from kernels.spec import DECODE_ROWS, TRITON_ON_CPU, Inputs, Op, Workload
from kernels.work import Work, matmul_work


def matmul_decode_torch(x: torch.Tensor, w: torch.Tensor, *, allow_tf32: bool = False) -> torch.Tensor:
    """`torch.nn.functional.linear` without bias.

    Args:
        x: [M, K].
        w: [N, K] of the same dtype.
        allow_tf32: multiply float32 in TF32.

    Returns:
        [M, N] of the same dtype.

    Raises:
        UnsupportedError: TF32 away from CUDA.
    """
    matmul.set_tf32(x.device, allow_tf32)
    return torch.nn.functional.linear(x, w)


def matmul_decode_reference(x: torch.Tensor, w: torch.Tensor, *, allow_tf32: bool = False) -> torch.Tensor:
    """[M, N] in float64 from the inputs' own values."""
    return x.double() @ w.double().t()


def matmul_decode_triton(
    x: torch.Tensor, w: torch.Tensor, *, allow_tf32: bool = False, config: Any = None
) -> torch.Tensor:
    """The Triton kernels: see `kernels.matmul_decode_triton.matmul_decode`."""
    from kernels import matmul_decode_triton as kernel

    return kernel.matmul_decode(x, w, allow_tf32=allow_tf32, config=config)


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """x [M, K] and w [N, K]; `allow_tf32` for tfloat32."""
    M, N, K = (workload.axes[axis] for axis in "MNK")
    draw, dtype = Sampler(device, seed), torch_dtype(workload.dtype)
    return {
        "x": draw.normal((M, K), dtype),
        "w": draw.normal((N, K), dtype),
        "allow_tf32": workload.dtype == "tfloat32",
    }


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[torch.Tensor], torch.Tensor]]:
    """The whole of a small product; columns spread over a large one."""
    x, w = inputs["x"], inputs["w"]
    if x.numel() * w.shape[0] <= matmul.CHECK_IN_FULL // 8:
        return inputs, lambda out: out
    columns = matmul.spread(w.shape[0], matmul.SAMPLED_COLUMNS, x.device)
    return inputs | {"w": w[columns]}, lambda out: out[:, columns]


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernels' configurations for this many rows on an arch."""
    from kernels import matmul_decode_triton as kernel

    M, K, dtype = workload.axes["M"], workload.axes["K"], torch_dtype(workload.dtype)
    return kernel.configs_for(M, K, dtype, arch, workload.dtype == "tfloat32")


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernels' tuned table for this workload."""
    from kernels import matmul_decode_triton as kernel

    M, K, dtype = workload.axes["M"], workload.axes["K"], torch_dtype(workload.dtype)
    return kernel.bucket_of(M, K, dtype, workload.dtype == "tfloat32")


def work(workload: Workload) -> Work:
    """2 M N K FLOPs; X, W and Y once."""
    return matmul_work(*(workload.axes[axis] for axis in "MNK"), dtype=workload.dtype)


def unsupported(workload: Workload, provider: str) -> str | None:
    """More rows than decode has belong to op matmul."""
    rows = workload.axes["M"]
    return None if 1 <= rows <= DECODE_ROWS else f"M={rows}: matmul_decode is for 1 to {DECODE_ROWS} rows; use matmul"


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A decode workload of these sizes."""
    return Workload(axes=axes, dtype=dtype, phase="decode", source=source)


def _check(M: int, N: int, K: int, dtype: str = "float32") -> Workload:
    return describe_axes({"M": M, "N": N, "K": K}, dtype, ("ragged, for correctness",))


OP = Op(
    name="matmul_decode",
    summary="Y[M, N] = X[M, K] @ W[N, K]^T, M up to 64",
    axes={"M": 1, "N": None, "K": None},
    dtypes=("bfloat16", "float16", "tfloat32", "float32"),
    make_inputs=make_inputs,
    reference=matmul_decode_reference,
    eager=matmul_decode_torch,
    providers={"triton": matmul_decode_triton, "torch": matmul_decode_torch},
    cuda_only=TRITON_ON_CPU,
    configs=configs,
    bucket=bucket,
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(1, 8, 16),
        _check(1, 257, 130, "float16"),
        _check(2, 33, 1),
        _check(7, 64, 200),
        _check(17, 100, 72, "float16"),
        _check(64, 96, 128),
    ),
    roles={"x": "resident", "w": "streamed"},
    unsupported=unsupported,
    sample=sample,
)
