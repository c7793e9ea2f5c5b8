"""The Triton provider of op grouped_matmul: each expert's rows times its own weights, float32 accumulation.

One launch. Its grid is as large as the shapes allow tiles to be, rows / BLOCK_M and one for each expert that can have a
row, so that no length is read on the host; a program finds its expert from the offsets, which it loads whole, and one
past the last tile ends at once. Tiles are walked in groups of rows, so that neighbours share an expert's weights in L2.

* descriptors (sm_90 and later): the tensor memory accelerator brings x and w, which is [E N, K] to it. A tile that
  reaches past its expert's rows or columns multiplies the next one's, and stores none of that.
* pointers (before sm_90, or for what a descriptor cannot take): any strides.

Bound: DRAM for the rows that a decode step gives an expert, arithmetic for a prefill's.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import OPTIONS, descriptor, target_arch, tma_refusal
from kernels.launch_work import grouped_matmul_launch
from kernels.matmul_triton import tile_of
from kernels.pieces import in_pieces, row_piece
from kernels.tuned import Bucket, Table, dtype_name, size_class, tuned

DTYPES = (torch.bfloat16, torch.float16)
LEAST_CLASS, MOST_CLASS = 8, 256
"""Rows of an expert, on average over those that can have one, up to the first and over the last are tuned together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters.

    Attributes:
        block_m, block_n, block_k: tile of an expert's rows, and depth of a step.
        group_m: rows of tiles that are walked together.
        num_warps, num_stages: of the compiler.
    """

    block_m: int
    block_n: int
    block_k: int
    group_m: int = 8
    num_warps: int = 4
    num_stages: int = 4


TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""
FEW = (
    Config(block_m=16, block_n=64, block_k=128, num_stages=4),
    Config(block_m=16, block_n=128, block_k=128, num_stages=4),
)
SOME = (
    Config(block_m=64, block_n=128, block_k=64, num_stages=4),
    Config(block_m=32, block_n=128, block_k=128, num_stages=3),
)
MANY = (
    Config(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=4),
    Config(block_m=128, block_n=256, block_k=64, num_warps=8, num_stages=3),
    SOME[0],
)
POINTERS = (
    Config(block_m=64, block_n=64, block_k=32, num_stages=4),
    Config(block_m=16, block_n=64, block_k=64, num_stages=4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What the choice of a configuration depends on; `refused` is why pointers are taken, '' for descriptors."""

    arch: int
    dtype: torch.dtype
    rows: int
    experts: int
    refused: str

    @property
    def rows_each(self) -> int:
        """Rows of an expert on average, if as many as can have one do."""
        return -(-self.rows // max(1, min(self.rows, self.experts)))


def problem_of(x: torch.Tensor, w: torch.Tensor, arch: int) -> Problem:
    """The problem of x [rows, K] and w [E, K, N]."""
    return Problem(arch=arch, dtype=x.dtype, rows=len(x), experts=len(w), refused=_refusal(x, w, arch))


def _refusal(x: torch.Tensor, w: torch.Tensor, arch: int) -> str:
    if arch < 90:
        return f"sm_{arch} has no tensor memory accelerator"
    if 0 in (*x.shape, *w.shape):
        return "an empty dimension"
    if w.stride(0) != w.shape[2] * w.stride(2):
        return f"w: experts are {w.stride(0)} elements apart, not N rows"
    return tma_refusal(x, "x") or tma_refusal(w.transpose(1, 2), "w transposed")


def configs_for(problem: Problem) -> tuple[Config, ...]:
    """The configurations for this kind of problem, the default first."""
    if problem.refused:
        kinds: tuple[Config, ...] = POINTERS if problem.rows_each > LEAST_CLASS else POINTERS[::-1]
    else:
        kinds = FEW if problem.rows_each <= LEAST_CLASS else SOME if problem.rows_each <= 64 else MANY
    first = tuned(TUNED, bucket_of(problem), problem.arch) or kinds[0]
    return (first, *(config for config in kinds if config != first))


def bucket_of(problem: Problem) -> Bucket:
    """Dtype, path, and the class of rows an expert."""
    path = "pointers" if problem.refused else "descriptors"
    return (dtype_name(problem.dtype, False), path, size_class(problem.rows_each, LEAST_CLASS, MOST_CLASS))


@triton.jit
def expert_of(offsets, tile, experts, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr):
    """(expert, first row, end of its rows) of a tile; expert >= experts past the last tile.

    Args:
        offsets: int32 [experts], where each expert's rows end.
        EXPERTS: at least `experts`, a power of two.
    """
    each = tl.arange(0, EXPERTS)
    ends = tl.load(offsets + each, mask=each < experts, other=0)
    starts = tl.load(offsets + each - 1, mask=(each > 0) & (each < experts), other=0)
    tiles = tl.where(each < experts, (ends - starts + BLOCK_M - 1) // BLOCK_M, 0)
    until = tl.cumsum(tiles, 0)
    expert = tl.sum((until <= tile).to(tl.int32), 0)
    own = each == expert
    before = tl.sum(tl.where(own, until - tiles, 0), 0)
    first = tl.sum(tl.where(own, starts, 0), 0) + (tile - before) * BLOCK_M
    return expert, first, tl.sum(tl.where(own, ends, 0), 0)


@triton.jit(launch_metadata=grouped_matmul_launch)
def _grouped_matmul_kernel(
    x, w, offsets, out, rows, N, K, experts, tiles_m, stride_xm, stride_xk, stride_we, stride_wn, stride_wk,
    stride_om, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EXPERTS: tl.constexpr, BOXES: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    K = in_pieces(K, PIECE)
    stride_xm = in_pieces(stride_xm, PIECE)
    stride_wn = in_pieces(stride_wn, PIECE)
    tile, column = tile_of(tl.program_id(0), tiles_m, tl.cdiv(N, BLOCK_N), GROUP_M)
    expert, m, end = expert_of(offsets, tile, experts, EXPERTS, BLOCK_M)
    if expert < experts:
        n = column * BLOCK_N
        ms = m + tl.arange(0, BLOCK_M)
        ns = n + tl.arange(0, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        if BOXES:
            for k in range(0, K, BLOCK_K):
                a = x.load([m, k])
                b = w.load([expert * N + n, k])
                acc = tl.dot(a, b.T, acc)
        else:
            ks = tl.arange(0, BLOCK_K)
            a_rows = x + ms.to(tl.int64)[:, None] * stride_xm
            b_columns = w + expert.to(tl.int64) * stride_we + ns.to(tl.int64)[None, :] * stride_wn
            for k in range(0, K, BLOCK_K):
                inside = k + ks < K
                depth = (k + ks).to(tl.int64)
                a = tl.load(a_rows + depth[None, :] * stride_xk, mask=(ms < end)[:, None] & inside[None, :], other=0.0)
                b = tl.load(b_columns + depth[:, None] * stride_wk, mask=inside[:, None] & (ns < N)[None, :], other=0.0)
                acc = tl.dot(a, b, acc)
        spot = out + ms.to(tl.int64)[:, None] * stride_om + ns[None, :]
        tl.store(spot, acc.to(out.dtype.element_ty), mask=(ms < end)[:, None] & (ns < N)[None, :])


def grouped_matmul(
    x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, *, config: Config | None = None
) -> torch.Tensor:
    """Y[r] = X[r] @ W[expert of r] by the Triton kernel.

    Args:
        x: [rows, K] bfloat16 or float16, any strides, rows sorted by expert.
        w: [E, K, N] of the same dtype, any strides; K-major takes descriptors.
        offsets: int32 [E], contiguous: where each expert's rows end, rising; rows past the last are not written.
        config: launch parameters; the first of `configs_for` when None.

    Returns:
        [rows, N] of the same dtype, contiguous.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    if x.ndim != 2 or w.ndim != 3 or x.shape[1] != w.shape[1] or x.dtype != w.dtype or x.dtype not in DTYPES:
        told = " and ".join(f"{list(given.shape)} {given.dtype}" for given in (x, w))
        raise ValueError(f"wanted x [rows, K] and w [E, K, N], both bfloat16 or float16, got {told}")
    if offsets.dtype != torch.int32 or offsets.shape != w.shape[:1] or not offsets.is_contiguous():
        raise ValueError(f"wanted offsets int32 [{len(w)}], contiguous, got {list(offsets.shape)} {offsets.dtype}")
    (rows, K), (experts, _, N) = x.shape, w.shape
    problem = problem_of(x, w, target_arch())
    config = config or configs_for(problem)[0]
    m, n, k = config.block_m, config.block_n, config.block_k
    out = torch.empty((rows, N), dtype=x.dtype, device=x.device)
    tiles_m = most_tiles(rows, experts, m)
    if not tiles_m or not N:
        return out
    boxes = not problem.refused
    weights = w.transpose(1, 2)
    taken = (descriptor(x, (m, k)), descriptor(weights.flatten(0, 1), (n, k))) if boxes else (x, w)
    _grouped_matmul_kernel[(tiles_m * triton.cdiv(N, n),)](
        *taken, offsets, out, rows, N, K, experts, tiles_m, *x.stride(), *weights.stride(), out.stride(0),
        BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=config.group_m, EXPERTS=triton.next_power_of_2(experts), BOXES=boxes,
        PIECE=1 if boxes else row_piece(x, weights.flatten(0, 1)), num_warps=config.num_warps,
        num_stages=config.num_stages, **OPTIONS,
    )  # fmt: skip
    return out


def most_tiles(rows: int, experts: int, block_m: int) -> int:
    """Tiles of rows that any offsets can make: 130 rows of 3 experts in tiles of 64 are at most 2 + 3."""
    return min(rows, rows // block_m + min(rows, experts))
