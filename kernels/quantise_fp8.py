"""quantise_fp8: x [M, K] stored as float8_e4m3fn, what an fp8 matmul is fed with.

Scales by the workload's `scale`: `tensor` is given (static, from calibration); `token`, one a row, and `block128`,
one a row and 128 values along K, are found from the values: max |x| / 448. Bound: DRAM, 3 bytes a value from 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernels.inputs import Sampler, torch_dtype
from kernels.quantisation import LARGEST, over_tiles, quantised, quantised_in_tiles
from kernels.spec import DECODE_ROWS, TRITON_ON_CPU, Inputs, Op, Outputs, Workload
from kernels.work import Work, storage_bytes

E4M3 = torch.float8_e4m3fn
GROUP = 128
GRANULARITIES = ("tensor", "token", "block128")
STATIC_SCALE = 1 / 128
"""Of values drawn normal(0, 1): some 3.5 and more of them are clamped, as rare values are after calibration."""


def quantise_fp8_torch(x: torch.Tensor, *, group: int = 0, scale: torch.Tensor | None = None) -> Outputs:
    """Plain torch operators: several kernels, each over all of x.

    Args:
        x: [M, K].
        group: values along K that share a scale: 128, or 0 for whole rows.
        scale: [1, 1] float32 for all of x; none is looked for then.

    Returns:
        stored [M, K], or (stored, scales [M, 1] or [M, ceil(K / 128)] with M its fast axis).
    """
    if scale is not None:
        return quantised(x, scale, E4M3)
    stored, scales = quantised_in_tiles(x, 1, group, E4M3)
    return stored, scales.t().contiguous().t()


def quantise_fp8_reference(x: torch.Tensor, *, group: int = 0, scale: torch.Tensor | None = None) -> Outputs:
    """x / scale in float64, clamped and not rounded; and the scales, in float64."""
    most = LARGEST[E4M3]
    if scale is not None:
        return (x.double() / scale.double()).clamp(-most, most)
    whole = torch.nn.functional.pad(x.double(), (0, -x.shape[1] % group)) if group else x.double()
    scales = whole.view(len(x), -1, group or x.shape[1]).abs().amax(2) / most
    scales = scales.masked_fill(scales == 0, 1.0)
    return (x.double() / over_tiles(scales, x.shape, GROUP)).clamp(-most, most), scales


def quantise_fp8_triton(x: torch.Tensor, **how: Any) -> Outputs:
    """The Triton kernels: see `kernels.quantise_fp8_triton.quantise_fp8`."""
    from kernels import quantise_fp8_triton as kernel

    return kernel.quantise_fp8(x, **how)


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """x [M, K], and a scale [1, 1] or the length of groups."""
    x = Sampler(device, seed).normal((workload.axes["M"], workload.axes["K"]), torch_dtype(workload.dtype))
    if workload.scale == "tensor":
        return {"x": x, "scale": torch.full((1, 1), STATIC_SCALE, device=device)}
    return {"x": x, "group": GROUP if workload.scale == "block128" else 0}


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernels' configurations for this workload."""
    from kernels import quantise_fp8_triton as kernel

    return kernel.configs_for(*_asked(workload), arch)


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernels' tuned table for this workload."""
    from kernels import quantise_fp8_triton as kernel

    return kernel.bucket_of(*_asked(workload))


def _asked(workload: Workload) -> tuple[torch.dtype, int, bool]:
    group = GROUP if workload.scale == "block128" else 0
    return torch_dtype(workload.dtype), group, workload.scale == "tensor"


def work(workload: Workload) -> Work:
    """No FLOPs that count; x, what is stored, and scales of 4 bytes once."""
    M, K = workload.axes["M"], workload.axes["K"]
    scales = {"tensor": 1, "token": M}.get(workload.scale, M * -(-K // GROUP))
    return Work(flops=0, bytes=storage_bytes(M * K, workload.dtype) + M * K + 4 * scales)


def unsupported(workload: Workload, provider: str) -> str | None:
    """Other granularities than an fp8 matmul takes."""
    scale = workload.scale or "nothing"
    return None if scale in GRANULARITIES else f"wanted scales per {', '.join(GRANULARITIES)}, got {scale}"


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A workload of these sizes with scales per token."""
    phase = "decode" if axes["M"] <= DECODE_ROWS else "prefill"
    return Workload(axes=axes, dtype=dtype, phase=phase, technique="fp8", source=source, scale="token")


def _check(M: int, K: int, scale: str) -> Workload:
    return Workload(
        axes={"M": M, "K": K}, dtype="float16", phase="decode", technique="fp8", scale=scale,
        source=("ragged, for correctness",),
    )  # fmt: skip


OP = Op(
    name="quantise_fp8",
    summary="X[M, K] / scale as float8_e4m3fn, and the scales",
    axes={"M": 1, "K": None},
    dtypes=("bfloat16", "float16", "float32"),
    make_inputs=make_inputs,
    reference=quantise_fp8_reference,
    eager=quantise_fp8_torch,
    providers={"triton": quantise_fp8_triton, "torch": quantise_fp8_torch},
    cuda_only=TRITON_ON_CPU,
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(5, 4099, "token"),
        _check(1, 128, "token"),
        _check(37, 272, "block128"),
        _check(3, 129, "block128"),
        _check(37, 130, "tensor"),
    ),
    roles={"x": "resident", "scale": "resident"},
    unsupported=unsupported,
    configs=configs,
    bucket=bucket,
)
