"""The Triton provider of op attention_mla_decode: queries over the latent cache of multi-head latent attention.

All query heads share one latent, so heads and new tokens are packed into rows. A tile of the latent is loaded once and
used three times: its first 512 columns and the rotated 64 give the scores, by two products, and the same 512 columns
are the values. The keys of a sequence may be split over programs, whose parts `kernels.attention_merge_triton` joins;
softmax, ends of rows and pages are those of the other attention ops.

The row tiles of a sequence are neighbours in the grid, so that a latent that more than one of them needs is in L2.

Bound: DRAM for 16 heads and one token (about 32 FLOP/byte in bfloat16), arithmetic from about 128 packed rows on.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels.attention_decode_configs import Config, block_rows, splits_for
from kernels.attention_merge_triton import launch_merge, partials, shared_options
from kernels.attention_paged_triton import load_slots, page_rows
from kernels.launch import sm_count, target_arch
from kernels.launch_work import attention_mla_launch
from kernels.packed_rows import load_packed_rows, store_rows
from kernels.softmax import FLOOR, LOG2_E, no_sums, softmax_step
from kernels.tuned import Bucket, Table, dtype_name, tuned_first
from kernels.work import DECODE_TOKENS, MLA_LATENT, MLA_ROPE

FEW = 16
"""Up to so many packed rows one tile of 16 holds them all."""
FEW_ROWS = (
    Config(block_n=32, block_m=16, num_stages=3, ctas_per_sm=2),
    Config(block_n=32, block_m=16, num_stages=2, ctas_per_sm=3),
)
MANY_ROWS = (Config(block_n=32, block_m=32, num_warps=8, num_stages=2, ctas_per_sm=2),)
HOPPER_ANY_PAGE = Config(block_n=32, block_m=64, num_warps=8, num_stages=3, ctas_per_sm=1)
HOPPER_WHOLE_PAGES = Config(block_n=64, block_m=64, num_warps=8, num_stages=2, ctas_per_sm=1)
"""sm_90: 64 rows of 512 sums are 128 registers of each of 256 threads, two groups of wgmma. Beside those they hold the
addresses of 64 keys only where a tile lies in one page, and no lazy maximum."""
TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""


def bucket_of(dtype: torch.dtype, rows: int, page_size: int) -> Bucket:
    """What the choice of a configuration depends on: dtype, few or many packed rows, and the page size."""
    return (dtype_name(dtype), "many rows" if rows > FEW else "few rows", page_size)


def configs_for(dtype: torch.dtype, rows: int, page_size: int, arch: int) -> tuple[Config, ...]:
    """The configurations for a number of packed rows, the default first."""
    usual = FEW_ROWS if rows <= FEW else MANY_ROWS
    if arch == 90 and rows > FEW:
        whole = page_size % HOPPER_WHOLE_PAGES.block_n == 0
        usual = (HOPPER_WHOLE_PAGES, HOPPER_ANY_PAGE) if whole else (HOPPER_ANY_PAGE,)
    return tuned_first(TUNED, bucket_of(dtype, rows, page_size), usual, arch)


@triton.jit
def walk_latent(
    acc, m, total, q_latent, q_rope, pool, table, lo, hi, q_positions, scale_log2, stride_entries,
    stride_p, stride_s, stride_d, PAGE: tl.constexpr, ONE_PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
    LATENT: tl.constexpr, ROPE: tl.constexpr, LAZY: tl.constexpr,
):  # fmt: skip
    """`kernels.attention_paged_triton.walk_pages` over a latent: keys and values are one tile.

    One loop, masked throughout: beside 64 x 512 sums, registers do not hold the second that whole tiles would take.
    """
    head = tl.full([], 0, tl.int64)
    pages = page_rows(table, lo, hi, stride_entries, PAGE, BLOCK_N, ONE_PAGE)
    # Addresses of the queries' tiles that were kept from trip to trip would be as many registers as ptxas has not.
    for start in tl.range(lo, hi, BLOCK_N, disable_licm=True):
        latent = load_slots(
            pool, pages, start, hi, head, stride_p, stride_s, 0, stride_d,
            PAGE, ONE_PAGE, BLOCK_N, LATENT, LATENT, True)
        rope = load_slots(
            pool + LATENT * stride_d, pages, start, hi, head, stride_p, stride_s, 0, stride_d,
            PAGE, ONE_PAGE, BLOCK_N, ROPE, ROPE, True)
        pages = page_rows(table, start + BLOCK_N, hi, stride_entries, PAGE, BLOCK_N, ONE_PAGE)
        qk = tl.dot(q_latent, latent.T, input_precision="ieee")
        qk = tl.dot(q_rope, rope.T, qk, input_precision="ieee")
        places = start + tl.arange(0, BLOCK_N)
        # Past `hi` lies what no row of the tile sees: its last token is the one that the reach ends with.
        qk = tl.where(places[None, :] <= q_positions[:, None], qk, float("-inf"))
        p, acc, m, total = softmax_step(acc, qk, m, total, scale_log2, latent.dtype, LAZY)
        acc = tl.dot(p, latent, acc, input_precision="ieee")
    return acc, m, total


@triton.jit(launch_metadata=attention_mla_launch)
def _attention_mla_decode_kernel(
    q, latent_pool, block_table, kv_lens, out, lse, partial, partial_lse, q_len, q_heads, splits, row_tiles, scale_log2,
    stride_qb, stride_qs, stride_qh, stride_qd, stride_p, stride_s: tl.constexpr, stride_d: tl.constexpr,
    stride_table, stride_entries, stride_lens,
    LATENT: tl.constexpr, ROPE: tl.constexpr, PAGE: tl.constexpr, ONE_PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DV: tl.constexpr, WIDTH_V: tl.constexpr, SPLIT: tl.constexpr,
    LSE: tl.constexpr, PDL: tl.constexpr, LAZY: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row_tile = program % row_tiles
    program = program // row_tiles
    split = program % splits
    batch = program // splits
    rows = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    token = rows // q_heads
    head = rows % q_heads
    inside = token < q_len
    kv_len = tl.load(kv_lens + batch.to(tl.int64) * stride_lens)
    last_token = min(q_len, (row_tile * BLOCK_M + BLOCK_M - 1) // q_heads + 1) - 1
    reach = max(0, kv_len - q_len + last_token + 1)
    share = tl.cdiv(tl.cdiv(reach, BLOCK_N), splits) * BLOCK_N
    lo = split * share
    hi = min(reach, lo + share)
    q_positions = token + (kv_len - q_len)
    q_latent = load_packed_rows(
        q, batch, token, head, inside, stride_qb, stride_qs, stride_qh, stride_qd, LATENT, LATENT)
    rope = q + tl.full([], LATENT, tl.int64) * stride_qd
    q_rope = load_packed_rows(
        rope, batch, token, head, inside, stride_qb, stride_qs, stride_qh, stride_qd, ROPE, ROPE)
    m = tl.full([BLOCK_M], FLOOR, tl.float32)
    total = no_sums(BLOCK_M, LAZY)
    acc = tl.zeros([BLOCK_M, LATENT], tl.float32)
    if lo < hi:
        table = block_table + batch.to(tl.int64) * stride_table
        acc, m, total = walk_latent(
            acc, m, total, q_latent, q_rope, latent_pool, table, lo, hi, q_positions, scale_log2, stride_entries,
            stride_p, stride_s, stride_d, PAGE, ONE_PAGE, BLOCK_N, LATENT, ROPE, LAZY)
    if PDL:
        cuda.gdc_launch_dependents()
    store_rows(
        acc, m, total, out, lse, partial, partial_lse, batch, token, head, inside, q_len, q_heads, split, splits,
        lo < hi, DV, WIDTH_V, SPLIT, LSE)


def attention_mla_decode(
    q: torch.Tensor,
    latent_pool: torch.Tensor,
    block_table: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    softmax_scale: float,
    ragged: bool = True,
    return_lse: bool = False,
    config: Config | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Absorbed MLA of the newest tokens over a paged latent cache by the Triton kernels.

    Args:
        q: [B, Sq, H, 576], Sq up to `DECODE_TOKENS`, any strides; the last token of a sequence stands at its last key.
        latent_pool: [pages, page_size, 576], any strides: 512 latent values of a key and its 64 rotated ones.
        block_table: [B, most pages] int32, any strides: page of each page_size keys of a sequence. Entries past its
            length may hold anything.
        kv_lens: [B] int32, any stride, keys of each sequence with its new tokens' own; 0 gives 0 and -inf.
        softmax_scale: what scores are multiplied by: of the head before it was absorbed.
        ragged: ignored: lengths are always honoured.
        return_lse: also return the natural log-sum-exp.
        config: launch parameters; the first of `configs_for` when None.

    Returns:
        out [B, Sq, H, 512] of q's dtype, or (out, lse [B, H, Sq] float32).

    Raises:
        ValueError: shapes that do not fit together, more query tokens, or a scale that is not positive.
    """
    _check(q, latent_pool, block_table, kv_lens, softmax_scale)
    (B, Sq, H, _), page_size = q.shape, latent_pool.shape[1]
    config = config or configs_for(q.dtype, Sq * H, page_size, target_arch())[0]
    out = torch.empty((B, Sq, H, MLA_LATENT), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, H, Sq) if return_lse else (1,), dtype=torch.float32, device=q.device)
    if B * Sq * H:
        told = lse if return_lse else None
        _launch(q, latent_pool, block_table, kv_lens, out, told, softmax_scale, config)
    return (out, lse) if return_lse else out


