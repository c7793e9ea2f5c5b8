"""The Triton provider of op matmul: C[M, N] = A[M, K] @ B[K, N], float32 accumulation.

Persistent: as many programs as SMs (or fewer tiles) walk the tiles in groups of rows, so that neighbours share what
L2 holds. Two paths, chosen by `kernels.matmul_problem.path_for`, which says why:

* descriptors (sm_90 and later): the tensor memory accelerator brings A and B, and takes C where its rows are whole
  pieces of 16 bytes; K must be the fast axis of both inputs. On sm_90 an 8-warp 128x256 tile leaves one wgmma group in
  flight and holds no spill. A tile 128 deep with two stages needs fewer instructions per FLOP than one 64 deep with
  four, which hides more latency; specialised warps need the fewest and drain wgmma at every step.
* pointers (before sm_90, or for what a descriptor cannot take): any strides, any alignment. Rows that are multiples of
  4 bytes are copied asynchronously, others through registers.

Bound: arithmetic for M, N, K of a prefill. float32 is exact (no tensor cores); tfloat32 multiplies in TF32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.launch import OPTIONS, descriptor, sm_count, target_arch, use_allocator
from kernels.launch_work import matmul_launch
from kernels.matmul_configs import Config, ranked
from kernels.matmul_problem import Problem, has_ragged_rows, problem_of
from kernels.pieces import in_pieces, row_piece
from kernels.quantisation import check_arch
from kernels.scaled_products import block_scales, promotes, scale_strides, scaled, scaling_of, sum_dtype
from kernels.tuned import Bucket, Table, dtype_name, size_class, tuned

TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""
LEAST_CLASS, MOST_CLASS = 64, 8192
"""Sizes from half of the first up to it, and all over the last, are tuned together."""


def bucket_of(problem: Problem) -> Bucket:
    """Dtype and kind of scales, path, and the classes of M and N, which make the waves."""
    classes = (size_class(size, LEAST_CLASS, MOST_CLASS) for size in (problem.M, problem.N))
    path = ("pointers" if problem.refused else "descriptors") + (f", ragged {problem.ragged}" if problem.ragged else "")
    kind = ("", " scaled by row", " scaled by block")[problem.scaling]
    return (dtype_name(problem.dtype, problem.allow_tf32) + kind, path, *classes)


def config_for(problem: Problem, sms: int) -> Config:
    """The tuned configuration for a problem, or else the best by the rule of `ranked` that specialises no warps and
    adds in float32: a default has the precision that its user expects."""
    usual = (c for c in ranked(problem, sms) if not (c.warp_specialize or c.fast_accumulation))
    return tuned(TUNED, bucket_of(problem), problem.arch) or next(usual)


@triton.jit
def tile_of(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """(row, column) of a tile when groups of GROUP_M rows are walked column by column."""
    per_group = GROUP_M * tiles_n
    group = tile // per_group
    first = group * GROUP_M
    rows = min(tiles_m - first, GROUP_M)
    within = tile % per_group
    return first + within % rows, within // rows


@triton.jit
def _store(c, piece, m, n, M, N, stride_cm, BOXES: tl.constexpr):
    if BOXES:
        c.store([m, n], piece.to(c.dtype))
    else:
        ms = m + tl.arange(0, piece.shape[0])
        ns = n + tl.arange(0, piece.shape[1])
        places = c + ms.to(tl.int64)[:, None] * stride_cm + ns[None, :]
        tl.store(places, piece.to(c.dtype.element_ty), mask=(ms < M)[:, None] & (ns < N)[None, :])


@triton.jit(launch_metadata=matmul_launch)
def _matmul_kernel(
    a, b, c, M, N, K, stride_am, stride_bn, stride_cm,
    a_scale, b_scale, stride_sam, stride_sak, stride_sbn, stride_sbk, SCALING: tl.constexpr, PROMOTE: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr, ON_HOST: tl.constexpr, C_BOXES: tl.constexpr, SUBTILES: tl.constexpr,
    PRECISION: tl.constexpr, WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    k_steps = tl.cdiv(K, BLOCK_K)
    a_blocks = a
    b_blocks = b
    if not ON_HOST:
        a_blocks = tl.make_tensor_descriptor(a, [M, K], [stride_am, 1], [BLOCK_M, BLOCK_K])
        b_blocks = tl.make_tensor_descriptor(b, [N, K], [stride_bn, 1], [BLOCK_N, BLOCK_K])
    c_out = c
    if C_BOXES and not ON_HOST:
        c_out = tl.make_tensor_descriptor(c, [M, N], [stride_cm, 1], [BLOCK_M, BLOCK_N // SUBTILES])
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, warp_specialize=WARP_SPECIALIZE):
        row, column = tile_of(tile, tiles_m, tiles_n, GROUP_M)
        m = row * BLOCK_M
        n = column * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), SUM)
        for step in range(k_steps):
            x = a_blocks.load([m, step * BLOCK_K])
            w = b_blocks.load([n, step * BLOCK_K])
            if PROMOTE:
                product = tl.dot(x, w.T, input_precision=PRECISION)
                if SCALING == 2:
                    product *= block_scales(
                        a_scale, b_scale, m + tl.arange(0, BLOCK_M), n, step * BLOCK_K, M,
                        stride_sam, stride_sak, stride_sbn, stride_sbk)[:, None]
                acc += product
            else:
                acc = tl.dot(x, w.T, acc, input_precision=PRECISION, out_dtype=SUM)
        if SCALING == 1:
            acc = scaled(
                acc, a_scale, b_scale, m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N), M, N,
                stride_sam, stride_sbn)
        if SUBTILES == 2:
            halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            _store(c_out, left, m, n, M, N, stride_cm, C_BOXES)
            _store(c_out, right, m, n + BLOCK_N // 2, M, N, stride_cm, C_BOXES)
        else:
            _store(c_out, acc, m, n, M, N, stride_cm, C_BOXES)


@triton.jit(launch_metadata=matmul_launch)
def _matmul_pointers_kernel(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    a_scale, b_scale, stride_sam, stride_sak, stride_sbn, stride_sbk, SCALING: tl.constexpr, PROMOTE: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr, PRECISION: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    K = in_pieces(K, PIECE)
    stride_am = in_pieces(stride_am, PIECE)
    stride_bn = in_pieces(stride_bn, PIECE)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    for tile in range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS):
        row, column = tile_of(tile, tiles_m, tiles_n, GROUP_M)
        ms = row * BLOCK_M + tl.arange(0, BLOCK_M)
        ns = column * BLOCK_N + tl.arange(0, BLOCK_N)
        a_rows = a + ms.to(tl.int64)[:, None] * stride_am
        b_columns = b + ns.to(tl.int64)[None, :] * stride_bn
        acc = tl.zeros((BLOCK_M, BLOCK_N), SUM)
        for k in range(0, K, BLOCK_K):
            inside = k + ks < K
            depth = (k + ks).to(tl.int64)
            x = tl.load(a_rows + depth[None, :] * stride_ak, mask=(ms < M)[:, None] & inside[None, :], other=0.0)
            w = tl.load(b_columns + depth[:, None] * stride_bk, mask=inside[:, None] & (ns < N)[None, :], other=0.0)
            if PROMOTE:
                product = tl.dot(x, w, input_precision=PRECISION)
                if SCALING == 2:
                    product *= block_scales(
                        a_scale, b_scale, ms, column * BLOCK_N, k, M,
                        stride_sam, stride_sak, stride_sbn, stride_sbk)[:, None]
                acc += product
            else:
                acc = tl.dot(x, w, acc, input_precision=PRECISION, out_dtype=SUM)
        if SCALING == 1:
            acc = scaled(acc, a_scale, b_scale, ms, ns, M, N, stride_sam, stride_sbn)
        out = c + ms.to(tl.int64)[:, None] * stride_cm + ns.to(tl.int64)[None, :] * stride_cn
        tl.store(out, acc.to(c.dtype.element_ty), mask=(ms < M)[:, None] & (ns < N)[None, :])


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    allow_tf32: bool = False,
    config: Config | None = None,
) -> torch.Tensor:
    """C = A @ B by the Triton kernel.

    Args:
        a: [M, K] bfloat16, float16, float32, float8_e4m3fn or int8, any strides.
        b: [K, N] of the same dtype, any strides; K-major (a linear layer's weight transposed) takes descriptors.
        a_scale: float32, for 8 bits alone: [1, 1], [M, 1], or [M, K / 128] beside b_scale [K / 128, N / 128].
        b_scale: float32 [1, 1], [1, N] or of blocks.
        allow_tf32: multiply float32 in TF32.
        config: launch parameters; chosen by `config_for` when None.

    Returns:
        [M, N] of the same dtype, contiguous; bfloat16 of 8 bits.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
        UnsupportedError: float8_e4m3fn on a GPU before sm_89.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        told = " and ".join(f"{list(given.shape)} {given.dtype}" for given in (a, b))
        raise ValueError(f"wanted a [M, K] and b [K, N] of one dtype, got {told}")
    check_arch(a.dtype, target_arch())
    (M, K), N, sms, w_scale = a.shape, b.shape[1], sm_count(), None if b_scale is None else b_scale.t()
    problem = problem_of(a, b, target_arch(), allow_tf32, scaling_of(a, a_scale, b.t(), w_scale))
    config = config or config_for(problem, sms)
    if problem.refused and config.descriptors:
        raise ValueError(f"{config} needs descriptors, refused by {problem.refused}")
    c = torch.empty((M, N), dtype=problem.out_dtype, device=a.device)
    programs = min(sms, triton.cdiv(M, config.block_m) * triton.cdiv(N, config.block_n))
    if programs == 0:
        return c
    scales = (a_scale, w_scale, *scale_strides(a_scale), *scale_strides(w_scale))
    shared = {
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "GROUP_M": config.group_m,
        "PROGRAMS": programs, "PRECISION": "tf32" if allow_tf32 else "ieee", "SCALING": problem.scaling,
        "PROMOTE": promotes(a.dtype, problem.scaling, config.fast_accumulation), "SUM": sum_dtype(a.dtype),
        "num_warps": config.num_warps, "num_stages": config.num_stages, **OPTIONS,
    }  # fmt: skip
    if not config.descriptors:
        _matmul_pointers_kernel[(programs,)](
            a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), *scales, PIECE=row_piece(a, b.t()), **shared
        )
        return c
    _launch_with_descriptors(a, b.t(), c, scales, config, programs, shared)
    return c


def _launch_with_descriptors(
    a: torch.Tensor, w: torch.Tensor, c: torch.Tensor, scales: tuple[object, ...], config: Config, programs: int,
    shared: dict[str, object],
) -> None:  # fmt: skip
    (m, n, k), width = (config.block_m, config.block_n, config.block_k), config.block_n // config.epilogue_subtiles
    blocks = ((m, k), (n, k), (m, width))
    on_host, boxes = config.descriptors == "host", not has_ragged_rows(c.shape[1], c.dtype)
    operands: list[torch.Tensor | TensorDescriptor] = [a, w, c]
    if on_host:
        operands[: 2 + boxes] = map(descriptor, operands, blocks[: 2 + boxes])
    else:
        use_allocator(a.device)
    _matmul_kernel[(programs,)](
        *operands, *c.shape, a.shape[1], a.stride(0), w.stride(0), c.stride(0), *scales,
        ON_HOST=on_host, C_BOXES=boxes, SUBTILES=config.epilogue_subtiles,
        WARP_SPECIALIZE=config.warp_specialize, **shared,
    )  # fmt: skip
