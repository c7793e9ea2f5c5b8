"""The Triton provider of op gate_up_silu: Y[M, N] = silu(X Wg^T) * (X Wu^T), float32 accumulation.

A tile of Y has two accumulators, of the same rows of X and of rows n and N + n of W, so that both halves meet in
registers and [M, 2N] never exists. Up to 64 rows one tile holds all of X's, and narrow tiles of W, which are what is
read, fill the machine (14,336 columns: 448 tiles of 32). Two ways to load, as configurations:

* descriptors (sm_90 and later, rows of whole 16 bytes): the tensor memory accelerator, for many rows.
* pointers: any strides, any alignment; rows that are multiples of 4 bytes are copied asynchronously.

Bound: DRAM for few rows, arithmetic for many. K is not split: the activation needs whole sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import OPTIONS, descriptor, target_arch, tma_refusal
from kernels.launch_work import gate_up_launch
from kernels.matmul_decode_configs import is_ragged
from kernels.matmul_triton import tile_of
from kernels.pieces import in_pieces, row_piece
from kernels.tuned import Bucket, Table, dtype_name, tuned_first


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters.

    Attributes:
        block_m, block_n, block_k: tile of Y, and depth of a step, which reads 2 block_n rows of W.
        group_m: rows of tiles that are walked together.
        num_warps, num_stages: of the compiler.
        descriptors: whether the tensor memory accelerator loads.
    """

    block_m: int
    block_n: int
    block_k: int = 64
    group_m: int = 8
    num_warps: int = 4
    num_stages: int = 4
    descriptors: bool = False


FEW = (
    Config(block_m=16, block_n=32, block_k=128, num_stages=5),
    Config(block_m=16, block_n=32, block_k=128, num_stages=4),
    Config(block_m=16, block_n=64, block_k=64, num_warps=8, num_stages=5),
)
SOME = (
    Config(block_m=64, block_n=64, block_k=64, num_stages=4),
    Config(block_m=64, block_n=32, block_k=128, num_stages=4),
)
MANY = (
    Config(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=4, descriptors=True),
    Config(block_m=128, block_n=64, block_k=64, num_warps=8, num_stages=4, descriptors=True),
    Config(block_m=128, block_n=64, block_k=64, num_warps=4, num_stages=4, descriptors=True),
)
POINTERS = (
    Config(block_m=128, block_n=64, block_k=32, num_warps=8, num_stages=4),
    Config(block_m=64, block_n=64, block_k=32, num_stages=4),
)
RAGGED = {
    16: (Config(block_m=16, block_n=32, block_k=64, num_stages=4),),
    64: (Config(block_m=64, block_n=32, block_k=32, num_warps=8, num_stages=4),),
    128: (Config(block_m=64, block_n=32, block_k=32, num_warps=8, num_stages=4),),
}
"""By classes of rows: where rows are no whole pieces of 16 bytes, many addresses a thread."""
TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""


def row_class(M: int) -> int:
    """The most rows that share a table: 16, 64, or 128 for all above."""
    return 16 if M <= 16 else 64 if M <= 64 else 128


def bucket_of(M: int, K: int, dtype: torch.dtype) -> Bucket:
    """What the choice of a configuration depends on: dtype, class of rows, narrow loads."""
    return (dtype_name(dtype), row_class(M), *(("ragged",) if is_ragged(K, dtype) else ()))


def configs_for(M: int, K: int, dtype: torch.dtype, arch: int) -> tuple[Config, ...]:
    """The configurations for a number and a length of rows that lie one after another, the default first."""
    rows = row_class(M)
    usual = {16: FEW, 64: SOME, 128: MANY if arch >= 90 else POINTERS}[rows]
    return tuned_first(TUNED, bucket_of(M, K, dtype), RAGGED[rows] if is_ragged(K, dtype) else usual, arch)


