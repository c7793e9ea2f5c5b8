"""The Triton provider of op quantise_fp8: x [M, K] stored as float8_e4m3fn, with the scales that it finds or is given.

scale = max |x| / 448 over what shares it, stored = x / scale, clamped to +-448. Two forms:

* rows: one program a row, which it reads twice: from DRAM for the largest value, from L2 to store.
* groups: tiles of whole groups of 128, read once; with a given scale any tile.

Bound: DRAM (no arithmetic that counts). x is multiplied by the rounded inverse of its scale, as serving engines do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import INTERPRETED, OPTIONS, target_arch
from kernels.launch_work import quantise_launch
from kernels.quantisation import LARGEST, LEAST_SCALE, check_arch
from kernels.tuned import Bucket, Table, dtype_name, tuned_first


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters.

    Attributes:
        block_m: rows of a tile of the form by groups.
        block_k: values of a step along a row of the form by rows.
        num_warps: of the compiler.
    """

    block_m: int = 1
    block_k: int = 128
    num_warps: int = 4


BY_ROWS = (Config(block_k=2048), Config(block_k=4096, num_warps=8), Config(block_k=1024, num_warps=2))
BY_GROUPS = (Config(block_m=16), Config(block_m=32), Config(block_m=8, num_warps=2))
TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""
MOST = tl.constexpr(LARGEST[torch.float8_e4m3fn])
LEAST = tl.constexpr(LEAST_SCALE)
GROUP = tl.constexpr(128)
"""Values along K that share a scale of blocks."""
LEAST_EXPONENT = tl.constexpr(121 << 23)
"""Bits of 2^-6: below it e4m3 has steps of 2^-9 alone."""
TO_MAGIC = tl.constexpr((20 << 23) | 0x400000)
"""What makes of a value's exponent bits those of 1.5 x 2^23 steps: a float32 that large has no bits below a step."""


def bucket_of(dtype: torch.dtype, group: int, given: bool) -> Bucket:
    """What the choice of a configuration depends on: dtype, and what shares a scale."""
    return (dtype_name(dtype), "given" if given else f"groups of {group}" if group else "rows")


def configs_for(dtype: torch.dtype, group: int, given: bool, arch: int) -> tuple[Config, ...]:
    """The configurations of the form that this takes, the default first."""
    usual = BY_GROUPS if group or given else BY_ROWS
    return tuned_first(TUNED, bucket_of(dtype, group, given), usual, arch)


@triton.jit
def scale_for(largest):
    """Of what has this largest absolute value: 1 for zeros, and never so small that it would be flushed."""
    scale = tl.maximum(tl.div_rn(largest, MOST), LEAST)
    return tl.where(largest == 0.0, 1.0, scale)


@triton.jit
def as_e4m3(scaled, ROUND: tl.constexpr):
    """Clamped and rounded to the nearest, halves to even.

    ROUND: by arithmetic first, which leaves the conversion nothing to round: the interpreter's own rounds wrongly.
    """
    value = tl.minimum(tl.maximum(scaled, -MOST), MOST)
    if ROUND:
        exponent = tl.maximum(value.to(tl.int32, bitcast=True) & 0x7F800000, LEAST_EXPONENT)
        magic = (exponent + TO_MAGIC).to(tl.float32, bitcast=True)
        value = (value + magic) - magic
    return value.to(tl.float8e4nv)


