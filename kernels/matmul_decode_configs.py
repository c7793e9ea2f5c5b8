"""Launch parameters of the matmul_decode kernels: forms and tiles by dtype, rows and arch, and the split rule.

Leaves the kernels, and what tuning finds, to `kernels.matmul_decode_triton`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton

from kernels.pieces import MOST_BYTES
from kernels.scaled_products import BLOCKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters.

    Attributes:
        form: gemv, tile or swap.
        block_n, block_k: weights of a tile.
        num_warps, num_stages: of the compiler.
        ctas_per_sm: programs that an SM holds; the split rule fills them.
        splits: programs that share K; 0 lets `splits_for` decide.
        pdl: launch the reduction early, to wait inside for the first kernel (programmatic dependent launch).
        fast_accumulation: as of `kernels.matmul_configs.Config`.
    """

    form: str
    block_n: int
    block_k: int
    num_warps: int = 4
    num_stages: int = 4
    ctas_per_sm: int = 2
    splits: int = 0
    pdl: bool = False
    fast_accumulation: bool = False


ONE_ROW = (
    Config(form="tile", block_n=64, block_k=128, num_stages=5, ctas_per_sm=2),
    Config(form="gemv", block_n=8, block_k=1024, num_stages=2, ctas_per_sm=4),
    Config(form="gemv", block_n=16, block_k=512, num_stages=2, ctas_per_sm=4),
    Config(form="tile", block_n=64, block_k=128, num_stages=5, ctas_per_sm=2, pdl=True),
)
FEW_ROWS = (
    Config(form="tile", block_n=64, block_k=128, num_stages=5, ctas_per_sm=2),
    Config(form="tile", block_n=128, block_k=128, num_stages=4, ctas_per_sm=1),
    Config(form="swap", block_n=64, block_k=128, num_stages=4, ctas_per_sm=2),
)
MANY_ROWS = (
    Config(form="swap", block_n=64, block_k=128, num_stages=4, ctas_per_sm=1),
    Config(form="tile", block_n=64, block_k=128, num_stages=4, ctas_per_sm=1),
)
WIDE = Config(form="tile", block_n=128, block_k=128, num_stages=4, ctas_per_sm=1)
"""On sm_90: fewest instructions per weight, with 128 KiB of buffers on every SM that has a program."""
HOPPER = {
    1: (WIDE, *ONE_ROW[1:3], replace(WIDE, pdl=True), ONE_ROW[0]),
    16: (WIDE, replace(WIDE, form="swap"), FEW_ROWS[0], FEW_ROWS[2]),
    64: (WIDE, replace(WIDE, form="swap"), MANY_ROWS[0], MANY_ROWS[1]),
}
RAGGED = (
    Config(form="tile", block_n=64, block_k=64, num_stages=5, ctas_per_sm=2),
    Config(form="tile", block_n=64, block_k=128, num_warps=8, num_stages=4, ctas_per_sm=1),
)
"""Where rows are no whole pieces of 16 bytes: many addresses a thread, so small tiles."""
BLACKWELL = (
    Config(form="tile", block_n=64, block_k=128, num_warps=8, num_stages=4, ctas_per_sm=1),
    Config(form="swap", block_n=64, block_k=64, num_stages=4, ctas_per_sm=2),
)
"""sm_100: what keeps its registers there for every number of rows."""
FLOAT32 = (Config(form="tile", block_n=32, block_k=32, num_warps=8, num_stages=4, ctas_per_sm=2),)
FLOAT32_ONE_ROW = (Config(form="gemv", block_n=8, block_k=512, num_stages=2, ctas_per_sm=4), *FLOAT32)
FP8_FEW = (
    Config(form="swap", block_n=128, block_k=128, num_stages=5, ctas_per_sm=2),
    Config(form="swap", block_n=64, block_k=128, num_stages=5, ctas_per_sm=4),
)
FP8_MANY = (
    Config(form="tile", block_n=128, block_k=128, num_stages=4, ctas_per_sm=2),
    Config(form="swap", block_n=64, block_k=128, num_stages=4, ctas_per_sm=3),
)
"""float8_e4m3fn on sm_90: both operands straight from shared memory, by wgmma of 16 to 128 columns."""
FP8 = (Config(form="swap", block_n=64, block_k=128, num_stages=4, ctas_per_sm=2),)
"""On other archs, and where rows are no whole pieces of 16 bytes."""
FEW, MOST_ROWS, MAX_SPLITS = 16, 64, 16
REDUCE_STEPS = 2
"""What a second kernel and its partials cost, in steps of one split's walk; only ranks numbers of splits."""


def is_ragged(K: int, dtype: torch.dtype) -> bool:
    """Whether rows of K elements are no whole pieces of 16 bytes, so that loads are narrow."""
    return K * dtype.itemsize % MOST_BYTES != 0


def row_class(M: int) -> int:
    """The most rows that share a table: 1, 16 or 64."""
    return 1 if M == 1 else FEW if M <= FEW else MOST_ROWS


def by_rule(M: int, K: int, dtype: torch.dtype, arch: int, scaling: int = 0) -> tuple[Config, ...]:
    """The configurations for a number and a length of rows, the likeliest first."""
    if scaling:
        narrow = is_ragged(K, dtype) or not 90 <= arch < 100
        usual = FP8 if narrow else FP8_FEW if M <= FEW else FP8_MANY
        return (
            usual if scaling == BLOCKS or dtype == torch.int8 else (*usual, replace(usual[0], fast_accumulation=True))
        )
    if dtype == torch.float32:
        return FLOAT32_ONE_ROW if M == 1 else FLOAT32
    if is_ragged(K, dtype):
        return (*RAGGED, *ONE_ROW[1:3]) if M == 1 else RAGGED
    by_rows = HOPPER if arch >= 90 else {1: ONE_ROW, FEW: FEW_ROWS, MOST_ROWS: MANY_ROWS}
    return BLACKWELL if arch >= 100 else by_rows[row_class(M)]


def splits_for(N: int, K: int, config: Config, sms: int) -> int:
    """Over how many programs K is shared: the number whose slowest SM is done first.

    Whole waves of programs over the slots of the machine, each as many steps long as its share of K. Ties go to fewer
    splits; a reduction costs REDUCE_STEPS.
    """
    if config.splits:
        return config.splits
    tiles, steps = triton.cdiv(N, config.block_n), max(1, triton.cdiv(K, config.block_k))
    slots = sms * config.ctas_per_sm

    def cost(splits: int) -> float:
        return float(triton.cdiv(tiles * splits, slots) * triton.cdiv(steps, splits) + (splits > 1) * REDUCE_STEPS)

    return min(range(1, min(steps, MAX_SPLITS) + 1), key=cost)
