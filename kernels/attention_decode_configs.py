"""Launch parameters of the decode attention kernels: tiles by head width, packed rows and arch, and the split rule.

Leaves the kernel, and what tuning finds, to `kernels.attention_decode_triton`. The paged, prefix and MLA ops share the
rule, the first two the tables too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
import triton

from kernels.ragged_plan import MOST_PIECES, merge_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters.

    Attributes:
        block_n: keys of a tile.
        block_m: packed rows of a tile at most; more rows are more programs, which read the same K and V (L2 has them).
        least_m: rows of a tile at least; what no row fills is zeros.
        num_warps, num_stages: of the compiler.
        ctas_per_sm: programs of the first kernel that an SM holds, by its shared memory; the split rule fills them.
        splits: programs that share a sequence's keys; 0 lets `splits_for` decide.
        pdl: launch the merge early, to wait inside for the first kernel (programmatic dependent launch).
        lazy: raise the softmax's maximum only where it must be (`kernels.softmax`).
    """

    block_n: int
    block_m: int = 128
    least_m: int = 16
    num_warps: int = 4
    num_stages: int = 3
    ctas_per_sm: int = 2
    splits: int = 0
    pdl: bool = False
    lazy: bool = False


HALF = {
    64: (Config(block_n=128, num_stages=3, ctas_per_sm=2), Config(block_n=64, num_stages=4, ctas_per_sm=3)),
    128: (
        Config(block_n=64, num_stages=3, ctas_per_sm=2),
        Config(block_n=128, num_stages=2, ctas_per_sm=1),
        Config(block_n=64, num_stages=3, ctas_per_sm=2, pdl=True),
    ),
    256: (Config(block_n=32, num_stages=3, ctas_per_sm=2), Config(block_n=64, num_stages=2, ctas_per_sm=1)),
}
HOPPER = {
    64: (Config(block_n=64, num_warps=1, num_stages=3, ctas_per_sm=4, lazy=True), *HALF[64]),
    128: (Config(block_n=32, num_warps=1, num_stages=3, ctas_per_sm=4, lazy=True), *HALF[128]),
    256: (Config(block_n=32, num_warps=2, num_stages=3, ctas_per_sm=3, lazy=True), *HALF[256]),
}
"""sm_90: a warp alone needs no barrier to share weights and sums. Width 256 takes two, for its accumulators."""
FEW, MANY = 16, 64
"""Packed rows up to which they are few, and from which they are many."""
MANY_ROWS = {
    64: (Config(block_n=64, num_warps=8, num_stages=3, ctas_per_sm=2),),
    128: (Config(block_n=64, num_warps=8, num_stages=3, ctas_per_sm=1),),
    256: (Config(block_n=32, block_m=64, num_warps=8, num_stages=3, ctas_per_sm=1),),
}
"""For many packed rows, whose accumulators 4 warps do not hold."""
HOPPER_MANY_ROWS = MANY_ROWS | {
    64: (Config(block_n=64, block_m=64, num_stages=3, ctas_per_sm=3, lazy=True), *MANY_ROWS[64]),
    128: (Config(block_n=64, block_m=64, num_stages=3, ctas_per_sm=2, lazy=True), *MANY_ROWS[128]),
}
"""sm_90: four warps are one wgmma of 64 rows; lazy, they hold its accumulators."""
BLACKWELL_MANY_ROWS = MANY_ROWS | {
    64: (Config(block_n=64, block_m=64, num_warps=8, num_stages=3, ctas_per_sm=2),),
    256: (Config(block_n=32, block_m=32, num_stages=3, ctas_per_sm=2),),
}
"""sm_100: larger tiles leave values in local memory there, under Triton 3.9 (width 64) or any (256)."""
BETWEEN = {
    64: (Config(block_n=64, num_warps=8, num_stages=3, ctas_per_sm=2),),
    128: (Config(block_n=32, num_warps=8, num_stages=3, ctas_per_sm=2),),
    256: (Config(block_n=32, block_m=32, num_warps=8, num_stages=3, ctas_per_sm=1),),
}
"""For rows between, as drafts of 4 with 8 query heads a KV head have: they spill from 4 warps or fewer."""
BLACKWELL_BETWEEN = BETWEEN | {256: BLACKWELL_MANY_ROWS[256]}
HOPPER_BETWEEN = {
    64: (replace(HOPPER_MANY_ROWS[64][0], least_m=64), *BETWEEN[64]),
    128: (replace(HOPPER_MANY_ROWS[128][0], least_m=64), *BETWEEN[128]),
    256: BETWEEN[256],
}
"""sm_90: a wgmma of 64 rows takes fewer instructions than mma of 32, and its idle rows no byte."""
HOPPER_QUANTISED = {
    64: replace(HOPPER_MANY_ROWS[64][0], least_m=64, num_stages=5),
    128: replace(HOPPER_MANY_ROWS[128][0], least_m=64, num_stages=4),
    256: Config(block_n=16, block_m=64, least_m=64, num_stages=6, ctas_per_sm=2, lazy=True),
}
"""sm_90, K and V in 8 bits: wgmma reads them from shared memory, where four warps put them widened. A tile is half the
bytes, so more of them are under way."""
HOPPER_QUANTISED_FEW = {
    64: (replace(HOPPER[64][0], ctas_per_sm=8), HOPPER_QUANTISED[64]),
    128: (replace(HOPPER[128][0], ctas_per_sm=8), HOPPER_QUANTISED[128]),
    256: (HOPPER_QUANTISED[256],),
}
"""The same for few packed rows, where a warp alone holds its tiles; of the widest heads not without local memory."""
EXACT = {
    64: (Config(block_n=16, block_m=16, num_stages=2, ctas_per_sm=4),),
    128: (Config(block_n=16, block_m=16, num_warps=8, num_stages=3, ctas_per_sm=2),),
    256: (Config(block_n=16, block_m=16, num_stages=3, ctas_per_sm=2),),
}
"""float32: products on the CUDA cores, from registers, which hold no more rows."""
BLACKWELL_EXACT = EXACT | {64: (replace(EXACT[64][0], num_warps=8, ctas_per_sm=3),)}  # 4 warps spill under Triton 3.6
EXACT_VARIANTS = EXACT | {
    64: (replace(BLACKWELL_EXACT[64][0], num_stages=3),),
    256: (replace(EXACT[256][0], num_warps=8, num_stages=2),),
}
"""With a window, sinks or a softcap, which take registers of their own."""
Tables = Mapping[str, Mapping[int, tuple[Config, ...]]]
"""How many packed rows, as `kind_of` says, and padded head width -> configurations, the default first."""
TABLES: Tables = {"few rows": HALF, "rows between": BETWEEN, "many rows": MANY_ROWS}
HOPPER_TABLES: Tables = {"few rows": HOPPER, "rows between": HOPPER_BETWEEN, "many rows": HOPPER_MANY_ROWS}
HOPPER_QUANTISED_TABLES: Tables = {"few rows": HOPPER_QUANTISED_FEW} | {
    kind: {width: (config,) for width, config in HOPPER_QUANTISED.items()} for kind in ("rows between", "many rows")
}
BLACKWELL_TABLES: Tables = {"few rows": HALF, "rows between": BLACKWELL_BETWEEN, "many rows": BLACKWELL_MANY_ROWS}
HOPPER_VARIANTS: Tables = {
    **HOPPER_TABLES,
    "few rows": HOPPER | {256: HALF[256]},
    "rows between": HOPPER_BETWEEN | {256: BLACKWELL_MANY_ROWS[256]},
}
"""sm_90, with a variant: others would spill at width 256."""


