"""The Triton kernels of ops attention_varlen and attention_mixed: sequences of unlike lengths in one launch.

Queries of all sequences lie one after another; a sequence's query heads of one KV head and its tokens are packed into
rows, so that K and V are read once a row tile whether it has one new token or thousands. Programs do what a schedule
says (`kernels.ragged_plan`); a tile whose keys are cut into pieces is merged by a second kernel, in a fixed order. Keys
lie one after another, or in pages of a pool: walks, softmax and ends of rows are those of the other attention ops.

The schedule is made at the first call for a table of lengths and stays on the device, as a serving engine plans a step
once for all layers; later calls with the same table read it.

No descriptors: a tile of packed keys reaches into the next sequence, whose values a weight of zero does not remove
where they are NaN.

Bound: arithmetic for long chunks, DRAM for decode tokens, each by its share of a mixed batch.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels import attention_paged_triton as paged
from kernels.attention import WIDEST_HEAD, padded_width
from kernels.attention_decode_configs import Config, block_rows
from kernels.attention_merge_triton import shared_options
from kernels.attention_paged_triton import walk_pages
from kernels.attention_ragged import check_mixed, check_varlen
from kernels.launch import sm_count, target_arch
from kernels.launch_work import attention_ragged_launch
from kernels.packed_rows import load_packed_rows, store_rows
from kernels.ragged_merge_triton import FIELDS, launch_ragged_merge
from kernels.ragged_plan import Lengths
from kernels.ragged_tables import Tables, tables_for
from kernels.softmax import FLOOR, LOG2_E, no_sums, walk_keys
from kernels.tuned import Bucket, Table, dtype_name, tuned_first

TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""
FEW = 16
"""Packed rows up to which a tile is the smallest."""
HOPPER_FEW = {
    64: (
        Config(block_n=64, num_warps=1, num_stages=3, ctas_per_sm=4, lazy=True),
        Config(block_n=128, num_stages=3, ctas_per_sm=2),
    ),
    128: (
        Config(block_n=16, num_warps=1, num_stages=4, ctas_per_sm=4, lazy=True),
        Config(block_n=64, num_stages=3, ctas_per_sm=2, lazy=True),
    ),
    256: (Config(block_n=32, num_stages=3, ctas_per_sm=2),),
}
"""sm_90. Of heads of 128 a warp alone does not hold 32 keys beside a schedule under every Triton."""
MIDDLE = {
    64: (Config(block_n=64, block_m=64, num_warps=8, num_stages=3, ctas_per_sm=2),),
    128: (Config(block_n=64, block_m=64, num_stages=3, ctas_per_sm=2, lazy=True),),
    256: (Config(block_n=32, block_m=64, num_warps=8, num_stages=3, ctas_per_sm=1),),
}
"""sm_90, more rows than the fewest but no prefill: drafts, small chunks."""
PADDED = {
    64: (Config(block_n=64, num_stages=3, ctas_per_sm=3, lazy=True),),
    128: (Config(block_n=64, num_stages=3, ctas_per_sm=2, lazy=True),),
    256: (Config(block_n=32, num_stages=3, ctas_per_sm=2),),
}
"""sm_90, few rows of heads narrower than their tile, whose masks take registers; the widest heads take these too."""
ELSEWHERE = {
    64: (Config(block_n=32, block_m=32, num_stages=3, ctas_per_sm=4),),
    128: (Config(block_n=64, block_m=32, num_stages=3, ctas_per_sm=2, lazy=True),),
    256: (Config(block_n=32, block_m=32, num_stages=2, ctas_per_sm=2),),
}
"""sm_80 and sm_100, where values of larger tiles wait in local memory under one Triton or another."""


def bucket_of(dtype: torch.dtype, head_dim: int, rows: int, page_size: int) -> Bucket:
    """What the choice of a configuration depends on: the most packed rows of a sequence decide for all.

    Args:
        page_size: 0 for keys without pages.
    """
    kind = "few rows" if rows <= FEW else "prefill" if rows >= paged.MANY else "rows between"
    return (dtype_name(dtype), padded_width(head_dim), kind, page_size)


def configs_for(dtype: torch.dtype, head_dim: int, rows: int, page_size: int, arch: int) -> tuple[Config, ...]:
    """The configurations for a head width and the most packed rows of a sequence, the default first."""
    return tuned_first(TUNED, bucket_of(dtype, head_dim, rows, page_size), _usual(dtype, head_dim, rows, arch), arch)


def _usual(dtype: torch.dtype, head_dim: int, rows: int, arch: int) -> tuple[Config, ...]:
    width = padded_width(head_dim)
    if dtype == torch.float32:
        usual = paged.usual_for(dtype, head_dim, rows, arch)
        # 4 warps leave values of the widest heads in local memory there under Triton 3.9.
        return tuple(replace(c, num_warps=8) for c in usual) if arch >= 100 and width == WIDEST_HEAD else usual
    if arch != 90:
        return ELSEWHERE[width]
    if rows >= paged.MANY:
        return paged.HOPPER_PREFILL[width]
    return MIDDLE[width] if rows > FEW else HOPPER_FEW[width] if head_dim == width else PADDED[width]


@triton.jit(launch_metadata=attention_ragged_launch)
def _attention_ragged_kernel(
    q, k, v, starts_q, lengths, block_table, plan, out, lse, partial, partial_lse, total_q, kv_heads, group, scale_log2,
    stride_qs, stride_qh, stride_qd, stride_kp, stride_ks: tl.constexpr, stride_kh, stride_kd: tl.constexpr,
    stride_vp, stride_vs: tl.constexpr, stride_vh, stride_vd: tl.constexpr,
    stride_starts, stride_lengths, stride_table, stride_entries,
    D: tl.constexpr, DV: tl.constexpr, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr, PAGE: tl.constexpr,
    ONE_PAGE: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
    LSE: tl.constexpr, PDL: tl.constexpr, LAZY: tl.constexpr,
):  # fmt: skip
    """PAGE: slots of a page, 0 where keys lie one after another and `lengths` are their starts."""
    kv_head = tl.program_id(0) % kv_heads
    item = plan + tl.program_id(0) // kv_heads * FIELDS
    batch = tl.load(item).to(tl.int64)
    row_tile, piece, pieces = tl.load(item + 1), tl.load(item + 2), tl.load(item + 3)
    q_start = tl.load(starts_q + batch * stride_starts)
    q_len = tl.load(starts_q + (batch + 1) * stride_starts) - q_start
    kv_len = tl.load(lengths + batch * stride_lengths)
    k_start = kv_len * 0
    if PAGE == 0:
        k_start = kv_len
        kv_len = tl.load(lengths + (batch + 1) * stride_lengths) - k_start
    rows = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    token = rows // group
    head = kv_head * group + rows % group
    inside = token < q_len
    first_token = row_tile * BLOCK_M // group
    last_token = min(q_len, (row_tile * BLOCK_M + BLOCK_M - 1) // group + 1) - 1
    reach = kv_len
    if CAUSAL:
        reach = max(0, kv_len - q_len + last_token + 1)
    tiles = tl.cdiv(reach, BLOCK_N)
    lo = tiles * piece // pieces * BLOCK_N
    hi = min(reach, tiles * (piece + 1) // pieces * BLOCK_N)
    q_positions = token + (kv_len - q_len)
    q_tile = load_packed_rows(
        q, batch, q_start + token, head, inside, 0, stride_qs, stride_qh, stride_qd, D, WIDTH)
    m = tl.full([BLOCK_M], FLOOR, tl.float32)
    total = no_sums(BLOCK_M, LAZY)
    acc = tl.zeros([BLOCK_M, WIDTH_V], tl.float32)
    if lo < hi:
        # Keys that every packed row sees; the others lie in the last tiles of the reach.
        seen_by_all = hi
        if CAUSAL:
            seen_by_all = max(lo, min(hi, kv_len - q_len + first_token + 1))
        full = lo + (seen_by_all - lo) // BLOCK_N * BLOCK_N
        for masked in tl.static_range(2):
            begin, end = (full, hi) if masked else (lo, full)
            if PAGE > 0:
                acc, m, total = walk_pages(
                    acc, m, total, q_tile, k, v, block_table + batch * stride_table, kv_head, begin, end, q_positions,
                    scale_log2, stride_entries, stride_kp, stride_ks, stride_kh, stride_kd,
                    stride_vp, stride_vs, stride_vh, stride_vd,
                    D, DV, PAGE, ONE_PAGE, BLOCK_N, WIDTH, WIDTH_V, masked == 1, LAZY)
            else:
                acc, m, total = walk_keys(
                    acc, m, total, q_tile, k + k_start.to(tl.int64) * stride_ks, v + k_start.to(tl.int64) * stride_vs,
                    batch, kv_head, begin, end, q_positions, kv_len, scale_log2,
                    0, stride_ks, stride_kh, stride_kd, 0, stride_vs, stride_vh, stride_vd,
                    D, DV, BLOCK_N, WIDTH, WIDTH_V, CAUSAL, masked == 1, 0, False, LAZY)
    if PDL:
        cuda.gdc_launch_dependents()
    if SPLIT and pieces > 1:
        first = tl.load(item + 4).to(tl.int64) * kv_heads + kv_head * pieces
        here = first * BLOCK_M
        store_rows(
            acc, m, total, out, lse, partial + here * DV, partial_lse + here, batch * 0, rows - row_tile * BLOCK_M,
            rows * 0, inside, total_q, 1, piece, pieces, lo < hi, DV, WIDTH_V, True, LSE)
    else:
        store_rows(
            acc, m, total, out, lse, partial, partial_lse, batch * 0, q_start + token, head, inside, total_q,
            kv_heads * group, piece, pieces, lo < hi, DV, WIDTH_V, False, LSE)


def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    lengths: Lengths,
    causal: bool,
    return_lse: bool = False,
    config: Config | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of sequences that lie one after another by the Triton kernels.

    Args:
        q: [total_q, Hq, D], any strides.
        k: [total_k, Hkv, D], Hq a multiple of Hkv, any strides.
        v: [total_k, Hkv, Dv].
        cu_seqlens_q, cu_seqlens_k: [B + 1] int32, any stride, where each sequence starts, and at last their total.
        lengths: (new tokens, keys) of each sequence on the host; they must be the tables', as
            `kernels.attention_ragged.validate_starts` looks.
        causal: aligned bottom-right; rows that see no key give 0 and -inf.
        return_lse: also return the natural log-sum-exp.
        config: launch parameters; the first of `configs_for` when None.

    Returns:
        out [total_q, Hq, Dv] of q's dtype, or (out, lse [Hq, total_q] float32).

    Raises:
        ValueError: shapes that do not fit together, or a head over 256.
    """
    check_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, lengths)
    return _attend(q, k, v, cu_seqlens_q, cu_seqlens_k, None, lengths, causal, return_lse, config)


