"""The Triton provider of op matmul_weight_only: Y[M, N] = X[M, K] @ W[N, K]^T, W stored in 4 or 8 bits.

Weights are widened in registers (`kernels.stored_weights`): a step of 512 along K is 64 words of 4 bytes a column, and
nibble i of all 64 words is one tile [BLOCK_N, 64] that multiplies X[:, 64 i : 64 i + 64]; 256 and 32 in groups of 32.

One kernel for all M, two walks over nibbles. Up to 16 rows a step's tiles are unrolled and scales are multiplied to
float32 sums of one group. Above, words wait in registers while a loop over their nibbles brings X by pieces, and
weights are scaled, and rounded, before they are multiplied: sums then stay in the tensor cores' accumulators.
For few rows K is split over programs until the machine is full; partials are added by a second kernel in a fixed
order, no atomics.
Bound: DRAM up to about M = 80 in int4 on an H100, arithmetic above.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import OPTIONS, sm_count, target_arch
from kernels.launch_work import weight_only_launch
from kernels.matmul_decode_triton import REDUCE_BLOCK, _reduce_kernel
from kernels.matmul_triton import tile_of
from kernels.quantisation import check_arch, words_in_row, words_of
from kernels.stored_values import widened
from kernels.stored_weights import load_x, nibble_loop, nibble_step
from kernels.tuned import Bucket, Table, dtype_name, size_class, tuned_first

DEPTH_OF_BYTES = 128
"""Places of K in one step of weights in 8 bits; of nibbles it is what `words_of` packs together."""
MAX_SPLITS, REDUCE_STEPS = 16, 2
ROWS_OF_A_STEP = 32
"""Whose float32 partials, out and back, are as many bytes as a step of nibbles: 256 a column."""
FEW = tl.constexpr(16)
"""Rows of a tile whose nibbles are unrolled."""
MOST_CLASS = 128
SMALL_SHARED = (86, 89, 120)
"""Archs with some 100 KB of shared memory on an SM."""
GROUP_M = 8
"""Rows of tiles that are walked together, so that neighbours share what L2 holds."""
GROUPS = (32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters.

    Attributes:
        block_m, block_n: rows and columns of a tile.
        num_warps, num_stages: of the compiler.
        ctas_per_sm: programs that an SM holds; the split rule fills them.
        splits: programs that share K; 0 lets `splits_for` decide.
    """

    block_m: int
    block_n: int
    num_warps: int = 4
    num_stages: int = 4
    ctas_per_sm: int = 2
    splits: int = 0


TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""


def bucket_of(M: int, dtype: torch.dtype, weight: str, group: int) -> Bucket:
    """What the choice of a configuration depends on: dtypes, length of groups, and the class of M."""
    return (dtype_name(dtype), weight, group, size_class(M, FEW.value, MOST_CLASS))


def configs_for(M: int, dtype: torch.dtype, weight: str, group: int, arch: int) -> tuple[Config, ...]:
    """The configurations for a number of rows, the default first."""
    rows, stages = size_class(M, FEW.value, MOST_CLASS), 2 if arch in SMALL_SHARED else 4
    usual: tuple[Config, ...]
    if rows > FEW.value and group:
        stages = 3
    if rows == MOST_CLASS:
        usual = (
            Config(block_m=128, block_n=128, num_warps=8, num_stages=min(3, stages), ctas_per_sm=1),
            Config(block_m=64, block_n=128, num_warps=8, num_stages=min(3, stages), ctas_per_sm=1),
        )
    elif rows == FEW.value and group:
        usual = (
            Config(block_m=16, block_n=64, num_stages=stages, ctas_per_sm=2),
            Config(block_m=16, block_n=32, num_stages=stages, ctas_per_sm=3),
        )
        usual = usual[::-1] if weight == "uint4" else usual  # whose zero points take registers
    else:
        usual = (
            Config(block_m=rows, block_n=64, num_stages=stages, ctas_per_sm=2),
            Config(block_m=rows, block_n=128, num_warps=8, num_stages=min(3, stages), ctas_per_sm=1),
        )
    if group and not 90 <= arch < 100 and rows in (FEW.value, MOST_CLASS):
        usual = tuple(config for config in usual if config.block_m * config.block_n in (16 * 32, 64 * 128))  # no spills
    return tuned_first(TUNED, bucket_of(M, dtype, weight, group), usual, arch)


