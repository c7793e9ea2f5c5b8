"""The Triton provider of op attention_decode: 1 to 16 new tokens per sequence over its KV cache.

The query heads of one KV head and the new tokens are packed into the rows of one tile, so that K and V are read once.
The keys of a sequence are split over programs (`splits_for` holds the rule) until every SM has bytes in flight; each
split writes its own normalised output and log-sum-exp, and `kernels.attention_merge_triton` joins them. A split that
has no keys writes -inf and leaves. One split writes the output itself. Under a sliding window the splits share what it
reaches, and nothing before is read. An attention sink is seen by the first split alone, keys or none.

Quantised keys and values are read as they are stored, widened in registers, and multiplied by no scale: K's goes into
the softmax's, V's onto the finished rows. Widening has its price in instructions: on sm_90 at most 125 a KB of stored
float8_e4m3fn and 190 of int8, which has no fast conversion, to 25 of bfloat16 that a warp alone takes from shared
memory as it is; `tests/test_compiled_gates_quantised.py` holds them to it, within what an SM issues while DRAM brings
that KB.

Bound: DRAM (intensity about Sq x Hq / Hkv FLOP/byte in bfloat16); the launch floor for short caches.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels.attention import check_shapes, padded_width
from kernels.attention_decode_configs import Config, block_rows, kind_of, splits_for, usual_for
from kernels.attention_merge_triton import launch_merge, partials, shared_options
from kernels.attention_variants import PLAIN, Variant
from kernels.launch import sm_count, target_arch
from kernels.launch_work import attention_decode_launch
from kernels.packed_rows import load_packed_rows, store_rows
from kernels.quantised_cache import check_stored
from kernels.softmax import FLOOR, LOG2_E, no_sums, seen_sink, walk_keys
from kernels.stored_values import as_half
from kernels.tuned import Bucket, Table, dtype_name, tuned_first
from kernels.work import DECODE_TOKENS

Scales = tuple[torch.Tensor | None, torch.Tensor | None]
"""Of K and V."""
TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""


def bucket_of(
    dtype: torch.dtype, width: int, rows: int, variant: str = "", stored: torch.dtype | None = None
) -> Bucket:
    """What the choice of a configuration depends on: dtype, padded head width, how many packed rows, as
    `kernels.attention_variants` names it the variant, if any, and K and V's dtype where that is another."""
    other = "" if stored in (None, dtype) else dtype_name(stored)
    return (dtype_name(dtype), width, kind_of(rows), *filter(None, (variant, other)))


def configs_for(
    dtype: torch.dtype, width: int, rows: int, arch: int, variant: str = "", stored: torch.dtype | None = None
) -> tuple[Config, ...]:
    """The configurations for a padded head width and a number of packed rows, the default first."""
    usual = usual_for(dtype, width, rows, arch, variant, stored)
    return tuned_first(TUNED, bucket_of(dtype, width, rows, variant, stored), usual, arch)


