"""The Triton providers of the ops between a layer's matmuls: rms_norm, add_rms_norm, residual_add, silu_mul.

Each is rows of K values, read once and written once; sums and products in float32, one rounding at the end.

* norms: a program takes BLOCK_M whole rows. Rows that fit stay in registers; longer ones are read twice, the second
  time from the caches.
* the others: a program takes BLOCK_K values of one row.

Bound: DRAM or L2 for many rows, the launch floor for a decode step's (no arithmetic that counts).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import OPTIONS, target_arch
from kernels.launch_work import glue_launch
from kernels.tuned import Bucket, Table, dtype_name, tuned_first
from kernels.work import DECODE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters: values of a program's step along a row, values of all its rows in a step, and warps."""

    block_k: int
    tile: int = 1
    num_warps: int = 4


NORMS = (
    Config(block_k=8192, tile=2048, num_warps=8),
    Config(block_k=4096, tile=2048, num_warps=4),
    Config(block_k=8192, tile=1024, num_warps=16),
)
OF_FEW_ROWS = (Config(block_k=1024), Config(block_k=512, num_warps=2), Config(block_k=2048))
OF_MANY_ROWS = (Config(block_k=4096, num_warps=8), Config(block_k=2048), Config(block_k=8192, num_warps=8))
TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""


def bucket_of(kind: str, dtype: torch.dtype, rows: int) -> Bucket:
    """What the choice of a configuration depends on: the op, dtype, and whether a decode step has so many rows."""
    return (kind, dtype_name(dtype), "few rows" if rows <= DECODE_ROWS else "many rows")


def configs_for(kind: str, dtype: torch.dtype, rows: int, arch: int) -> tuple[Config, ...]:
    """The configurations of an op for so many rows, the default first."""
    others = OF_FEW_ROWS if rows <= DECODE_ROWS else OF_MANY_ROWS
    return tuned_first(TUNED, bucket_of(kind, dtype, rows), NORMS if kind.endswith("norm") else others, arch)