def _launch(
    q: torch.Tensor, latent_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor | None, softmax_scale: float, config: Config,
) -> None:  # fmt: skip
    (B, Sq, H, _), page_size = q.shape, latent_pool.shape[1]
    block_m = block_rows(config, Sq * H)
    row_tiles = triton.cdiv(Sq * H, block_m)
    splits = splits_for(B * row_tiles, block_table.shape[1] * page_size, config, sm_count())
    partial, partial_lse = partials(out, splits if splits > 1 else 0)
    strides = [stride for tensor in (q, latent_pool, block_table, kv_lens) for stride in tensor.stride()]
    pdl = config.pdl and splits > 1
    _attention_mla_decode_kernel[(row_tiles * splits * B,)](
        q, latent_pool, block_table, kv_lens, out, lse, partial, partial_lse, Sq, H, splits, row_tiles,
        softmax_scale * LOG2_E.value, *strides, LATENT=MLA_LATENT, ROPE=MLA_ROPE, PAGE=page_size,
        ONE_PAGE=page_size % config.block_n == 0, BLOCK_M=block_m, BLOCK_N=config.block_n, SPLIT=splits > 1,
        LAZY=config.lazy, num_warps=config.num_warps, num_stages=config.num_stages,
        **shared_options(MLA_LATENT, lse, pdl),
    )  # fmt: skip
    if splits > 1:
        launch_merge(partial, partial_lse, out, lse, pdl=pdl)


