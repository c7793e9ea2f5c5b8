"""matmul: C[M, N] = A[M, K] @ B[K, N], the projections of a prefill step.

B is a linear layer's weight W[N, K] seen transposed, as serving engines hold it: K is its fast axis. Bound:
arithmetic from about M = 300 rows of bfloat16 on an H100, DRAM below. Products are accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernels import matmul_w8a8
from kernels.inputs import Sampler, torch_dtype
from kernels.spec import DECODE_ROWS, TRITON_ON_CPU, Inputs, Op, UnsupportedError, Workload
from kernels.work import Work, matmul_work

CHECK_IN_FULL = 2**31
"""Multiply-adds up to which the float64 reference is computed whole; above it a sample of rows and columns."""
SAMPLED_ROWS, SAMPLED_COLUMNS = 128, 256


def matmul_torch(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    allow_tf32: bool = False,
) -> torch.Tensor:
    """`torch.matmul`: cuBLAS on CUDA, oneDNN or MKL on a CPU. With scales `torch._scaled_mm`.

    Args:
        a: [M, K].
        b: [K, N] of the same dtype.
        a_scale, b_scale: of float8_e4m3fn and int8 operands, as `make_inputs` gives them.
        allow_tf32: multiply float32 in TF32.

    Returns:
        [M, N] of the same dtype; bfloat16 of float8_e4m3fn and int8.

    Raises:
        UnsupportedError: TF32 away from CUDA, or scales that torch does not take there.
    """
    if a_scale is not None and b_scale is not None:
        return matmul_w8a8.scaled_mm_torch(a, a_scale, b.t(), b_scale.t())
    set_tf32(a.device, allow_tf32)
    return torch.matmul(a, b)


def set_tf32(device: torch.device, allow: bool) -> None:
    """Makes torch's float32 products TF32 or full precision, said outright rather than left to a default."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.fp32_precision = "tf32" if allow else "ieee"
    elif allow:
        raise UnsupportedError(f"tfloat32 is a mode of CUDA tensor cores; on {device.type} use float32")


def matmul_eager(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    allow_tf32: bool = False,
) -> torch.Tensor:
    """As `matmul_torch`; with scales dequantised products in float32."""
    if a_scale is None or b_scale is None:
        return matmul_torch(a, b, allow_tf32=allow_tf32)
    set_tf32(a.device, False)
    return matmul_w8a8.scaled_eager(a, a_scale, b.t(), b_scale.t())


def matmul_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    allow_tf32: bool = False,
) -> torch.Tensor:
    """[M, N] in float64 from the inputs' own values, times their scales."""
    if a_scale is not None and b_scale is not None:
        return matmul_w8a8.scaled_reference(a, a_scale, b.t(), b_scale.t())
    return a.double() @ b.double()


def matmul_triton(a: torch.Tensor, b: torch.Tensor, **how: Any) -> torch.Tensor:
    """The Triton kernel: see `kernels.matmul_triton.matmul`. Triton is imported when it is first run."""
    from kernels import matmul_triton as kernel

    return kernel.matmul(a, b, **how)


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """a [M, K] and b [K, N], K-major; `allow_tf32` for tfloat32.

    Of 8 bits a_scale and b_scale: [1, 1] twice; [M, 1] and [1, N]; or [M, K / 128] and [K / 128, N / 128].
    """
    if workload.dtype in matmul_w8a8.SCALED:
        x, x_scale, w, w_scale = matmul_w8a8.scaled_operands(workload, device, seed)
        return {"a": x, "b": w.t(), "a_scale": x_scale, "b_scale": w_scale.t()}
    M, N, K = (workload.axes[axis] for axis in "MNK")
    draw, dtype = Sampler(device, seed), torch_dtype(workload.dtype)
    return {
        "a": draw.normal((M, K), dtype),
        "b": draw.normal((N, K), dtype).t(),
        "allow_tf32": workload.dtype == "tfloat32",
    }


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[torch.Tensor], torch.Tensor]]:
    """The whole of a small product; rows and columns spread over a large one, first and last among them."""
    a, b = inputs["a"], inputs["b"]
    (M, K), N = a.shape, b.shape[1]
    if M * N * K <= CHECK_IN_FULL:
        return inputs, lambda out: out
    rows, columns = spread(M, SAMPLED_ROWS, a.device), spread(N, SAMPLED_COLUMNS, a.device)
    if "b_scale" in inputs:
        columns, few = matmul_w8a8.sampled_channels(b.t(), inputs["b_scale"].t(), columns)
        a_scale = inputs["a_scale"]
        few_a = {"a": a[rows], "a_scale": a_scale[rows] if len(a_scale) > 1 else a_scale}
        return few_a | {"b": few[0].t(), "b_scale": few[1].t()}, lambda out: out[rows][:, columns]
    return inputs | {"a": a[rows], "b": b[:, columns]}, lambda out: out[rows][:, columns]


