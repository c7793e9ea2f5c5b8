"""matmul_decode: Y[M, N] = X[M, K] @ W[N, K]^T for 1 to 64 rows, the projections of a decode step.

Every weight is read for at most 64 multiply-adds, so DRAM bounds it on a GPU (intensity about M FLOP/byte in
bfloat16) and the launch floor bounds the small ones. W is a linear layer's weight as it lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernels import matmul, matmul_w8a8
from kernels.inputs import Sampler, torch_dtype
from kernels.spec import DECODE_ROWS, TRITON_ON_CPU, Inputs, Op, Workload
from kernels.work import Work, matmul_work


def matmul_decode_torch(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
    allow_tf32: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.linear` without bias. With scales `torch._scaled_mm`.

    Args:
        x: [M, K].
        w: [N, K] of the same dtype.
        x_scale, w_scale: of float8_e4m3fn and int8 operands, as `make_inputs` gives them.
        allow_tf32: multiply float32 in TF32.

    Returns:
        [M, N] of the same dtype; bfloat16 of float8_e4m3fn and int8.

    Raises:
        UnsupportedError: TF32 away from CUDA, or scales that torch does not take there.
    """
    if x_scale is not None and w_scale is not None:
        return matmul_w8a8.scaled_mm_torch(x, x_scale, w, w_scale)
    matmul.set_tf32(x.device, allow_tf32)
    return torch.nn.functional.linear(x, w)


def matmul_decode_eager(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
    allow_tf32: bool = False,
) -> torch.Tensor:
    """As `matmul_decode_torch`; with scales dequantised products in float32."""
    if x_scale is None or w_scale is None:
        return matmul_decode_torch(x, w, allow_tf32=allow_tf32)
    matmul.set_tf32(x.device, False)
    return matmul_w8a8.scaled_eager(x, x_scale, w, w_scale)


def matmul_decode_reference(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
    allow_tf32: bool = False,
) -> torch.Tensor:
    """[M, N] in float64 from the inputs' own values, times their scales."""
    if x_scale is not None and w_scale is not None:
        return matmul_w8a8.scaled_reference(x, x_scale, w, w_scale)
    return x.double() @ w.double().t()


def matmul_decode_triton(x: torch.Tensor, w: torch.Tensor, **how: Any) -> torch.Tensor:
    """The Triton kernels: see `kernels.matmul_decode_triton.matmul_decode`."""
    from kernels import matmul_decode_triton as kernel

    return kernel.matmul_decode(x, w, **how)


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """x [M, K] and w [N, K]; `allow_tf32` for tfloat32.

    Of 8 bits x_scale and w_scale: [1, 1] twice; [M, 1] and [N, 1]; or [M, K / 128] and [N / 128, K / 128].
    """
    if workload.dtype in matmul_w8a8.SCALED:
        return dict(
            zip(("x", "x_scale", "w", "w_scale"), matmul_w8a8.scaled_operands(workload, device, seed), strict=True)
        )
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
    if "w_scale" in inputs:
        columns, few = matmul_w8a8.sampled_channels(w, inputs["w_scale"], columns)
        return inputs | {"w": few[0], "w_scale": few[1]}, lambda out: out[:, columns]
    return inputs | {"w": w[columns]}, lambda out: out[:, columns]


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernels' configurations for this many rows on an arch."""
    from kernels import matmul_decode_triton as kernel

    M, K, dtype = workload.axes["M"], workload.axes["K"], torch_dtype(workload.dtype)
    return kernel.configs_for(M, K, dtype, arch, workload.dtype == "tfloat32", matmul_w8a8.scaling_for(workload))


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernels' tuned table for this workload."""
    from kernels import matmul_decode_triton as kernel

    M, K, dtype = workload.axes["M"], workload.axes["K"], torch_dtype(workload.dtype)
    return kernel.bucket_of(M, K, dtype, workload.dtype == "tfloat32", matmul_w8a8.scaling_for(workload))


def work(workload: Workload) -> Work:
    """2 M N K FLOPs; X, W and Y once, and scales."""
    if workload.dtype in matmul_w8a8.SCALED:
        return matmul_w8a8.scaled_matmul_work(workload)
    return matmul_work(*(workload.axes[axis] for axis in "MNK"), dtype=workload.dtype)


def unsupported(workload: Workload, provider: str) -> str | None:
    """More rows than decode has belong to op matmul; what a provider of 8 bits cannot take."""
    rows = workload.axes["M"]
    if not 1 <= rows <= DECODE_ROWS:
        return f"M={rows}: matmul_decode is for 1 to {DECODE_ROWS} rows; use matmul"
    return matmul_w8a8.refusal(workload, provider)


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A decode workload of these sizes; float8_e4m3fn and int8 with scales per token."""
    return matmul_w8a8.described(Workload(axes=axes, dtype=dtype, phase="decode", source=source))


def _check(M: int, N: int, K: int, dtype: str = "float32") -> Workload:
    return describe_axes({"M": M, "N": N, "K": K}, dtype, ("ragged, for correctness",))


FP8_CHECKS = (
    ("tensor", (1, 48, 272)),
    ("token", (17, 144, 272)),
    ("token", (3, 35, 77)),
    ("block128", (5, 144, 272)),
    ("block128", (2, 131, 385)),
)
"""Granularity and M, N, K, as of op matmul."""

OP = Op(
    name="matmul_decode",
    summary="Y[M, N] = X[M, K] @ W[N, K]^T, M up to 64",
    axes={"M": 1, "N": None, "K": None},
    dtypes=("bfloat16", "float16", "tfloat32", "float32", *matmul_w8a8.SCALED),
    make_inputs=make_inputs,
    reference=matmul_decode_reference,
    eager=matmul_decode_eager,
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
        *(matmul_w8a8.with_scales(_check(*sizes, matmul_w8a8.E4M3), scale) for scale, sizes in FP8_CHECKS),
        _check(17, 144, 272, matmul_w8a8.INT8),
        _check(1, 35, 77, matmul_w8a8.INT8),
    ),
    roles={"x": "resident", "w": "streamed", "x_scale": "resident", "w_scale": "streamed"},
    unsupported=unsupported,
    sample=sample,
)