def _check(
    q: torch.Tensor, latent_pool: torch.Tensor, block_table: torch.Tensor, kv_lens: torch.Tensor, softmax_scale: float
) -> None:
    shapes = f"q {list(q.shape)} {q.dtype}, latent_pool {list(latent_pool.shape)} {latent_pool.dtype}, "
    shapes += f"block_table {list(block_table.shape)}, kv_lens {list(kv_lens.shape)}"
    width = MLA_LATENT + MLA_ROPE
    fits = (q.ndim, latent_pool.ndim) == (4, 3) and {q.shape[3], latent_pool.shape[2]} == {width}
    if not fits or latent_pool.shape[1] < 1:
        raise ValueError(
            f"wanted q [B, Sq, H, {width}] and latent_pool [pages, page_size, {width}] with pages of at least 1 key, "
            f"got {shapes}"
        )
    if block_table.ndim != 2 or block_table.shape[:1] != q.shape[:1] or kv_lens.shape != q.shape[:1]:
        raise ValueError(f"wanted block_table [B, most pages] and kv_lens [B], got {shapes}")
    if q.dtype != latent_pool.dtype or q.shape[1] > DECODE_TOKENS:
        raise ValueError(f"wanted one dtype and at most {DECODE_TOKENS} new tokens, got {shapes}")
    if not softmax_scale > 0:
        raise ValueError(f"wanted a positive softmax_scale, got {softmax_scale}")
