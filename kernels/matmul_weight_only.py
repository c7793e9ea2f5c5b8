"""matmul_weight_only: Y[M, N] = X[M, K] @ W[N, K]^T with 16-bit activations and weights stored in 4 or 8 bits.

`weight_dtype` says how: int4 (two's complement) and uint4 (with zero points) in groups of 32, 64 or 128 along K that
share a scale (W4A16: GPTQ, arXiv 2210.17323; AWQ, arXiv 2306.00978), int8 and float8_e4m3fn with a scale a column
(W8A16). value = (stored - zero point) * scale, scales of the activations' dtype. Weights are a quarter or half of
bfloat16's bytes, and arithmetic stays in 16 bits: what a decode step gains, a prefill does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernels import matmul
from kernels.inputs import Sampler, torch_dtype
from kernels.quantisation import (
    dequantised,
    grouped_nibbles,
    packed_nibbles,
    quantised_in_tiles,
    unpacked_nibbles,
    words_in_row,
)
from kernels.quantised_matmuls import EIGHT_BITS, NIBBLES, USUAL_GROUP, with_weights
from kernels.spec import DECODE_ROWS, TRITON_ON_CPU, Inputs, Op, UnsupportedError, Workload
from kernels.work import Work, storage_bytes

GROUPS = (32, 64, 128)
TORCH_DEPTH = 16
"""What torch._weight_int8pack_mm wants K in whole multiples of."""


def matmul_weight_only_torch(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    w_scale: torch.Tensor,
    w_zero: torch.Tensor | None = None,
    group: int = 0,
) -> torch.Tensor:
    """`torch._weight_int8pack_mm`: int8 alone; torch's packing of nibbles is another, see `unsupported`.

    Args:
        x: [M, K].
        w: int8 [N, K].
        w_scale: [1, N] of x's dtype.
        w_zero, group: of nibbles.

    Returns:
        [M, N] of x's dtype.

    Raises:
        UnsupportedError: weights stored otherwise.
    """
    if w.dtype != torch.int8:
        raise UnsupportedError(_torch_refusal(str(w.dtype).removeprefix("torch.")))
    return torch._weight_int8pack_mm(x.contiguous(), w, w_scale[0])


def matmul_weight_only_eager(x: torch.Tensor, w: torch.Tensor, **stored: Any) -> torch.Tensor:
    """Weights dequantised, rounded to x's dtype, and multiplied by `torch.matmul`."""
    return torch.matmul(x, _values(w, x.shape[1], x.dtype, **stored).t())


def matmul_weight_only_reference(x: torch.Tensor, w: torch.Tensor, **stored: Any) -> torch.Tensor:
    """[M, N] in float64 from the dequantised weights."""
    return x.double() @ _values(w, x.shape[1], torch.float64, **stored).t()


def _values(
    w: torch.Tensor,
    K: int,
    dtype: torch.dtype,
    *,
    w_scale: torch.Tensor,
    w_zero: torch.Tensor | None = None,
    group: int = 0,
) -> torch.Tensor:
    if not group:
        return dequantised(w, w_scale.t(), dtype)
    stored = unpacked_nibbles(w, K, group, signed=w_zero is None)
    scales = w_scale.t().repeat_interleave(group, 1)[:, :K]
    if w_zero is not None:
        stored = stored - w_zero.t().repeat_interleave(group, 1)[:, :K].to(torch.int8)
    return dequantised(stored, scales, dtype)


def matmul_weight_only_triton(x: torch.Tensor, w: torch.Tensor, **how: Any) -> torch.Tensor:
    """The Triton kernel: see `kernels.matmul_weight_only_triton.matmul_weight_only`."""
    from kernels import matmul_weight_only_triton as kernel

    return kernel.matmul_weight_only(x, w, **how)


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """x [M, K], w packed nibbles or [N, K] of 8 bits, w_scale [groups, N], and of uint4 w_zero."""
    M, N, K = (workload.axes[axis] for axis in "MNK")
    draw, dtype, group = Sampler(device, seed), torch_dtype(workload.dtype), workload.axes.get("group_size", 0)
    x, weights = draw.normal((M, K), dtype), draw.normal((N, K), dtype)
    if workload.weight_dtype in EIGHT_BITS:
        w, scales = quantised_in_tiles(weights, 1, 0, torch_dtype(workload.weight_dtype))
        return {"x": x, "w": w, "w_scale": scales.t().to(dtype).contiguous()}
    if workload.weight_dtype not in NIBBLES:
        raise ValueError(unsupported(workload, "triton"))
    stored, scales, zeros = grouped_nibbles(weights, group, dtype, zero_points=workload.weight_dtype == "uint4")
    inputs = {"x": x, "w": packed_nibbles(stored, group), "w_scale": scales, "group": group}
    return inputs if zeros is None else inputs | {"w_zero": zeros}


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[torch.Tensor], torch.Tensor]]:
    """The whole of a small product; rows and columns spread over a large one."""
    x, w = inputs["x"], inputs["w"]
    if x.numel() * len(w) <= matmul.CHECK_IN_FULL // 8:
        return inputs, lambda out: out
    rows = matmul.spread(len(x), matmul.SAMPLED_ROWS, x.device)
    columns = matmul.spread(len(w), matmul.SAMPLED_COLUMNS, x.device)
    fewer = {name: inputs[name][:, columns] for name in ("w_scale", "w_zero") if name in inputs}
    return inputs | fewer | {"x": x[rows], "w": w[columns]}, lambda out: out[rows][:, columns]


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernel's configurations for this many rows."""
    from kernels import matmul_weight_only_triton as kernel

    return kernel.configs_for(*_problem(workload), arch)


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernel's tuned table for this workload."""
    from kernels import matmul_weight_only_triton as kernel

    return kernel.bucket_of(*_problem(workload))


