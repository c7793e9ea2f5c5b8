"""The Triton provider of op kv_append: the new keys and values of each sequence, written behind those in its cache.

A copy of rows of one head: program (sequence, tile) takes BLOCK_ROWS of the sequence's new rows, a row being one
token's key or value of one head. Rows are read and written in whole pieces of 16 bytes where strides and width allow.

Bound: DRAM, or L2 where the rows were just written; the launch floor for the few rows of a decode step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import OPTIONS
from kernels.launch_work import kv_append_launch
from kernels.tuned import Bucket, Table, dtype_name, tuned_first


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters: rows of a program, of one head each, and warps of the compiler."""

    block_rows: int = 32
    num_warps: int = 4


CONFIGS = (Config(), Config(block_rows=16, num_warps=2), Config(block_rows=64, num_warps=8))
TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""


def bucket_of(dtype: torch.dtype) -> Bucket:
    """What the choice of a configuration depends on."""
    return (dtype_name(dtype),)


def configs_for(dtype: torch.dtype, arch: int | None = None) -> tuple[Config, ...]:
    """The configurations for a dtype, the default first."""
    return tuned_first(TUNED, bucket_of(dtype), CONFIGS, arch)


@triton.jit(launch_metadata=kv_append_launch)
def _kv_append_kernel(
    kv_new, kv_cache, positions, q_len, kv_heads, row_tiles,
    stride_nb, stride_nt, stride_nk, stride_nh, stride_nd, stride_cb, stride_ct, stride_ck, stride_ch, stride_cd,
    stride_positions, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    batch = (program // row_tiles).to(tl.int64)
    rows = (program % row_tiles) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token = (rows // (2 * kv_heads)).to(tl.int64)
    half = (rows // kv_heads % 2).to(tl.int64)
    head = (rows % kv_heads).to(tl.int64)
    d = tl.arange(0, WIDTH)
    place = tl.load(positions + batch * stride_positions).to(tl.int64) + token
    source = kv_new + batch * stride_nb + token * stride_nt + half * stride_nk + head * stride_nh
    target = kv_cache + batch * stride_cb + place * stride_ct + half * stride_ck + head * stride_ch
    inside = (token < q_len)[:, None]
    if D != WIDTH:
        inside = inside & (d < D)[None, :]
    values = tl.load(source[:, None] + d.to(tl.int64)[None, :] * stride_nd, mask=inside)
    tl.store(target[:, None] + d.to(tl.int64)[None, :] * stride_cd, values, mask=inside)


def kv_append(
    kv_new: torch.Tensor, kv_cache: torch.Tensor, positions: torch.Tensor, *, config: Config | None = None
) -> torch.Tensor:
    """Writes new keys and values into the cache by the Triton kernel.

    Args:
        kv_new: [B, Sq, 2, Hkv, D], keys and values of the new tokens, any strides.
        kv_cache: [B, S, 2, Hkv, D] of the same dtype, any strides; written.
        positions: [B] int32, any stride: keys of each sequence before, which is its first new token's row. The rows
            must lie inside the cache; `kernels.kv_append.validate` looks.
        config: launch parameters; the first of `configs_for` when None.

    Returns:
        kv_cache.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    shapes = f"kv_new {list(kv_new.shape)} {kv_new.dtype}, kv_cache {list(kv_cache.shape)} {kv_cache.dtype}"
    if {kv_new.ndim, kv_cache.ndim} != {5} or kv_new.shape[::2] != kv_cache.shape[::2] or kv_new.shape[2] != 2:
        raise ValueError(f"wanted kv_new [B, Sq, 2, Hkv, D] and kv_cache [B, S, 2, Hkv, D], got {shapes}")
    if kv_new.shape[3] != kv_cache.shape[3] or kv_new.dtype != kv_cache.dtype or positions.shape != kv_new.shape[:1]:
        shapes += f", positions {list(positions.shape)}"
        raise ValueError(f"wanted one Hkv, one dtype and positions [B], got {shapes}")
    B, Sq, _, Hkv, D = kv_new.shape
    config = config or configs_for(kv_new.dtype)[0]
    row_tiles = triton.cdiv(Sq * 2 * Hkv, config.block_rows)
    if B * row_tiles and D:
        _kv_append_kernel[(B * row_tiles,)](
            kv_new, kv_cache, positions, Sq, Hkv, row_tiles, *kv_new.stride(), *kv_cache.stride(), positions.stride(0),
            D=D, WIDTH=triton.next_power_of_2(D), BLOCK_ROWS=config.block_rows, num_warps=config.num_warps, **OPTIONS,
        )  # fmt: skip
    return kv_cache
