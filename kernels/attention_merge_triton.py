"""The merge of partial attention results: of the splits of a sequence's keys, of a shared prefix and what follows it.

A part is a row's normalised output over some of its keys and their natural log-sum-exp. Parts are added in a fixed
order, without atomics: the same bits every time. An empty part has -inf, and its values do not count.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels.attention import padded_width
from kernels.launch import OPTIONS
from kernels.launch_work import merge_launch
from kernels.softmax import LN_2, LOG2_E

AT_ONCE = tl.constexpr(4096)
"""Values that are loaded together, of as many parts: one after another, each part would wait for memory by itself."""


@triton.jit
def add_parts(acc, partial, partial_lse, flat, splits, shift, dv, DV: tl.constexpr):
    """acc [parts, width] and the parts of row `flat`, so many at a time, each at its place among them, weighed by their
    log-sum-exps less `shift` in base 2."""
    PARTS: tl.constexpr = acc.shape[0]
    for first in range(0, splits, PARTS):
        parts = first + tl.arange(0, PARTS)
        spots = flat * splits + tl.minimum(parts, splits - 1)  # not masked: predicated loads would wait for each other
        part_lse = tl.load(partial_lse + spots) * LOG2_E
        values = partial + spots[:, None] * DV + dv[None, :]
        if acc.shape[1] == DV:
            value = tl.load(values)
        else:
            value = tl.load(values, mask=(dv < DV)[None, :], other=0.0)
        # An empty split wrote no output: what lies there must not reach the sum, not even times 0.
        kept = (parts < splits) & (part_lse > float("-inf"))
        acc += tl.where(kept, tl.exp2(part_lse - shift), 0.0)[:, None] * tl.where(kept[:, None], value, 0.0)
    return acc


@triton.jit(launch_metadata=merge_launch)
def _merge_kernel(
    partial, partial_lse, before, before_lse, out, lse, q_len, q_heads, splits, splits_before,
    DV: tl.constexpr, WIDTH_V: tl.constexpr, MOST_SPLITS: tl.constexpr, BEFORE: tl.constexpr, LSE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    flat = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, MOST_SPLITS)
    dv = tl.arange(0, WIDTH_V)
    if PDL:
        cuda.gdc_wait()
    each = tl.load(partial_lse + flat * splits + parts, mask=parts < splits, other=float("-inf")) * LOG2_E
    most = tl.max(each, 0)
    if BEFORE:
        spots = before_lse + flat * splits_before + parts
        each_before = tl.load(spots, mask=parts < splits_before, other=float("-inf")) * LOG2_E
        most = tl.maximum(most, tl.max(each_before, 0))
    shift = tl.where(most == float("-inf"), 0.0, most)
    total = tl.sum(tl.exp2(each - shift), 0)
    acc = tl.zeros([AT_ONCE // WIDTH_V, WIDTH_V], tl.float32)
    if BEFORE:
        total += tl.sum(tl.exp2(each_before - shift), 0)
        acc = add_parts(acc, before, before_lse, flat, splits_before, shift, dv, DV)
    acc = add_parts(acc, partial, partial_lse, flat, splits, shift, dv, DV)
    safe = tl.where(total == 0.0, 1.0, total)
    tl.store(out + flat * DV + dv, (tl.sum(acc, 0) / safe).to(out.dtype.element_ty), mask=dv < DV)
    if LSE:
        token = (flat // q_heads) % q_len
        row = (flat // (q_heads * q_len)) * q_heads + flat % q_heads
        natural = tl.where(total == 0.0, float("-inf"), (shift + tl.log2(safe)) * LN_2)
        tl.store(lse + row * q_len + token, natural)


def partials(out: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for `slots` parts of each row of out [B, Sq, Hq, Dv]: values [rows, slots, Dv] and log-sum-exps."""
    rows = math.prod(out.shape[:3]) if slots else 0
    values = torch.empty((rows, slots, out.shape[3]), dtype=torch.float32, device=out.device)
    return values, torch.empty((rows, slots), dtype=torch.float32, device=out.device)


def launch_merge(
    partial: torch.Tensor, partial_lse: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None,
    *, before: tuple[torch.Tensor, torch.Tensor] | None = None, pdl: bool = False,
) -> None:  # fmt: skip
    """Joins the parts of each row into `out` and, unless None, `lse`.

    Args:
        partial, partial_lse: of all rows, as `partials` gives them.
        out: [B, Sq, Hq, Dv].
        lse: [B, Hq, Sq].
        before: more parts of the same rows, which come first.
        pdl: launched early, to wait inside.
    """
    rows, splits = partial_lse.shape
    values_before, lse_before = before or (None, None)
    splits_before = 0 if lse_before is None else lse_before.shape[1]
    _merge_kernel[(rows,)](
        partial, partial_lse, values_before, lse_before, out, lse, *out.shape[1:3], splits, splits_before,
        MOST_SPLITS=triton.next_power_of_2(max(splits, splits_before)), BEFORE=before is not None,
        num_warps=8, num_stages=3, **shared_options(out.shape[3], lse, pdl),
    )  # fmt: skip


def shared_options(Dv: int, lse: torch.Tensor | None, pdl: bool) -> dict[str, Any]:
    """What both kernels of a case are launched with."""
    options = OPTIONS | ({"launch_pdl": True} if pdl else {})
    return {"DV": Dv, "WIDTH_V": padded_width(Dv), "LSE": lse is not None, "PDL": pdl, **options}