@triton.jit
def _read_rows(
    x, residual, total, row, inside, k, stride_xm, stride_xk, stride_rm, stride_rk, stride_tm, stride_tk,
    ADD: tl.constexpr,
):  # fmt: skip
    """Values [BLOCK_M, BLOCK_K] of x in float32; with ADD x + residual as `total` stores it, which is written."""
    values = tl.load(x + row * stride_xm + k * stride_xk, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(residual + row * stride_rm + k * stride_rk, mask=inside, other=0.0).to(tl.float32)
        stored = values.to(total.dtype.element_ty)
        tl.store(total + row * stride_tm + k * stride_tk, stored, mask=inside)
        values = stored.to(tl.float32)
    return values


@triton.jit(launch_metadata=glue_launch)
def _rms_norm_kernel(
    x, residual, weight, y, total, M, K, eps, stride_xm, stride_xk, stride_rm, stride_rk, stride_tm, stride_tk,
    stride_w, ADD: tl.constexpr, HELD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """HELD: a row is one step, and stays in registers."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = rows.to(tl.int64)[:, None]
    ks = tl.arange(0, BLOCK_K)
    if HELD:
        k = ks.to(tl.int64)[None, :]
        inside = (rows < M)[:, None] & (ks < K)[None, :]
        values = _read_rows(
            x, residual, total, row, inside, k, stride_xm, stride_xk, stride_rm, stride_rk, stride_tm, stride_tk, ADD
        )
        scale = tl.rsqrt(tl.sum(values * values, 1) / K + eps)[:, None]
        weights = tl.load(weight + k * stride_w, mask=(ks < K)[None, :], other=0.0).to(tl.float32)
        tl.store(y + row * K + k, (values * scale * weights).to(y.dtype.element_ty), mask=inside)
    else:
        squares = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
        for start in range(0, K, BLOCK_K):
            k = (start + ks).to(tl.int64)[None, :]
            inside = (rows < M)[:, None] & (start + ks < K)[None, :]
            values = _read_rows(
                x, residual, total, row, inside, k, stride_xm, stride_xk, stride_rm, stride_rk, stride_tm, stride_tk,
                ADD,
            )  # fmt: skip
            squares += values * values
        scale = tl.rsqrt(tl.sum(squares, 1) / K + eps)[:, None]
        if ADD:
            tl.debug_barrier()  # what is read back other threads may have written
        for start in range(0, K, BLOCK_K):
            k = (start + ks).to(tl.int64)[None, :]
            inside = (rows < M)[:, None] & (start + ks < K)[None, :]
            if ADD:
                values = tl.load(total + row * stride_tm + k * stride_tk, mask=inside, other=0.0).to(tl.float32)
            else:
                values = tl.load(x + row * stride_xm + k * stride_xk, mask=inside, other=0.0).to(tl.float32)
            weights = tl.load(weight + k * stride_w, mask=(start + ks < K)[None, :], other=0.0).to(tl.float32)
            tl.store(y + row * K + k, (values * scale * weights).to(y.dtype.element_ty), mask=inside)


@triton.jit
def silu(x):
    """x / (1 + e^-x) in float32, and its limit 0 at -inf."""
    return tl.where(x == float("-inf"), 0.0, x / (1.0 + tl.exp(-x)))


@triton.jit(launch_metadata=glue_launch)
def _rows_kernel(
    x, other, y, K, tiles, stride_xm, stride_xk, stride_om, stride_ok, SILU: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """SILU: y = silu(x) x other; else y = x + other."""
    program = tl.program_id(0)
    row = (program // tiles).to(tl.int64)
    ks = (program % tiles) * BLOCK_K + tl.arange(0, BLOCK_K)
    k = ks.to(tl.int64)
    left = tl.load(x + row * stride_xm + k * stride_xk, mask=ks < K).to(tl.float32)
    right = tl.load(other + row * stride_om + k * stride_ok, mask=ks < K).to(tl.float32)
    value = silu(left) * right if SILU else left + right
    tl.store(y + row * K + k, value.to(y.dtype.element_ty), mask=ks < K)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-5, config: Config | None = None) -> torch.Tensor:
    """y = x / sqrt(mean(x^2) + eps) x weight, row by row.

    Args:
        x: [M, K], any strides.
        weight: [K] of the same dtype.
        eps: added to the mean in float32.
        config: launch parameters; the first of `configs_for` when None.

    Returns:
        y [M, K], contiguous, of x's dtype.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    _check_rows(x, None, weight)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch_norm("rms_norm", x, None, weight, y, None, eps, config)
    return y


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float = 1e-5,
    out: torch.Tensor | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """total = residual + x, rounded to its dtype, and y = total / sqrt(mean(total^2) + eps) x weight.

    Args:
        x, residual: [M, K], any strides.
        weight: [K] of the same dtype.
        eps: added to the mean in float32.
        out: [M, K] where total goes; a new tensor when None. It may be `residual`, which engines update in place.
        config: launch parameters; the first of `configs_for` when None.

    Returns:
        (y [M, K] contiguous, total [M, K]), of x's dtype.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    for other in (residual, total):
        _check_rows(x, other, weight)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch_norm("add_rms_norm", x, residual, weight, y, total, eps, config)
    return y, total


def residual_add(x: torch.Tensor, residual: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """residual + x: [M, K] each, of one dtype, any strides; a new contiguous tensor. Raises ValueError as others do."""
    _check_rows(x, residual, None)
    return _launch_rows("residual_add", x, residual, config)


def silu_mul(gate_up: torch.Tensor, *, config: Config | None = None) -> torch.Tensor:
    """silu(gate) x up of gate_up [M, 2 K], any strides, the gate's K columns first.

    Returns:
        y [M, K], contiguous, of gate_up's dtype.

    Raises:
        ValueError: no matrix, or an odd number of columns.
    """
    if gate_up.ndim != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"wanted gate_up [M, 2 K], got {list(gate_up.shape)}")
    half = gate_up.shape[1] // 2
    return _launch_rows("silu_mul", gate_up[:, :half], gate_up[:, half:], config)


def _check_rows(x: torch.Tensor, other: torch.Tensor | None, weight: torch.Tensor | None) -> None:
    """Raises ValueError unless x is [M, K], what goes with it is alike, and a weight is [K] of its dtype."""
    wrong = x.ndim != 2
    wrong |= other is not None and (other.shape != x.shape or other.dtype != x.dtype)
    wrong |= weight is not None and (weight.shape != x.shape[1:] or weight.dtype != x.dtype)
    if wrong:
        given = (f"{list(t.shape)} {t.dtype}" for t in (x, other, weight) if t is not None)
        raise ValueError(f"wanted rows [M, K], alike, and a weight [K], of one dtype, got {', '.join(given)}")


def _launch_norm(
    kind: str,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    y: torch.Tensor,
    total: torch.Tensor | None,
    eps: float,
    config: Config | None,
) -> None:
    M, K = x.shape
    config = config or configs_for(kind, x.dtype, M, target_arch())[0]
    block_k = min(config.block_k, triton.next_power_of_2(max(K, 1)))
    block_m = max(1, config.tile // block_k)
    strides = [t.stride() if t is not None else (0, 0) for t in (residual, total)]
    if M * K:
        _rms_norm_kernel[(triton.cdiv(M, block_m),)](
            x, residual, weight, y, total, M, K, eps, *x.stride(), *strides[0], *strides[1], weight.stride(0),
            ADD=residual is not None, HELD=block_k >= K, BLOCK_M=block_m, BLOCK_K=block_k,
            num_warps=config.num_warps, **OPTIONS,
        )  # fmt: skip


def _launch_rows(kind: str, x: torch.Tensor, other: torch.Tensor, config: Config | None) -> torch.Tensor:
    M, K = x.shape
    y = torch.empty((M, K), dtype=x.dtype, device=x.device)
    config = config or configs_for(kind, x.dtype, M, target_arch())[0]
    block_k = min(config.block_k, triton.next_power_of_2(max(K, 1)))
    tiles = triton.cdiv(K, block_k)
    if M * K:
        _rows_kernel[(M * tiles,)](
            x, other, y, K, tiles, *x.stride(), *other.stride(), SILU=kind == "silu_mul", BLOCK_K=block_k,
            num_warps=config.num_warps, **OPTIONS,
        )  # fmt: skip
    return y