@triton.jit(launch_metadata=attention_decode_launch)
def _attention_decode_kernel(
    q, k, v, kv_lens, out, lse, partial, partial_lse, q_len, kv_heads, group, splits, row_tiles, scale_log2,
    stride_qb, stride_qs, stride_qh, stride_qd, stride_kb, stride_ks, stride_kh, stride_kd,
    stride_vb, stride_vs, stride_vh, stride_vd, stride_lens, sinks, window,
    D: tl.constexpr, DV: tl.constexpr, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, LSE: tl.constexpr, PDL: tl.constexpr,
    LAZY: tl.constexpr, ROW_K: tl.constexpr, ROW_V: tl.constexpr, SHARED: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    k_scale, v_scale, STEP_K: tl.constexpr, STEP_V: tl.constexpr, QUANTISED: tl.constexpr,
):  # fmt: skip
    """SHARED: the rows are of many sequences over keys that all see; `kv_lens` is their number.

    QUANTISED: k and v are stored in 8 bits, with scales STEP_K and STEP_V from one KV head to the next.
    """
    row_k, row_v = ROW_K if ROW_K else stride_ks, ROW_V if ROW_V else stride_vs  # compiled in: fewer registers
    program = tl.program_id(0)
    row_tile = program % row_tiles
    program = program // row_tiles
    split = program % splits
    kv_head = (program // splits) % kv_heads
    batch = program // (splits * kv_heads)
    rows = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    token = rows // group
    head = kv_head * group + rows % group
    inside = token < q_len
    if SHARED:
        kv_len = kv_lens
    else:
        kv_len = tl.load(kv_lens + batch.to(tl.int64) * stride_lens)
    begin = max(0, kv_len - q_len + 1 - window) if WINDOW else 0
    share = tl.cdiv(tl.cdiv(kv_len - begin, BLOCK_N), splits) * BLOCK_N
    lo = begin + split * share
    hi = min(kv_len, lo + share)
    q_positions = token + (kv_len - q_len)
    q_tile = load_packed_rows(
        q, batch, token, head, inside, stride_qb, stride_qs, stride_qh, stride_qd, D, WIDTH)
    value_scale = 1.0
    if QUANTISED:
        q_tile, scale_log2 = as_half(q_tile, scale_log2 * tl.load(k_scale + kv_head * STEP_K))
        value_scale = tl.load(v_scale + kv_head * STEP_V)
    m = tl.full([BLOCK_M], FLOOR, tl.float32)
    total = no_sums(BLOCK_M, LAZY)
    if SINKS:
        m, total = seen_sink(tl.where(split == 0, tl.load(sinks + head), float("-inf")), LAZY)
    acc = tl.zeros([BLOCK_M, WIDTH_V], tl.float32)
    if lo < hi:
        first = lo
        if WINDOW and q_len > 1:
            # Keys that only the first tokens see lie in the first tiles of the reach.
            first = min(hi, lo + tl.cdiv(max(0, kv_len - window - lo), BLOCK_N) * BLOCK_N)
            acc, m, total = walk_keys(
                acc, m, total, q_tile, k, v, batch, kv_head, lo, first, q_positions, kv_len, scale_log2,
                stride_kb, row_k, stride_kh, stride_kd, stride_vb, row_v, stride_vh, stride_vd,
                D, DV, BLOCK_N, WIDTH, WIDTH_V, not SHARED, True, 0, False, LAZY, SOFTCAP, WINDOW, window)
        # Keys that every packed row sees; the others lie in the last tiles of the sequence.
        seen_by_all = hi if SHARED else max(first, min(hi, kv_len - q_len + 1))
        full = first + (seen_by_all - first) // BLOCK_N * BLOCK_N
        acc, m, total = walk_keys(
            acc, m, total, q_tile, k, v, batch, kv_head, first, full, q_positions, kv_len, scale_log2,
            stride_kb, row_k, stride_kh, stride_kd, stride_vb, row_v, stride_vh, stride_vd,
            D, DV, BLOCK_N, WIDTH, WIDTH_V, not SHARED, False, 0, False, LAZY, SOFTCAP)
        acc, m, total = walk_keys(
            acc, m, total, q_tile, k, v, batch, kv_head, full, hi, q_positions, kv_len, scale_log2,
            stride_kb, row_k, stride_kh, stride_kd, stride_vb, row_v, stride_vh, stride_vd,
            D, DV, BLOCK_N, WIDTH, WIDTH_V, not SHARED, True, 0, False, LAZY, SOFTCAP, WINDOW, window)
    if PDL:
        cuda.gdc_launch_dependents()
    store_rows(
        acc, m, total, out, lse, partial, partial_lse, batch, token, head, inside, q_len, kv_heads * group,
        split, splits, lo < hi or (SINKS and split == 0), DV, WIDTH_V, SPLIT, LSE, value_scale)


def attention_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    ragged: bool = True,
    window: int = 0,
    softcap: int = 0,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    return_lse: bool = False,
    config: Config | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of the newest tokens over a KV cache by the Triton kernels.

    Args:
        q: [B, Sq, Hq, D], Sq up to `DECODE_TOKENS`, any strides.
        k: [B, S, Hkv, D] allocated, Hq a multiple of Hkv, any strides.
        v: [B, S, Hkv, Dv].
        kv_lens: [B] int32, any stride, keys of each sequence with the new tokens' own; 0 gives 0 and -inf.
        ragged: ignored: lengths are always honoured.
        window, softcap: as of `kernels.attention_variants`; 0 for none.
        sinks: [Hq] float32; a sequence without keys then gives 0 and its heads' sinks.
        k_scale, v_scale: [1] or [Hkv] float32 where k and v are quantised, to float8_e4m3fn or int8.
        return_lse: also return the natural log-sum-exp.
        config: launch parameters; the first of `configs_for` when None.

    Returns:
        out [B, Sq, Hq, Dv] of q's dtype, or (out, lse [B, Hq, Sq] float32).

    Raises:
        ValueError: shapes or dtypes that do not fit together, more query tokens, or a head over 256.
        UnsupportedError: float8_e4m3fn on a GPU before sm_89.
    """
    scales = None if k_scale is None and v_scale is None else (k_scale, v_scale)
    _check(q, k, v, kv_lens, scales)
    variant = Variant(window, softcap, sinks)
    variant.check(q)
    (B, Sq, Hq, D), (S, Hkv), Dv = q.shape, k.shape[1:3], v.shape[3]
    rows, width = Sq * Hq // max(1, Hkv), padded_width(max(D, Dv))
    config = config or configs_for(q.dtype, width, rows, target_arch(), variant.name, k.dtype)[0]
    out = torch.empty((B, Sq, Hq, Dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, Sq) if return_lse else (1,), dtype=torch.float32, device=q.device)
    if B * Sq * Hq:
        reach = min(S, window + Sq - 1) if window else S
        splits = splits_for(B * Hkv * triton.cdiv(rows, block_rows(config, rows)), reach, config, sm_count())
        _launch(q, k, v, kv_lens, out, lse if return_lse else None, config, splits, variant, scales)
    return (out, lse) if return_lse else out


def _launch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor | None, config: Config, splits: int, variant: Variant, scales: Scales | None,
) -> None:  # fmt: skip
    partial, partial_lse = partials(out, splits if splits > 1 else 0)
    pdl = config.pdl and splits > 1
    launch_walk(
        q, k, v, kv_lens, out, lse, partial, partial_lse, config, splits, pdl=pdl, variant=variant, scales=scales)
    if splits > 1:
        launch_merge(partial, partial_lse, out, lse, pdl=pdl)


def launch_walk(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_lens: torch.Tensor | None, out: torch.Tensor | None,
    lse: torch.Tensor | None, partial: torch.Tensor, partial_lse: torch.Tensor, config: Config, splits: int,
    *, pdl: bool = False, variant: Variant = PLAIN, scales: Scales | None = None,
) -> None:  # fmt: skip
    """Launches the first kernel.

    Args:
        q, k, v: as of `attention_decode`.
        kv_lens: [B]; None where all of q's tokens see all keys.
        out, lse: what one split writes; out is None where it is one part of several, too.
        partial, partial_lse: as `partials` gives them.
        splits: programs that share a sequence's keys.
        variant: of attention; its sinks count once in a row, so another part of it must not have them.
        scales: of K and V, where those are quantised.
    """
    (B, Sq, Hq, D), (S, Hkv), Dv = q.shape, k.shape[1:3], v.shape[3]
    group = Hq // Hkv
    block_m = block_rows(config, Sq * group)
    row_tiles = triton.cdiv(Sq * group, block_m)
    strides = [stride for tensor in (q, k, v) for stride in tensor.stride()]
    row_k, row_v = (k.stride(1), v.stride(1)) if config.lazy else (0, 0)
    lengths: tuple[Any, int] = (S, 0) if kv_lens is None else (kv_lens, kv_lens.stride(0))
    k_scale, v_scale = scales or (None, None)
    step_k, step_v = (0 if scale is None else scale.expand(Hkv).stride(0) for scale in (k_scale, v_scale))
    _attention_decode_kernel[(row_tiles * splits * Hkv * B,)](
        q, k, v, lengths[0], out, lse, partial, partial_lse, Sq, Hkv, group, splits, row_tiles,
        LOG2_E.value / math.sqrt(D), *strides, lengths[1], D=D, WIDTH=padded_width(D), BLOCK_M=block_m,
        BLOCK_N=config.block_n, SPLIT=splits > 1 or out is None, LAZY=config.lazy, ROW_K=row_k, ROW_V=row_v,
        SHARED=kv_lens is None, k_scale=k_scale, v_scale=v_scale, STEP_K=step_k, STEP_V=step_v,
        QUANTISED=scales is not None, num_warps=config.num_warps, num_stages=config.num_stages,
        **variant.options, **shared_options(Dv, lse, pdl),
    )  # fmt: skip


def _check(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_lens: torch.Tensor, scales: Scales | None
) -> None:
    check_shapes(q, k, v, quantised=scales is not None)
    if scales:
        check_stored(k, v, *scales, target_arch())
    if kv_lens.shape != q.shape[:1] or q.shape[1] > DECODE_TOKENS:
        got = f"{list(kv_lens.shape)} and {list(q.shape)}"
        raise ValueError(f"wanted kv_lens [B] and q of at most {DECODE_TOKENS} new tokens, got {got}")
