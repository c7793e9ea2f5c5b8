"""The Triton provider of the paged attention ops: queries over a KV cache that lies in pages anywhere in a pool.

One kernel for decode and prefill. The query heads of one KV head and the query tokens are packed into rows, so that K
and V are read once a row tile; the keys of a sequence may be split over programs, whose parts the decode op's second
kernel merges in a fixed order. Softmax, ends of rows and merge are those of the ops without pages.

A tile of keys takes a block table entry a key, or one where it lies in one page; the entries of the next tile are
fetched before this one is worked on, so that keys and values are copied ahead as they are without pages. Entries past a
sequence's length are not read, and neither are the slots of its last page that hold no key.

Bound: DRAM for few query tokens, as in `kernels.attention_decode_triton`; arithmetic for many.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels import attention_decode_triton as decode
from kernels.attention import WIDEST_HEAD, padded_width
from kernels.attention_decode_configs import Config, block_rows, kind_of, splits_for
from kernels.attention_merge_triton import launch_merge, partials, shared_options
from kernels.launch import sm_count, target_arch
from kernels.launch_work import attention_paged_launch
from kernels.packed_rows import load_packed_rows, store_rows
from kernels.softmax import FLOOR, LOG2_E, no_sums, softmax_step
from kernels.tuned import Bucket, Table, dtype_name, tuned_first

OLDER = 80
"""The arch whose configurations sm_90 takes for what its own do not hold."""
PADDED_KEYS = 64
"""Of a tile at most where heads are padded: masks and addresses of 128 keys leave a value in local memory."""
MANY = 256
"""From so many packed rows on a problem is a prefill, and arithmetic bounds it."""
HOPPER_PREFILL = {
    64: (Config(block_n=128, num_warps=8, num_stages=3, ctas_per_sm=1, lazy=True),),
    128: (
        Config(block_n=64, num_warps=8, num_stages=3, ctas_per_sm=1, lazy=True),
        Config(block_n=64, num_warps=8, num_stages=4, ctas_per_sm=1, lazy=True),
    ),
    256: (Config(block_n=32, block_m=64, num_warps=8, num_stages=3, ctas_per_sm=1),),
}
"""sm_90: two wgmma groups of 64 rows that share every tile of keys. Of 128 keys and heads of 128, with an entry a key,
registers do not always hold a tile."""
TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""


def bucket_of(dtype: torch.dtype, head_dim: int, rows: int, page_size: int) -> Bucket:
    """What the choice of a configuration depends on: that of the op without pages, prefill, and the page size."""
    width = padded_width(head_dim)
    kind = (dtype_name(dtype), width, "prefill") if rows >= MANY else decode.bucket_of(dtype, width, rows)
    return (*kind, page_size)


def configs_for(dtype: torch.dtype, head_dim: int, rows: int, page_size: int, arch: int) -> tuple[Config, ...]:
    """The configurations for a head width and a number of packed rows, the default first."""
    return tuned_first(TUNED, bucket_of(dtype, head_dim, rows, page_size), usual_for(dtype, head_dim, rows, arch), arch)


def usual_for(dtype: torch.dtype, head_dim: int, rows: int, arch: int) -> tuple[Config, ...]:
    """The same where nothing is tuned."""
    width = padded_width(head_dim)
    prefill = arch == 90 and rows >= MANY and dtype != torch.float32
    # One or two warps do not hold page addresses beside the masks of a padded head, or beside the widest.
    holds = kind_of(rows) == "many rows" or head_dim == width < WIDEST_HEAD
    steps = decode.configs_for(dtype, width, rows, arch if holds else OLDER)
    fits = tuple(config for config in steps if head_dim == width or config.block_n <= PADDED_KEYS)
    return HOPPER_PREFILL[width] if prefill else fits


def one_page(config: Config, head_dim: int, page_size: int) -> bool:
    """Whether a tile of keys takes one block table entry.

    Offsets that stay from tile to tile of whole pages take registers: only eight lazy warps have them to spare.
    """
    roomy = config.lazy and config.num_warps == 8 and padded_width(head_dim) == head_dim
    return roomy and page_size % config.block_n == 0


@triton.jit
def page_rows(table, start, hi, stride_entries, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, ONE_PAGE: tl.constexpr):
    """Pages of the keys start .. start + BLOCK_N - 1: one number when ONE_PAGE, else one a key.

    No entry at or past `hi` is read; page 0 stands for it.
    """
    if ONE_PAGE:
        pages = tl.load(table + (start // PAGE) * stride_entries, mask=start < hi, other=0)
    else:
        places = start + tl.arange(0, BLOCK_N)
        pages = tl.load(table + (places // PAGE) * stride_entries, mask=places < hi, other=0)
    return pages


@triton.jit
def load_slots(
    pool, pages, start, hi, head, stride_p, stride_s, stride_h, stride_d,
    PAGE: tl.constexpr, ONE_PAGE: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The [BLOCK_N, WIDTH] tile of keys or values at start, zero past D and, when MASKED, from key `hi` on."""
    d = tl.arange(0, WIDTH)
    if ONE_PAGE:
        first = pool + pages.to(tl.int64) * stride_p + tl.cast(start % PAGE, tl.int64) * stride_s
        rows = first + tl.arange(0, BLOCK_N).to(tl.int64) * stride_s
    else:
        slots = (start + tl.arange(0, BLOCK_N)) % PAGE
        rows = pool + pages.to(tl.int64) * stride_p + slots.to(tl.int64) * stride_s
    pointers = (rows + head.to(tl.int64) * stride_h)[:, None] + d.to(tl.int64)[None, :] * stride_d
    keys = (start + tl.arange(0, BLOCK_N) < hi)[:, None]
    if MASKED and D != WIDTH:
        tile = tl.load(pointers, mask=keys & (d < D)[None, :], other=0.0)
    elif MASKED:
        tile = tl.load(pointers, mask=keys, other=0.0)
    elif D != WIDTH:
        tile = tl.load(pointers, mask=(d < D)[None, :], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def walk_pages(
    acc, m, total, q, k_pool, v_pool, table, kv_head, lo, hi, q_positions, scale_log2, stride_entries,
    stride_kp, stride_ks, stride_kh, stride_kd, stride_vp, stride_vs, stride_vh, stride_vd,
    D: tl.constexpr, DV: tl.constexpr, PAGE: tl.constexpr, ONE_PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_V: tl.constexpr, MASKED: tl.constexpr, LAZY: tl.constexpr,
):  # fmt: skip
    """`kernels.softmax.walk_keys` over pages: attends the rows to keys lo .. hi - 1, lo a multiple of BLOCK_N.

    MASKED says that a tile may hold keys past hi, or past the place of some row.
    """
    pages = page_rows(table, lo, hi, stride_entries, PAGE, BLOCK_N, ONE_PAGE)
    for start in tl.range(lo, hi, BLOCK_N):
        keys = load_slots(
            k_pool, pages, start, hi, kv_head, stride_kp, stride_ks, stride_kh, stride_kd,
            PAGE, ONE_PAGE, BLOCK_N, D, WIDTH, MASKED)
        values = load_slots(
            v_pool, pages, start, hi, kv_head, stride_vp, stride_vs, stride_vh, stride_vd,
            PAGE, ONE_PAGE, BLOCK_N, DV, WIDTH_V, MASKED)
        pages = page_rows(table, start + BLOCK_N, hi, stride_entries, PAGE, BLOCK_N, ONE_PAGE)
        qk = tl.dot(q, keys.T, input_precision="ieee")
        if MASKED:
            places = start + tl.arange(0, BLOCK_N)
            seen = (places < hi)[None, :] & (places[None, :] <= q_positions[:, None])
            qk = tl.where(seen, qk, float("-inf"))
        p, acc, m, total = softmax_step(acc, qk, m, total, scale_log2, values.dtype, LAZY)
        acc = tl.dot(p, values, acc, input_precision="ieee")
    return acc, m, total


@triton.jit(launch_metadata=attention_paged_launch)
def _attention_paged_kernel(
    q, k_pool, v_pool, block_table, kv_lens, out, lse, partial, partial_lse, q_len, kv_heads, group, splits, batches,
    row_tiles, scale_log2, stride_qb, stride_qs, stride_qh, stride_qd,
    stride_kp, stride_ks: tl.constexpr, stride_kh, stride_kd: tl.constexpr,
    stride_vp, stride_vs: tl.constexpr, stride_vh, stride_vd: tl.constexpr, stride_table, stride_entries, stride_lens,
    D: tl.constexpr, DV: tl.constexpr, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr, PAGE: tl.constexpr,
    ONE_PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, LSE: tl.constexpr,
    PDL: tl.constexpr, LAZY: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    kv_head = program % kv_heads
    program = program // kv_heads
    split = program % splits
    batch = (program // splits) % batches
    # The last rows of a sequence see the most keys: they start first.
    row_tile = row_tiles - 1 - program // (splits * batches)
    rows = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    token = rows // group
    head = kv_head * group + rows % group
    inside = token < q_len
    kv_len = tl.load(kv_lens + batch.to(tl.int64) * stride_lens)
    first_token = row_tile * BLOCK_M // group
    last_token = min(q_len, (row_tile * BLOCK_M + BLOCK_M - 1) // group + 1) - 1
    reach = max(0, kv_len - q_len + last_token + 1)
    share = tl.cdiv(tl.cdiv(reach, BLOCK_N), splits) * BLOCK_N
    lo = split * share
    hi = min(reach, lo + share)
    q_positions = token + (kv_len - q_len)
    q_tile = load_packed_rows(
        q, batch, token, head, inside, stride_qb, stride_qs, stride_qh, stride_qd, D, WIDTH)
    m = tl.full([BLOCK_M], FLOOR, tl.float32)
    total = no_sums(BLOCK_M, LAZY)
    acc = tl.zeros([BLOCK_M, WIDTH_V], tl.float32)
    if lo < hi:
        table = block_table + batch.to(tl.int64) * stride_table
        # Keys that every packed row sees; the others lie in the last tiles of the reach.
        seen_by_all = max(lo, min(hi, kv_len - q_len + first_token + 1))
        full = lo + (seen_by_all - lo) // BLOCK_N * BLOCK_N
        acc, m, total = walk_pages(
            acc, m, total, q_tile, k_pool, v_pool, table, kv_head, lo, full, q_positions, scale_log2, stride_entries,
            stride_kp, stride_ks, stride_kh, stride_kd, stride_vp, stride_vs, stride_vh, stride_vd,
            D, DV, PAGE, ONE_PAGE, BLOCK_N, WIDTH, WIDTH_V, False, LAZY)
        acc, m, total = walk_pages(
            acc, m, total, q_tile, k_pool, v_pool, table, kv_head, full, hi, q_positions, scale_log2, stride_entries,
            stride_kp, stride_ks, stride_kh, stride_kd, stride_vp, stride_vs, stride_vh, stride_vd,
            D, DV, PAGE, ONE_PAGE, BLOCK_N, WIDTH, WIDTH_V, True, LAZY)
    if PDL:
        cuda.gdc_launch_dependents()
    store_rows(
        acc, m, total, out, lse, partial, partial_lse, batch, token, head, inside, q_len, kv_heads * group,
        split, splits, lo < hi, DV, WIDTH_V, SPLIT, LSE)


def attention_paged(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    ragged: bool = True,
    return_lse: bool = False,
    config: Config | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of the newest tokens over a paged KV cache by the Triton kernels.

    Args:
        q: [B, Sq, Hq, D], any strides; the last token of a sequence stands at its last key.
        k_pool: [pages, page_size, Hkv, D], Hq a multiple of Hkv, any strides.
        v_pool: [pages, page_size, Hkv, Dv], any strides: half of an interleaved buffer too.
        block_table: [B, most pages] int32, any strides: page of each page_size keys of a sequence. Entries past its
            length may hold anything; the others must name pages of the pool, as `kernels.attention_paged.validate`
            looks.
        kv_lens: [B] int32, any stride, keys of each sequence with its new tokens' own; 0 gives 0 and -inf.
        ragged: ignored: lengths are always honoured.
        return_lse: also return the natural log-sum-exp.
        config: launch parameters; the first of `configs_for` when None.

    Returns:
        out [B, Sq, Hq, Dv] of q's dtype, or (out, lse [B, Hq, Sq] float32).

    Raises:
        ValueError: shapes that do not fit together, or a head over 256.
    """
    _check(q, k_pool, v_pool, block_table, kv_lens)
    (B, Sq, Hq, D), (page_size, Hkv), Dv = q.shape, k_pool.shape[1:3], v_pool.shape[3]
    rows = Sq * Hq // max(1, Hkv)
    config = config or configs_for(q.dtype, max(D, Dv), rows, page_size, target_arch())[0]
    out = torch.empty((B, Sq, Hq, Dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, Sq) if return_lse else (1,), dtype=torch.float32, device=q.device)
    if B * Sq * Hq:
        block_m = block_rows(config, rows)
        walks = B * Hkv * triton.cdiv(rows, block_m)
        splits = splits_for(walks, block_table.shape[1] * page_size, config, sm_count())
        _launch(q, k_pool, v_pool, block_table, kv_lens, out, lse if return_lse else None, config, splits, block_m)
    return (out, lse) if return_lse else out


def _launch(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor,
    out: torch.Tensor, lse: torch.Tensor | None, config: Config, splits: int, block_m: int,
) -> None:  # fmt: skip
    (B, Sq, Hq, D), (page_size, Hkv), Dv = q.shape, k_pool.shape[1:3], v_pool.shape[3]
    group = Hq // Hkv
    row_tiles = triton.cdiv(Sq * group, block_m)
    partial, partial_lse = partials(out, splits if splits > 1 else 0)
    strides = [stride for tensor in (q, k_pool, v_pool, block_table) for stride in tensor.stride()]
    pdl = config.pdl and splits > 1
    _attention_paged_kernel[(row_tiles * splits * Hkv * B,)](
        q, k_pool, v_pool, block_table, kv_lens, out, lse, partial, partial_lse, Sq, Hkv, group, splits, B, row_tiles,
        LOG2_E.value / math.sqrt(D), *strides, kv_lens.stride(0), D=D, WIDTH=padded_width(D), PAGE=page_size,
        ONE_PAGE=one_page(config, D, page_size), BLOCK_M=block_m, BLOCK_N=config.block_n,
        SPLIT=splits > 1, LAZY=config.lazy, num_warps=config.num_warps, num_stages=config.num_stages,
        **shared_options(Dv, lse, pdl),
    )  # fmt: skip
    if splits > 1:
        launch_merge(partial, partial_lse, out, lse, pdl=pdl)


def _check(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor
) -> None:
    shapes = f"q {list(q.shape)} {q.dtype}, k_pool {list(k_pool.shape)} {k_pool.dtype}, v_pool {list(v_pool.shape)} "
    shapes += f"{v_pool.dtype}, block_table {list(block_table.shape)}, kv_lens {list(kv_lens.shape)}"
    fits = {q.ndim, k_pool.ndim, v_pool.ndim} == {4} and k_pool.shape[:3] == v_pool.shape[:3]
    if not fits or q.shape[3] != k_pool.shape[3] or k_pool.shape[1] < 1:
        raise ValueError(
            f"wanted q [B, Sq, Hq, D], k_pool [pages, page_size, Hkv, D] and v_pool [pages, page_size, Hkv, Dv] with "
            f"pages of at least 1 key, got {shapes}"
        )
    if block_table.ndim != 2 or block_table.shape[:1] != q.shape[:1] or kv_lens.shape != q.shape[:1]:
        raise ValueError(f"wanted block_table [B, most pages] and kv_lens [B], got {shapes}")
    if not q.dtype == k_pool.dtype == v_pool.dtype:
        raise ValueError(f"wanted one dtype, got {shapes}")
    if q.shape[2] % max(1, k_pool.shape[2]) or max(q.shape[3], v_pool.shape[3]) > WIDEST_HEAD:
        raise ValueError(f"wanted Hq a multiple of Hkv and heads up to {WIDEST_HEAD} wide, got {shapes}")
