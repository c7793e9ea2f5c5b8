"""The Triton provider of op matmul_decode: Y[M, N] = X[M, K] @ W[N, K]^T for 1 to 64 rows.

Every weight is used for at most 64 multiply-adds, so what counts is bytes in flight on every SM and few instructions
per byte. Three forms, as configurations:

* gemv (M = 1): 16-byte loads, multiply and add on the CUDA cores, no shared memory.
* tile: X padded to 16 or more rows, W the wide side of a tensor-core tile fed through shared memory.
* swap: W the 64-row side, so that sm_90 uses wgmma straight from shared memory.

K is split over programs until the machine is full (`splits_for` holds the rule); each split writes its float32
partial and a second kernel adds them in a fixed order: no atomics, the same bits every time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels.launch import OPTIONS, sm_count, target_arch
from kernels.launch_work import matmul_decode_launch, merge_launch
from kernels.matmul_decode_configs import MOST_ROWS, Config, by_rule, is_ragged, row_class, splits_for
from kernels.pieces import in_pieces, row_piece
from kernels.quantisation import check_arch
from kernels.scaled_products import block_scales, promotes, scale_strides, scaled, scaling_of, sum_dtype
from kernels.tuned import Bucket, Table, dtype_name, tuned_first

TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""
REDUCE_BLOCK = 1024


def bucket_of(M: int, K: int, dtype: torch.dtype, allow_tf32: bool, scaling: int = 0) -> Bucket:
    """What the choice of a configuration depends on: dtype and scales; one row, up to 16 or up to 64; narrow loads."""
    kind = ("", " scaled by row", " scaled by block")[scaling]
    return (dtype_name(dtype, allow_tf32) + kind, row_class(M), *(("ragged",) if is_ragged(K, dtype) else ()))


def configs_for(
    M: int, K: int, dtype: torch.dtype, arch: int, allow_tf32: bool = False, scaling: int = 0
) -> tuple[Config, ...]:
    """The configurations for a number and a length of rows, the default first."""
    return tuned_first(TUNED, bucket_of(M, K, dtype, allow_tf32, scaling), by_rule(M, K, dtype, arch, scaling), arch)


@triton.jit
def _store(
    acc, y, partial, rows, columns, split, M, N, stride_ym, stride_yn, SWAP: tl.constexpr, SPLIT: tl.constexpr
):  # fmt: skip
    """Stores a tile [rows, columns] of Y, or its transpose, or the partial of a split [splits, M, N]."""
    if SWAP:
        m = rows[None, :]
        n = columns[:, None]
    else:
        m = rows[:, None]
        n = columns[None, :]
    inside = (m < M) & (n < N)
    if SPLIT:
        tl.store(partial + (split.to(tl.int64) * M + m) * N + n, acc, mask=inside)
    else:
        tl.store(y + m.to(tl.int64) * stride_ym + n.to(tl.int64) * stride_yn, acc.to(y.dtype.element_ty), mask=inside)


@triton.jit(launch_metadata=matmul_decode_launch)
def _matmul_decode_kernel(
    x, w, y, partial, M, N, K, splits, stride_xm, stride_xk, stride_wn, stride_wk, stride_ym, stride_yn,
    x_scale, w_scale, stride_sxm, stride_sxk, stride_swn, stride_swk, SCALING: tl.constexpr, PROMOTE: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SWAP: tl.constexpr, SPLIT: tl.constexpr,
    EVEN_K: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    K = in_pieces(K, PIECE)
    stride_xm = in_pieces(stride_xm, PIECE)
    stride_wn = in_pieces(stride_wn, PIECE)
    program = tl.program_id(0)
    split = program % splits
    columns = (program // splits) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.arange(0, BLOCK_M)
    ks = tl.arange(0, BLOCK_K)
    share = tl.cdiv(tl.cdiv(K, BLOCK_K), splits) * BLOCK_K
    lo = split * share
    hi = min(K, lo + share)
    x_rows = x + rows.to(tl.int64)[:, None] * stride_xm
    w_rows = w + columns.to(tl.int64)[:, None] * stride_wn
    x_inside = (rows < M)[:, None]
    w_inside = (columns < N)[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), SUM)
    for k in range(lo, hi, BLOCK_K):
        depth = (k + ks).to(tl.int64)[None, :]
        if EVEN_K:
            x_tile = tl.load(x_rows + depth * stride_xk, mask=x_inside, other=0.0)
            w_tile = tl.load(w_rows + depth * stride_wk, mask=w_inside, other=0.0)
        else:
            left = (k + ks < K)[None, :]
            x_tile = tl.load(x_rows + depth * stride_xk, mask=x_inside & left, other=0.0)
            w_tile = tl.load(w_rows + depth * stride_wk, mask=w_inside & left, other=0.0)
        if PROMOTE:
            product = tl.dot(w_tile, x_tile.T) if SWAP else tl.dot(x_tile, w_tile.T)
            if SCALING == 2:
                of_rows = block_scales(
                    x_scale, w_scale, rows, (program // splits) * BLOCK_N, k, M,
                    stride_sxm, stride_sxk, stride_swn, stride_swk)
                product *= of_rows[None, :] if SWAP else of_rows[:, None]
            acc += product
        elif SWAP:
            acc = tl.dot(w_tile, x_tile.T, acc, input_precision=PRECISION, out_dtype=SUM)
        else:
            acc = tl.dot(x_tile, w_tile.T, acc, input_precision=PRECISION, out_dtype=SUM)
    if SCALING == 1:
        if SWAP:
            acc = scaled(acc, w_scale, x_scale, columns, rows, N, M, stride_swn, stride_sxm)
        else:
            acc = scaled(acc, x_scale, w_scale, rows, columns, M, N, stride_sxm, stride_swn)
    if PDL:
        cuda.gdc_launch_dependents()
    _store(acc, y, partial, rows, columns, split, M, N, stride_ym, stride_yn, SWAP, SPLIT)


@triton.jit(launch_metadata=matmul_decode_launch)
def _gemv_kernel(
    x, w, y, partial, N, K, splits, stride_xk, stride_wn, stride_wk, stride_yn,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr, EVEN_K: tl.constexpr, PDL: tl.constexpr,
    PIECE: tl.constexpr,
):  # fmt: skip
    K = in_pieces(K, PIECE)
    stride_wn = in_pieces(stride_wn, PIECE)
    program = tl.program_id(0)
    split = program % splits
    columns = (program // splits) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    share = tl.cdiv(tl.cdiv(K, BLOCK_K), splits) * BLOCK_K
    lo = split * share
    hi = min(K, lo + share)
    w_rows = w + columns.to(tl.int64)[:, None] * stride_wn
    inside = (columns < N)[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for k in range(lo, hi, BLOCK_K):
        depth = (k + ks).to(tl.int64)
        if EVEN_K:
            vector = tl.load(x + depth * stride_xk).to(tl.float32)
            tile = tl.load(w_rows + depth[None, :] * stride_wk, mask=inside, other=0.0)
        else:
            left = k + ks < K
            vector = tl.load(x + depth * stride_xk, mask=left, other=0.0).to(tl.float32)
            tile = tl.load(w_rows + depth[None, :] * stride_wk, mask=inside & left[None, :], other=0.0)
        acc += tile.to(tl.float32) * vector[None, :]
    if PDL:
        cuda.gdc_launch_dependents()
    total = tl.sum(acc, 1)
    if SPLIT:
        tl.store(partial + split.to(tl.int64) * N + columns, total, mask=columns < N)
    else:
        tl.store(y + columns.to(tl.int64) * stride_yn, total.to(y.dtype.element_ty), mask=columns < N)


@triton.jit(launch_metadata=merge_launch)
def _reduce_kernel(partial, y, size, splits, BLOCK: tl.constexpr, PDL: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    if PDL:
        cuda.gdc_wait()
    total = tl.zeros([BLOCK], tl.float32)
    spots = partial + places
    for _ in range(splits):
        total += tl.load(spots, mask=inside, other=0.0)
        spots += size
    tl.store(y + places, total.to(y.dtype.element_ty), mask=inside)


def matmul_decode(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
    allow_tf32: bool = False,
    config: Config | None = None,
) -> torch.Tensor:
    """Y = X @ W^T for few rows by the Triton kernels.

    Args:
        x: [M, K] bfloat16, float16, float32, float8_e4m3fn or int8, M up to 64, any strides.
        w: [N, K] of the same dtype, any strides.
        x_scale: float32, for 8 bits alone: [1, 1], [M, 1], or [M, K / 128] beside w_scale [N / 128, K / 128].
        w_scale: float32 [1, 1], [N, 1] or of blocks.
        allow_tf32: multiply float32 in TF32.
        config: launch parameters; the first of `configs_for` when None.

    Returns:
        [M, N] of the same dtype, contiguous; bfloat16 of 8 bits.

    Raises:
        ValueError: shapes or dtypes that do not fit together, more than 64 rows, or gemv for several
            or for 8 bits.
        UnsupportedError: float8_e4m3fn on a GPU before sm_89.
    """
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1] or x.dtype != w.dtype or x.shape[0] > MOST_ROWS:
        told = " and ".join(f"{list(given.shape)} {given.dtype}" for given in (x, w))
        raise ValueError(f"wanted x [M, K], M up to {MOST_ROWS}, and w [N, K] of one dtype, got {told}")
    (M, K), N = x.shape, w.shape[0]
    check_arch(x.dtype, target_arch())
    scaling = scaling_of(x, x_scale, w, w_scale)
    config = config or configs_for(M, K, x.dtype, target_arch(), allow_tf32, scaling)[0]
    if config.form == "gemv" and (M != 1 or scaling):
        raise ValueError(f"{config} is for one row without scales, got M={M} of {x.dtype}")
    y = torch.empty((M, N), dtype=torch.bfloat16 if scaling else x.dtype, device=x.device)
    if M * N:
        scales = (x_scale, w_scale, *scale_strides(x_scale), *scale_strides(w_scale))
        _launch(x, w, y, scales, scaling, allow_tf32, config, splits_for(N, K, config, sm_count()))
    return y


def _launch(
    x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, scales: tuple[object, ...], scaling: int, allow_tf32: bool,
    config: Config, splits: int,
) -> None:  # fmt: skip
    (M, K), N = x.shape, w.shape[0]
    partial = torch.empty((splits, M, N) if splits > 1 else (0,), dtype=torch.float32, device=x.device)
    options = OPTIONS | ({"launch_pdl": True} if (pdl := config.pdl and splits > 1) else {})
    shared = {
        "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "SPLIT": splits > 1, "PDL": pdl,
        "EVEN_K": K % config.block_k == 0, "PIECE": row_piece(x, w), "num_warps": config.num_warps,
        "num_stages": config.num_stages, **options,
    }  # fmt: skip
    grid = (triton.cdiv(N, config.block_n) * splits,)
    if config.form == "gemv":
        _gemv_kernel[grid](x, w, y, partial, N, K, splits, x.stride(1), *w.stride(), y.stride(1), **shared)
    else:
        _matmul_decode_kernel[grid](
            x, w, y, partial, M, N, K, splits, *x.stride(), *w.stride(), *y.stride(), *scales, SCALING=scaling,
            PROMOTE=promotes(x.dtype, scaling, config.fast_accumulation), SUM=sum_dtype(x.dtype),
            BLOCK_M=max(16, triton.next_power_of_2(M)), SWAP=config.form == "swap",
            PRECISION="tf32" if allow_tf32 else "ieee", **shared,
        )  # fmt: skip
    if splits > 1:
        _reduce_kernel[(triton.cdiv(M * N, REDUCE_BLOCK),)](
            partial, y, M * N, splits, BLOCK=REDUCE_BLOCK, PDL=pdl, num_warps=4, num_stages=2, **options
        )