@triton.jit
def _block(x, places, first, rows, k, K, stride, stride_k, BLOCK_K: tl.constexpr, BOXES: tl.constexpr):
    """Rows first + places of x from depth k on, [len(places), BLOCK_K]; zeros from `rows` and K on.

    BOXES: x is a descriptor of such blocks, and says itself where its rows end.
    """
    if BOXES:
        tile = x.load([first, k])
    else:
        ks = k + tl.arange(0, BLOCK_K)
        lines = x + (first + places).to(tl.int64)[:, None] * stride
        tile = tl.load(
            lines + ks.to(tl.int64)[None, :] * stride_k, mask=(places < rows)[:, None] & (ks < K)[None, :], other=0.0)
    return tile


@triton.jit(launch_metadata=gate_up_launch)
def _gate_up_silu_kernel(
    x, w, y, M, N, K, stride_xm, stride_xk, stride_wn, stride_wk, stride_ym,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    BOXES: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    K = in_pieces(K, PIECE)
    stride_xm = in_pieces(stride_xm, PIECE)
    stride_wn = in_pieces(stride_wn, PIECE)
    row, column = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    m = row * BLOCK_M
    n = column * BLOCK_N
    ms = tl.arange(0, BLOCK_M)
    ns = tl.arange(0, BLOCK_N)
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a = _block(x, ms, m, M - m, k, K, stride_xm, stride_xk, BLOCK_K, BOXES)
        g = _block(w, ns, n, N - n, k, K, stride_wn, stride_wk, BLOCK_K, BOXES)
        u = _block(w, ns, N + n, N - n, k, K, stride_wn, stride_wk, BLOCK_K, BOXES)
        gate = tl.dot(a, g.T, gate)
        up = tl.dot(a, u.T, up)
    out = gate / (1.0 + tl.exp(-gate)) * up
    places = y + (m + ms).to(tl.int64)[:, None] * stride_ym + (n + ns)[None, :]
    tl.store(places, out.to(y.dtype.element_ty), mask=(m + ms < M)[:, None] & (n + ns < N)[None, :])


def gate_up_silu(x: torch.Tensor, w: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """Y = silu(X Wg^T) * (X Wu^T) by the Triton kernel.

    Args:
        x: [M, K] bfloat16 or float16, any strides.
        w: [2N, K] of the same dtype, any strides: the gate's rows, then as many of the up projection.
        config: launch parameters; the first of `configs_for` that can load these tensors when None.

    Returns:
        [M, N] of the same dtype, contiguous.

    Raises:
        ValueError: shapes or dtypes that do not fit together, or descriptors of what they cannot take.
    """
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1] or w.shape[0] % 2 or x.dtype != w.dtype:
        told = " and ".join(f"{list(given.shape)} {given.dtype}" for given in (x, w))
        raise ValueError(f"wanted x [M, K] and w [2N, K] of one dtype, got {told}")
    if x.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"wanted bfloat16 or float16, got {x.dtype}")
    (M, K), N = x.shape, w.shape[0] // 2
    y = torch.empty((M, N), dtype=x.dtype, device=x.device)
    refused = "an empty dimension" if K == 0 else tma_refusal(x, "x") or tma_refusal(w, "w")
    able = (c for c in (*configs_for(M, K, x.dtype, target_arch()), *POINTERS) if not (refused and c.descriptors))
    config = config or next(able)
    if refused and config.descriptors:
        raise ValueError(f"{config} needs descriptors, refused by {refused}")
    if M * N == 0:
        return y
    step, operands = config.block_k, (x, w)
    if config.descriptors:
        operands = (descriptor(x, (config.block_m, step)), descriptor(w, (config.block_n, step)))
    _gate_up_silu_kernel[(triton.cdiv(M, config.block_m) * triton.cdiv(N, config.block_n),)](
        *operands, y, M, N, K, *x.stride(), *w.stride(), y.stride(0),
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=step, GROUP_M=config.group_m,
        BOXES=config.descriptors, PIECE=1 if config.descriptors else row_piece(x, w),
        num_warps=config.num_warps, num_stages=config.num_stages, **OPTIONS,
    )  # fmt: skip
    return y
