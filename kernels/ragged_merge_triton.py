"""The merge of rows whose keys a schedule cut into pieces: the second kernel of the ragged attention ops.

Only tiles in several pieces have parts, one after another for each row; the arithmetic is that of
`kernels.attention_merge_triton`, in the same fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels.attention_merge_triton import AT_ONCE, add_parts
from kernels.launch_work import ragged_merge_launch
from kernels.ragged_plan import MOST_PIECES
from kernels.ragged_tables import Tables
from kernels.softmax import LN_2, LOG2_E

FIELDS = tl.constexpr(5)
"""Columns of `kernels.ragged_plan.ITEM`."""


@triton.jit(launch_metadata=ragged_merge_launch)
def _merge_ragged_kernel(
    partial, partial_lse, merged, starts_q, out, lse, total_q, kv_heads, group, stride_starts,
    DV: tl.constexpr, WIDTH_V: tl.constexpr, BLOCK_M: tl.constexpr, MOST: tl.constexpr, LSE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program a row of a tile in pieces, whose parts lie one after another."""
    place = tl.program_id(0) % BLOCK_M
    kv_head = tl.program_id(0) // BLOCK_M % kv_heads
    item = merged + tl.program_id(0) // (BLOCK_M * kv_heads) * FIELDS
    batch = tl.load(item).to(tl.int64)
    row = tl.load(item + 1) * BLOCK_M + place
    pieces = tl.load(item + 3)
    q_start = tl.load(starts_q + batch * stride_starts)
    q_len = tl.load(starts_q + (batch + 1) * stride_starts) - q_start
    token = row // group
    if token < q_len:
        tile = tl.load(item + 4).to(tl.int64) * kv_heads + kv_head * pieces
        first = tile * BLOCK_M + place * pieces
        parts = tl.arange(0, MOST)
        dv = tl.arange(0, WIDTH_V)
        if PDL:
            cuda.gdc_wait()
        each = tl.load(partial_lse + first + parts, mask=parts < pieces, other=float("-inf")) * LOG2_E
        most = tl.max(each, 0)
        shift = tl.where(most == float("-inf"), 0.0, most)
        total = tl.sum(tl.exp2(each - shift), 0)
        acc = tl.zeros([AT_ONCE // WIDTH_V, WIDTH_V], tl.float32)
        acc = add_parts(acc, partial + first * DV, partial_lse + first, 0, pieces, shift, dv, DV)
        safe = tl.where(total == 0.0, 1.0, total)
        head = kv_head * group + row % group
        flat = (q_start + token).to(tl.int64) * (kv_heads * group) + head
        tl.store(out + flat * DV + dv, (tl.sum(acc, 0) / safe).to(out.dtype.element_ty), mask=dv < DV)
        if LSE:
            natural = tl.where(total == 0.0, float("-inf"), (shift + tl.log2(safe)) * LN_2)
            tl.store(lse + head.to(tl.int64) * total_q + q_start + token, natural)


def launch_ragged_merge(
    partial: torch.Tensor, partial_lse: torch.Tensor, tables: Tables, starts_q: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor | None, kv_heads: int, shared: dict[str, Any],
) -> None:  # fmt: skip
    """Joins the parts of each row into `out` and, unless None, `lse`.

    Args:
        partial, partial_lse: [parts x kv_heads x rows of a tile, Dv] and the same without Dv, float32.
        tables: whose merged tiles are joined.
        starts_q: [B + 1] where each sequence's rows start.
        out: [total_q, Hq, Dv].
        lse: [Hq, total_q].
        shared: what the first kernel was launched with too.
    """
    total_q, q_heads = out.shape[:2]
    _merge_ragged_kernel[(len(tables.merged) * kv_heads * tables.block_m,)](
        partial, partial_lse, tables.merged, starts_q, out, lse, total_q, kv_heads, q_heads // kv_heads,
        starts_q.stride(0), BLOCK_M=tables.block_m, MOST=MOST_PIECES, num_warps=8, **shared,
    )  # fmt: skip