def _problem(workload: Workload) -> tuple[int, torch.dtype, str, int]:
    group = workload.axes.get("group_size", 0)
    return workload.axes["M"], torch_dtype(workload.dtype), workload.weight_dtype, group


def work(workload: Workload) -> Work:
    """2 M N K FLOPs; X, packed weights, scales of 2 bytes, zero points of one, and Y once."""
    M, N, K = (workload.axes[axis] for axis in "MNK")
    group = workload.axes.get("group_size", 0)
    weights, scales = (4 * N * words_in_row(K, group), -(-K // group) * N) if group else (N * K, N)
    zeros = scales if workload.weight_dtype == "uint4" else 0
    activations = storage_bytes(M * K + M * N + scales, workload.dtype)
    return Work(flops=2 * M * N * K, bytes=activations + weights + zeros)


def unsupported(workload: Workload, provider: str) -> str | None:
    """Other storage than the op has, and what torch cannot take."""
    stored, group = workload.weight_dtype, workload.axes.get("group_size", 0)
    if stored not in (*NIBBLES, *EIGHT_BITS):
        return f"wanted weights of {', '.join((*NIBBLES, *EIGHT_BITS))}, got {stored or workload.dtype}"
    if stored in NIBBLES and (group not in GROUPS or workload.scale):
        return f"{stored} has a scale for {GROUPS} places of K, got group_size={group} {workload.scale}".rstrip()
    if stored in EIGHT_BITS and (group or workload.scale != "channel"):
        return f"{stored} has a scale a channel, got {workload.scale or 'none'} and group_size={group}"
    if not provider.startswith("torch"):
        return None
    if stored != "int8":
        return _torch_refusal(stored)
    K = workload.axes["K"]
    return None if K % TORCH_DEPTH == 0 else f"torch._weight_int8pack_mm wants K in whole {TORCH_DEPTH}, got K={K}"


def _torch_refusal(stored: str) -> str:
    if stored == "float8_e4m3fn":
        return "torch multiplies no 16-bit activations by float8_e4m3fn weights"
    return "torch._weight_int4pack_mm takes a layout of its own, with scales and zero points in one tensor of bfloat16"


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A workload of these sizes with weights in int4."""
    phase = "decode" if axes["M"] <= DECODE_ROWS else "prefill"
    plain = Workload(axes=axes, dtype=dtype, phase=phase, source=source)
    return with_weights(plain, "int4", axes.get("group_size", USUAL_GROUP))


def _check(M: int, N: int, K: int, weight_dtype: str, group: int = 0) -> Workload:
    described = describe_axes({"M": M, "N": N, "K": K}, "float16", ("ragged, for correctness",))
    return with_weights(described, weight_dtype, group)


OP = Op(
    name="matmul_weight_only",
    summary="Y[M, N] = X[M, K] @ W[N, K]^T, W in int4, uint4, int8 or float8_e4m3fn",
    axes={"M": 1, "N": None, "K": None, "group_size": USUAL_GROUP},
    dtypes=("bfloat16", "float16"),
    make_inputs=make_inputs,
    reference=matmul_weight_only_reference,
    eager=matmul_weight_only_eager,
    providers={"triton": matmul_weight_only_triton, "torch": matmul_weight_only_torch},
    cuda_only=TRITON_ON_CPU,
    configs=configs,
    bucket=bucket,
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(1, 72, 512, "int4", 128),
        _check(5, 33, 200, "int4", 128),
        _check(17, 130, 272, "int4", 64),
        _check(3, 40, 99, "int4", 32),
        _check(1, 64, 384, "uint4", 128),
        _check(130, 70, 161, "uint4", 64),
        _check(7, 31, 333, "uint4", 32),
        _check(3, 48, 272, "int8"),
        _check(70, 35, 77, "int8"),
        _check(2, 64, 256, "float8_e4m3fn"),
        _check(33, 35, 77, "float8_e4m3fn"),
    ),
    roles={"x": "resident", "w": "streamed", "w_scale": "streamed", "w_zero": "streamed"},
    unsupported=unsupported,
    sample=sample,
)