@triton.jit(launch_metadata=quantise_launch)
def _quantise_rows_kernel(
    x, stored, scales, M, K, stride_xm, stride_xk, BLOCK_K: tl.constexpr, ROUND: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    ks = tl.arange(0, BLOCK_K)
    largest = tl.zeros((BLOCK_K,), tl.float32)
    for k in range(0, K, BLOCK_K):
        depth = (k + ks).to(tl.int64)
        values = tl.load(x + row * stride_xm + depth * stride_xk, mask=k + ks < K, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(values))
    scale = scale_for(tl.max(largest, 0))
    inverse = tl.div_rn(1.0, scale)
    tl.store(scales + row, scale)
    for k in range(0, K, BLOCK_K):
        depth = (k + ks).to(tl.int64)
        values = tl.load(x + row * stride_xm + depth * stride_xk, mask=k + ks < K, other=0.0).to(tl.float32)
        tl.store(stored + row * K + depth, as_e4m3(values * inverse, ROUND), mask=k + ks < K)


@triton.jit(launch_metadata=quantise_launch)
def _quantise_groups_kernel(
    x, stored, scales, M, K, stride_xm, stride_xk, GIVEN: tl.constexpr, BLOCK_M: tl.constexpr, ROUND: tl.constexpr
):  # fmt: skip
    """GIVEN: `scales` holds the one scale of all; else those of groups, [K / 128, M], are written."""
    groups = tl.cdiv(K, GROUP)
    program = tl.program_id(0)
    group = program % groups
    rows = (program // groups) * BLOCK_M + tl.arange(0, BLOCK_M)
    ks = group * GROUP + tl.arange(0, GROUP)
    inside = (rows < M)[:, None] & (ks < K)[None, :]
    places = rows.to(tl.int64)[:, None] * stride_xm + ks.to(tl.int64)[None, :] * stride_xk
    values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    if GIVEN:
        scaled = values * tl.div_rn(1.0, tl.load(scales))
    else:
        scale = scale_for(tl.max(tl.abs(values), 1))
        scaled = values * tl.div_rn(tl.full((BLOCK_M,), 1.0, tl.float32), scale)[:, None]
        tl.store(scales + tl.cast(group, tl.int64) * M + rows, scale, mask=rows < M)
    tl.store(stored + rows.to(tl.int64)[:, None] * K + ks[None, :], as_e4m3(scaled, ROUND), mask=inside)


def quantise_fp8(
    x: torch.Tensor, *, group: int = 0, scale: torch.Tensor | None = None, config: Config | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """x as float8_e4m3fn by the Triton kernels.

    Args:
        x: [M, K] bfloat16, float16 or float32, any strides.
        group: values along K that share a scale: 128, or 0 for whole rows.
        scale: [1, 1] float32 for all of x, above 0; none is looked for then.
        config: launch parameters; the first of `configs_for` when None.

    Returns:
        stored [M, K] contiguous where a scale is given; else (stored, scales float32 [M, 1], or [M, ceil(K / 128)] with
        M its fast axis, as op matmul takes them).

    Raises:
        ValueError: another group, or a scale of another shape or dtype.
        UnsupportedError: a GPU before sm_89.
    """
    if x.ndim != 2 or group not in (0, GROUP.value):
        raise ValueError(f"wanted x [M, K] and groups of {GROUP.value} or 0, got {list(x.shape)} and {group}")
    if scale is not None and (scale.shape != (1, 1) or scale.dtype != torch.float32):
        raise ValueError(f"wanted a scale [1, 1] of float32, got {list(scale.shape)} {scale.dtype}")
    check_arch(torch.float8_e4m3fn, target_arch())
    M, K = x.shape
    stored = torch.empty((M, K), dtype=torch.float8_e4m3fn, device=x.device)
    steps = triton.cdiv(K, GROUP.value)
    shape = (steps, M) if group else (M, 1)
    scales = torch.empty(shape, dtype=torch.float32, device=x.device) if scale is None else scale
    config = config or configs_for(x.dtype, group, scale is not None, target_arch())[0]
    shared = {"ROUND": INTERPRETED, "num_warps": config.num_warps, "num_stages": 2, **OPTIONS}
    if M and scale is None and not group:
        block = min(config.block_k, triton.next_power_of_2(max(K, 1)))
        _quantise_rows_kernel[(M,)](x, stored, scales, M, K, *x.stride(), BLOCK_K=block, **shared)
    elif M * K:
        grid = (triton.cdiv(M, config.block_m) * steps,)
        _quantise_groups_kernel[grid](
            x, stored, scales, M, K, *x.stride(), GIVEN=scale is not None, BLOCK_M=config.block_m, **shared
        )
    return stored if scale is not None else (stored, scales.t() if group else scales)