def kind_of(rows: int) -> str:
    """How many packed rows, as tables distinguish it."""
    return "few rows" if rows <= FEW else "many rows" if rows >= MANY else "rows between"


def usual_for(
    dtype: torch.dtype, width: int, rows: int, arch: int, variant: str = "", stored: torch.dtype | None = None
) -> tuple[Config, ...]:
    """The configurations for a padded head width, a number of packed rows and a variant where nothing is tuned.

    K and V are stored in `stored`, where that is another dtype.
    """
    if dtype == torch.float32:
        return (EXACT_VARIANTS if variant else BLACKWELL_EXACT if arch >= 100 else EXACT)[width]
    if arch == 90 and stored not in (None, dtype):
        return HOPPER_QUANTISED_TABLES[kind_of(rows)][width]
    hopper = HOPPER_VARIANTS if variant else HOPPER_TABLES
    tables = hopper if arch == 90 else BLACKWELL_TABLES if arch >= 100 else TABLES
    return tables[kind_of(rows)][width]


def block_rows(config: Config, rows: int) -> int:
    """Rows of a tile for so many packed rows."""
    return int(min(config.block_m, max(config.least_m, triton.next_power_of_2(rows))))


@cache
def splits_for(walks: int, longest: int, config: Config, sms: int) -> int:
    """Over how many programs the keys of a sequence are shared.

    The number whose slowest SM is done first: whole waves of programs over the slots of the machine, each as long as
    its share of the keys in whole tiles. Ties go to fewer splits.

    Args:
        walks: over a sequence's keys: sequences x KV heads of this GPU x tiles of packed rows.
        longest: keys of the longest sequence.
        config: tile and residency; its `splits` wins when set.
        sms: SMs of the device.
    """
    if config.splits:
        return config.splits
    tiles = max(1, triton.cdiv(longest, config.block_n))

    def cost(splits: int) -> float:
        waves = triton.cdiv(walks * splits, sms * config.ctas_per_sm)
        return float(waves * triton.cdiv(tiles, splits) * config.block_n + merge_keys(splits))

    return min(range(1, min(tiles, MOST_PIECES) + 1), key=cost)