def spread(size: int, count: int, device: torch.device) -> torch.Tensor:
    """Up to `count` indices evenly over range(size), the first and the last included."""
    return torch.linspace(0, size - 1, min(size, count), device=device, dtype=torch.float64).round().long()


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernel's configurations for the inputs of this workload: that of `config_for`, then the likeliest."""
    from kernels import matmul_triton as kernel
    from kernels.launch import sm_count
    from kernels.matmul_configs import ranked

    problem = problem_for(workload, arch)
    first = kernel.config_for(problem, sm_count(arch))
    return (first, *(c for c in ranked(problem, sm_count(arch)) if c != first))


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernel's tuned table for this workload."""
    from kernels import matmul_triton as kernel

    return kernel.bucket_of(problem_for(workload, arch))


def problem_for(workload: Workload, arch: int) -> Any:
    """What the Triton kernel's choices look at."""
    from kernels.matmul_problem import problem_of
    from kernels.scaled_products import scaling_of

    inputs = make_inputs(workload, "meta", 0)
    a, b, scales = inputs["a"], inputs["b"], (inputs.get("a_scale"), inputs.get("b_scale"))
    scaling = scaling_of(a, scales[0], b.t(), None if scales[1] is None else scales[1].t())
    return problem_of(a, b, arch, inputs.get("allow_tf32", False), scaling)


def work(workload: Workload) -> Work:
    """2 M N K FLOPs; A, B and C once, and scales."""
    if workload.dtype in matmul_w8a8.SCALED:
        return matmul_w8a8.scaled_matmul_work(workload)
    return matmul_work(*(workload.axes[axis] for axis in "MNK"), dtype=workload.dtype)


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A workload of these sizes: decode up to 64 rows, prefill above; float8_e4m3fn and int8 with scales per token."""
    phase = "decode" if axes["M"] <= DECODE_ROWS else "prefill"
    return matmul_w8a8.described(Workload(axes=axes, dtype=dtype, phase=phase, source=source))


def _check(M: int, N: int, K: int, dtype: str = "float32") -> Workload:
    return describe_axes({"M": M, "N": N, "K": K}, dtype, ("ragged, for correctness",))


FP8_CHECKS = (
    ("tensor", (96, 80, 144)),
    ("token", (130, 144, 272)),
    ("token", (33, 35, 77)),
    ("block128", (100, 144, 272)),
    ("block128", (66, 131, 129)),
)
"""Granularity and M, N, K: rows in whole 16 bytes, and not; more than one block along N and K, the last not whole."""

OP = Op(
    name="matmul",
    summary="C[M, N] = A[M, K] @ B[K, N], B K-major",
    axes={"M": None, "N": None, "K": None},
    dtypes=("bfloat16", "float16", "tfloat32", "float32", *matmul_w8a8.SCALED),
    make_inputs=make_inputs,
    reference=matmul_reference,
    eager=matmul_eager,
    providers={"triton": matmul_triton, "torch": matmul_torch},
    cuda_only=TRITON_ON_CPU,
    configs=configs,
    bucket=bucket,
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(128, 128, 64),
        _check(100, 99, 101),
        _check(33, 17, 31),
        _check(5, 3, 1),
        _check(1, 8, 16, "float16"),
        _check(130, 257, 72, "float16"),
        *(matmul_w8a8.with_scales(_check(*sizes, matmul_w8a8.E4M3), scale) for scale, sizes in FP8_CHECKS),
        _check(130, 144, 272, matmul_w8a8.INT8),
        _check(33, 35, 77, matmul_w8a8.INT8),
    ),
    roles={"a": "resident", "b": "streamed", "a_scale": "resident", "b_scale": "streamed"},
    unsupported=matmul_w8a8.refusal,
    sample=sample,
)