def attention_mixed(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    lengths: Lengths,
    return_lse: bool = False,
    config: Config | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of chunks of prompts and decode tokens together over a paged KV cache by the Triton kernels.

    Args:
        q: [total_q, Hq, D], any strides; the last token of a sequence stands at its last key.
        k_pool: [pages, page_size, Hkv, D], Hq a multiple of Hkv, any strides.
        v_pool: [pages, page_size, Hkv, Dv].
        cu_seqlens_q: [B + 1] int32, any stride, where each sequence's new tokens start, and at last their total.
        block_table: [B, most pages] int32, any strides, as of `kernels.attention_paged_triton.attention_paged`.
        kv_lens: [B] int32, any stride, keys of each sequence with its new tokens' own; 0 gives 0 and -inf.
        lengths, return_lse, config: as of `attention_varlen`.

    Returns:
        As of `attention_varlen`.

    Raises:
        ValueError: shapes that do not fit together, or a head over 256.
    """
    check_mixed(q, k_pool, v_pool, cu_seqlens_q, block_table, kv_lens, lengths)
    return _attend(q, k_pool, v_pool, cu_seqlens_q, kv_lens, block_table, lengths, True, return_lse, config)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts_q: torch.Tensor, ends: torch.Tensor,
    block_table: torch.Tensor | None, lengths: Lengths, causal: bool, return_lse: bool, config: Config | None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    (total_q, Hq, D), Hkv, Dv = q.shape, k.shape[-2], v.shape[-1]
    page_size = 0 if block_table is None else k.shape[1]
    most_rows = max((q_len for q_len, _ in lengths), default=0) * Hq // max(1, Hkv)
    config = config or configs_for(q.dtype, max(D, Dv), most_rows, page_size, target_arch())[0]
    out = torch.empty((total_q, Hq, Dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((Hq, total_q) if return_lse else (1,), dtype=torch.float32, device=q.device)
    if total_q * Hq:
        tables = tables_for(
            starts_q, lengths, group=Hq // Hkv, kv_heads=Hkv, block_m=block_rows(config, most_rows),
            block_n=config.block_n, slots=sm_count() * config.ctas_per_sm, causal=causal, pieces=config.splits,
        )  # fmt: skip
        _launch(q, k, v, starts_q, ends, block_table, out, lse if return_lse else None, config, tables, causal)
    return (out, lse) if return_lse else out


def _launch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts_q: torch.Tensor, ends: torch.Tensor,
    block_table: torch.Tensor | None, out: torch.Tensor, lse: torch.Tensor | None, config: Config, tables: Tables,
    causal: bool,
) -> None:  # fmt: skip
    (total_q, Hq, D), Hkv, Dv = q.shape, k.shape[-2], v.shape[-1]
    merged = len(tables.merged)
    rows = tables.parts * Hkv * tables.block_m
    partial = torch.empty((rows, Dv), dtype=torch.float32, device=q.device)
    partial_lse = torch.empty((rows,), dtype=torch.float32, device=q.device)
    page_size = 0 if block_table is None else k.shape[1]
    strides = [*q.stride(), *(0, 0)[: 4 - k.ndim], *k.stride(), *(0, 0)[: 4 - v.ndim], *v.stride()]
    entries = (0, 0) if block_table is None else block_table.stride()
    shared = {"num_stages": config.num_stages, **shared_options(Dv, lse, config.pdl and merged > 0)}
    _attention_ragged_kernel[(len(tables.items) * Hkv,)](
        q, k, v, starts_q, ends, block_table, tables.items, out, lse, partial, partial_lse, total_q, Hkv, Hq // Hkv,
        LOG2_E.value / math.sqrt(D), *strides, starts_q.stride(0), ends.stride(0), *entries, D=D,
        WIDTH=padded_width(D), PAGE=page_size, ONE_PAGE=page_size > 0 and paged.one_page(config, D, page_size),
        CAUSAL=causal, BLOCK_M=tables.block_m, BLOCK_N=config.block_n, SPLIT=merged > 0, LAZY=config.lazy,
        num_warps=config.num_warps, **shared,
    )  # fmt: skip
    if merged:
        launch_ragged_merge(partial, partial_lse, tables, starts_q, out, lse, Hkv, shared)
