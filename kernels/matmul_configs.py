"""Launch parameters of the matmul kernel: tiles by dtype, scales, path and arch, and which of them finishes first.

Leaves the kernel, and what tuning finds, to `kernels.matmul_triton`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton

from kernels.matmul_problem import Problem
from kernels.scaled_products import BLOCKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters.

    Attributes:
        block_m, block_n, block_k: tile of C, and depth of a step.
        group_m: rows of tiles that are walked together.
        num_warps, num_stages: of the compiler.
        descriptors: "host", "device" (made by the kernel), or "" for pointers.
        epilogue_subtiles: pieces that C's tile is stored in; 2 halves the shared memory that the store takes.
        warp_specialize: ask for producer and consumer warps; engages with 4 warps and device-made descriptors.
        fast_accumulation: leave the sum of float8_e4m3fn products to the tensor core (about 14 bits on sm_90) instead
            of adding each step of K in float32 registers; has no say over scales of blocks.
    """

    block_m: int
    block_n: int
    block_k: int
    group_m: int = 8
    num_warps: int = 8
    num_stages: int = 4
    descriptors: str = "host"
    epilogue_subtiles: int = 1
    warp_specialize: bool = False
    fast_accumulation: bool = False


HALVES = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7)
"""Whether Triton can specialise the warps of a kernel that stores its tile in halves; before 3.7 it fails."""
SPECIALISED = tuple(
    Config(
        block_m=128, block_n=256, block_k=depth, num_warps=4, num_stages=stages, descriptors="device",
        epilogue_subtiles=1 + HALVES, warp_specialize=True,
    )
    for depth, stages in (((128, 2), (64, 4)) if HALVES else ((64, 3),))
)  # fmt: skip
HOPPER = (
    Config(block_m=128, block_n=256, block_k=128, num_stages=2, epilogue_subtiles=2, descriptors="device"),
    Config(block_m=128, block_n=256, block_k=64, num_stages=4, epilogue_subtiles=2, descriptors="device"),
    *SPECIALISED,
    Config(block_m=128, block_n=256, block_k=64, num_stages=4, epilogue_subtiles=2),
    Config(block_m=256, block_n=128, block_k=64, num_stages=3),
    Config(block_m=128, block_n=128, block_k=128, num_warps=4, num_stages=3),
    Config(block_m=128, block_n=128, block_k=64, num_warps=4, num_stages=3, descriptors="device", warp_specialize=True),
    Config(block_m=128, block_n=128, block_k=64, num_warps=4, num_stages=4),
    Config(block_m=64, block_n=128, block_k=128, num_warps=4, num_stages=4),
    Config(block_m=64, block_n=128, block_k=64, num_warps=4, num_stages=5),
)
RAGGED = (
    HOPPER[0],
    Config(block_m=128, block_n=128, block_k=128, num_warps=4, num_stages=3, epilogue_subtiles=2),
    Config(block_m=64, block_n=128, block_k=128, num_warps=4, num_stages=4, epilogue_subtiles=2),
)
"""Where C is stored by pointers, whose addresses take registers: pieces of a tile that leave room for them."""
POINTERS = (
    Config(block_m=128, block_n=128, block_k=32, num_warps=8, num_stages=4, descriptors=""),
    Config(block_m=64, block_n=64, block_k=32, num_warps=4, num_stages=4, descriptors=""),
)
OLDER_RAGGED = (
    Config(block_m=128, block_n=64, block_k=32, num_warps=8, num_stages=4, descriptors=""),
    POINTERS[1],
)
"""sm_80, N and K ragged: more addresses a thread, which the accumulators of a wider tile leave no registers for."""
TF32 = (
    Config(block_m=128, block_n=128, block_k=32, num_warps=8, num_stages=4),
    Config(block_m=64, block_n=128, block_k=32, num_warps=4, num_stages=4),
)
TF32_POINTERS = (Config(block_m=64, block_n=128, block_k=32, num_warps=8, num_stages=3, descriptors=""),)
EXACT = (Config(block_m=64, block_n=64, block_k=32, num_warps=8, num_stages=2, descriptors=""),)
EXACT_RAGGED = (Config(block_m=64, block_n=64, block_k=16, num_warps=8, num_stages=2, descriptors=""),)
FP8 = (
    Config(block_m=128, block_n=128, block_k=128, num_stages=4),
    Config(block_m=64, block_n=128, block_k=128, num_warps=4, num_stages=4),
    Config(block_m=128, block_n=256, block_k=128, num_stages=4, epilogue_subtiles=2, fast_accumulation=True),
    Config(block_m=128, block_n=128, block_k=128, num_stages=4, fast_accumulation=True),
)
"""float8_e4m3fn with descriptors; those that add in registers hold two tiles of float32 there."""
INT8 = (replace(FP8[2], fast_accumulation=False), *FP8[:2])
"""int8 with descriptors: sums stay in the tensor core; on sm_100, whose own has no int8 in Triton, 128 x 256 spills."""
FP8_BLOCKS = FP8[:2]
"""Scales of blocks are multiplied step by step; a ragged C is stored by pointers, whose addresses take registers."""
FP8_POINTERS = (
    Config(block_m=128, block_n=64, block_k=128, num_warps=8, num_stages=3, descriptors=""),
    Config(block_m=64, block_n=64, block_k=128, num_warps=4, num_stages=3, descriptors=""),
)
FP8_RAGGED = (Config(block_m=64, block_n=64, block_k=64, num_warps=8, num_stages=3, descriptors=""),)
"""Rows of no whole 16 bytes: an address for every one or two values."""
TILE_SPEED = {(128, 256): 1.0, (256, 128): 1.0, (128, 128): 0.85, (64, 128): 0.65, (128, 64): 0.65, (64, 64): 0.45}
"""Rate of a tile relative to the largest, from the share of a step that feeds the tensor cores; only ranks tiles."""


def configs_for(problem: Problem) -> tuple[Config, ...]:
    """The configurations that this kind of problem may use, whatever its sizes."""
    if problem.scaling:
        pointers = FP8_RAGGED if "K" in problem.ragged else FP8_POINTERS
        integer = INT8 if problem.arch < 100 else FP8_BLOCKS
        whole: tuple[Config, ...] = integer if problem.dtype == torch.int8 else FP8
        wide = FP8_BLOCKS if problem.scaling == BLOCKS or "N" in problem.ragged else whole
        return pointers if problem.refused else wide
    if problem.dtype == torch.float32:
        if not problem.allow_tf32:
            return EXACT_RAGGED if "K" in problem.ragged else EXACT
        return TF32_POINTERS if problem.refused else TF32
    if problem.refused:
        return OLDER_RAGGED if problem.arch < 90 and problem.ragged == "NK" else POINTERS
    return RAGGED if "N" in problem.ragged else HOPPER


def ranked(problem: Problem, sms: int) -> tuple[Config, ...]:
    """The configurations by when they finish: whole waves of tiles, each as long as its area over its speed.

    Ties go to the earlier entry, so the first of a list is the default for large problems.
    """

    def cost(config: Config) -> float:
        tiles = triton.cdiv(problem.M, config.block_m) * triton.cdiv(problem.N, config.block_n)
        area = config.block_m * config.block_n
        return float(triton.cdiv(tiles, sms) * area / TILE_SPEED[config.block_m, config.block_n])

    return tuple(sorted(configs_for(problem), key=cost))