def splits_for(tiles: int, steps: int, config: Config, sms: int) -> int:
    """Over how many programs K is shared: the number whose slowest SM is done first, partials too."""
    if config.splits:
        return min(config.splits, max(1, steps))
    slots = sms * config.ctas_per_sm

    def cost(splits: int) -> float:
        walk = triton.cdiv(steps, splits) + (splits > 1) * config.block_m / ROWS_OF_A_STEP
        return float(triton.cdiv(tiles * splits, slots) * walk + (splits > 1) * REDUCE_STEPS)

    return min(range(1, min(max(1, steps), MAX_SPLITS) + 1), key=cost)


@triton.jit(launch_metadata=weight_only_launch)
def _weight_only_kernel(
    x, w, scales, zeros, y, partial, M, N, K, splits, stride_xm, stride_xk, stride_wn, stride_sg, stride_ym,
    GROUP: tl.constexpr, STEP: tl.constexpr, SIGNED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr, SPLIT: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    split = program % splits
    row, column = tile_of(program // splits, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    share = tl.cdiv(tl.cdiv(K, STEP), splits) * STEP
    lo = split * share
    hi = min(K, lo + share)
    x_rows = x + rows.to(tl.int64)[:, None] * stride_xm
    w_rows = w + columns.to(tl.int64)[:, None] * stride_wn
    inside = (rows < M)[:, None]
    w_inside = (columns < N)[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if GROUP and BLOCK_M > FEW:
        acc = nibble_loop(
            acc, x_rows, w_rows, scales, zeros, lo, hi, columns, inside, w_inside, N, K, stride_xk, stride_sg,
            GROUP, STEP // 8, SIGNED, x.dtype.element_ty, EVEN_K)
    else:
        for k in range(lo, hi, STEP):
            if GROUP:
                words = tl.load(w_rows + (k // 8 + tl.arange(0, STEP // 8))[None, :], mask=w_inside, other=0)
                acc = nibble_step(
                    acc, x_rows, words.to(tl.uint32, bitcast=True), scales, zeros, k, columns, inside, N, K,
                    stride_xk, stride_sg, GROUP, STEP // 8, SIGNED, x.dtype.element_ty, EVEN_K)
            else:
                tile = load_x(w_rows, k, 1, w_inside, K, STEP, EVEN_K)
                acc = tl.dot(
                    load_x(x_rows, k, stride_xk, inside, K, STEP, EVEN_K), widened(tile, x.dtype.element_ty).T, acc)
    if not GROUP:
        acc *= tl.load(scales + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    stored = inside & (columns < N)[None, :]
    if SPLIT:
        places = (split.to(tl.int64) * M + rows)[:, None] * N + columns[None, :]
        tl.store(partial + places, acc, mask=stored)
    else:
        tl.store(y + rows.to(tl.int64)[:, None] * stride_ym + columns[None, :], acc.to(y.dtype.element_ty), mask=stored)


def matmul_weight_only(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    w_scale: torch.Tensor,
    w_zero: torch.Tensor | None = None,
    group: int = 0,
    config: Config | None = None,
) -> torch.Tensor:
    """Y = X @ W^T by the Triton kernel, W widened and scaled in registers.

    Args:
        x: [M, K] bfloat16 or float16, any strides.
        w: int32 [N, K / 8, in whole steps] as `kernels.quantisation.packed_nibbles` makes it, or int8 or float8_e4m3fn
            [N, K]; rows lie side by side.
        w_scale: of x's dtype, [ceil(K / group), N], or [1, N] of weights of 8 bits.
        w_zero: uint8 of the same shape, for unsigned nibbles; None for signed ones.
        group: 32, 64 or 128 places of K that share a scale; 0 for weights of 8 bits.
        config: launch parameters; the first of `configs_for` when None.

    Returns:
        [M, N] of x's dtype, contiguous.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
        UnsupportedError: float8_e4m3fn on a GPU before sm_89.
    """
    check_arch(w.dtype, target_arch())
    _check(x, w, w_scale, w_zero, group)
    (M, K), N = x.shape, w.shape[0]
    config = config or configs_for(M, x.dtype, weight_name(w, w_zero), group, target_arch())[0]
    y = torch.empty((M, N), dtype=x.dtype, device=x.device)
    if M * N == 0:
        return y
    tiles = triton.cdiv(M, config.block_m) * triton.cdiv(N, config.block_n)
    step = 8 * words_of(group) if group else DEPTH_OF_BYTES
    splits = splits_for(tiles, triton.cdiv(K, step), config, sm_count())
    partial = torch.empty((splits, M, N) if splits > 1 else (0,), dtype=torch.float32, device=x.device)
    _weight_only_kernel[(tiles * splits,)](
        x, w, w_scale, w_zero, y, partial, M, N, K, splits, *x.stride(), w.stride(0), w_scale.stride(0), y.stride(0),
        GROUP=group, STEP=step, SIGNED=w_zero is None, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        GROUP_M=GROUP_M, SPLIT=splits > 1, EVEN_K=K % step == 0, num_warps=config.num_warps,
        num_stages=config.num_stages, **OPTIONS,
    )  # fmt: skip
    if splits > 1:
        _reduce_kernel[(triton.cdiv(M * N, REDUCE_BLOCK),)](
            partial, y, M * N, splits, BLOCK=REDUCE_BLOCK, PDL=False, num_warps=4, num_stages=2, **OPTIONS
        )
    return y


def weight_name(w: torch.Tensor, w_zero: torch.Tensor | None) -> str:
    """The storage of weights by its name in a workload."""
    return {torch.int32: "int4" if w_zero is None else "uint4"}.get(w.dtype) or dtype_name(w.dtype)


def _check(x: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor, w_zero: torch.Tensor | None, group: int) -> None:
    told = f"x {list(x.shape)} {x.dtype}, w {list(w.shape)} {w.dtype}, w_scale {list(w_scale.shape)} {w_scale.dtype}"
    if x.ndim != 2 or w.ndim != 2 or x.dtype not in (torch.bfloat16, torch.float16) or w.stride(1) != 1:
        raise ValueError(f"wanted x [M, K] of bfloat16 or float16 and rows of w side by side, got {told}")
    K, packed = x.shape[1], w.dtype == torch.int32
    if not packed and w.dtype not in (torch.int8, torch.float8_e4m3fn):
        raise ValueError(f"wanted weights int32 (nibbles), int8 or float8_e4m3fn, got {told}")
    if group not in (GROUPS if packed else (0,)):
        raise ValueError(f"nibbles come in groups of {GROUPS}, 8 bits in none, got group={group} and {told}")
    wanted = (triton.cdiv(K, group) if packed else 1, w.shape[0])
    width = words_in_row(K, group) if packed else K
    if w.shape[1] != width or w_scale.shape != wanted or w_scale.dtype != x.dtype or w_scale.stride(1) != 1:
        raise ValueError(f"wanted w [N, {width}] and w_scale {list(wanted)} of x's dtype, got {told}")
    if w_zero is not None and (
        not packed or w_zero.shape != wanted or w_zero.dtype != torch.uint8 or w_zero.stride() != w_scale.stride()
    ):
        raise ValueError(f"zero points go with nibbles: uint8 {list(wanted)}, got {list(w_zero.shape)} {w_zero.dtype}")
