"""Small kernels whose launch parameters plant what an upgrade or a change can make worse without a wrong result.

Each is an op of its own, so that a sound and a spoilt configuration of one case can be compiled and compared.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from bench.case import Case
from kernels import matmul
from kernels.launch import use_allocator

SIZE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Launch parameters; each kernel reads some of them."""

    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    num_warps: int = 4
    num_stages: int = 3
    warp_specialize: bool = False
    imprecise: int | None = None
    masked: bool = False


@triton.jit
def _described_kernel(
    a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PROGRAMS: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    a_blocks = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    b_blocks = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
    c_blocks = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    columns = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * columns
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, warp_specialize=WARP_SPECIALIZE):
        m = tile // columns * BLOCK_M
        n = tile % columns * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, tl.cdiv(K, BLOCK_K)):
            x = a_blocks.load([m, k * BLOCK_K])
            w = b_blocks.load([n, k * BLOCK_K])
            acc = tl.dot(x, w.T, acc)
        c_blocks.store([m, n], acc.to(c.dtype.element_ty))


@triton.jit
def _pointed_kernel(
    a, b, c, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IMPRECISE: tl.constexpr,
    HINT: tl.constexpr,
):  # fmt: skip
    ms = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    ns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(a + ms[:, None] * K + (k + ks)[None, :])
        w = tl.load(b + ns[None, :] * K + (k + ks)[:, None], eviction_policy=HINT)
        acc = tl.dot(x, w, acc, max_num_imprecise_acc=IMPRECISE)
    tl.store(c + ms[:, None] * K + ns[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def _streamed_kernel(b, c, K, last, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr):
    ns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for k in range(0, K, BLOCK_K):
        spots = b + ns[:, None] * K + (k + ks)[None, :]
        if MASKED:
            acc += tl.load(spots, mask=(k + ks < last)[None, :], other=0.0).to(tl.float32)
        else:
            acc += tl.load(spots).to(tl.float32)
    tl.store(c + ns, tl.sum(acc, 1).to(c.dtype.element_ty))


def described(a: torch.Tensor, b: torch.Tensor, config: Planted, **rest: Any) -> torch.Tensor:
    """C = A @ B by descriptors that the kernel makes; can ask for specialised warps."""
    use_allocator(a.device)
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    _described_kernel[(132,)](
        a, b.t(), c, M, N, K, BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, PROGRAMS=132,
        WARP_SPECIALIZE=config.warp_specialize, num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return c


def pointed(hint: str, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """C = A @ B by pointers, with an eviction policy for B, from elements of a dtype."""

    def provider(a: torch.Tensor, b: torch.Tensor, config: Planted, **rest: Any) -> torch.Tensor:
        c = torch.empty((a.shape[0], b.shape[1]), dtype=torch.bfloat16, device=a.device)
        grid = (triton.cdiv(a.shape[0], config.block_m), triton.cdiv(b.shape[1], config.block_n))
        _pointed_kernel[grid](
            a.to(dtype), b.to(dtype), c, a.shape[1], BLOCK_M=config.block_m, BLOCK_N=config.block_n,
            BLOCK_K=config.block_k, IMPRECISE=config.imprecise, HINT=hint, num_warps=config.num_warps,
            num_stages=config.num_stages,
        )  # fmt: skip
        return c

    return provider


def streamed(a: torch.Tensor, b: torch.Tensor, config: Planted, **rest: Any) -> torch.Tensor:
    """Sums of B's columns, read straight into registers; masked, the compiler no longer knows what is whole."""
    c = torch.empty(b.shape[1], dtype=b.dtype, device=b.device)
    _streamed_kernel[(b.shape[1] // 8,)](
        b, c, b.shape[0], b.shape[0] - 1, BLOCK_N=8, BLOCK_K=1024, MASKED=config.masked, num_warps=config.num_warps
    )
    return c


def case_of(name: str, provider: Callable[..., torch.Tensor]) -> Case:
    """A case of one of these kernels on square bfloat16 inputs."""
    op = replace(matmul.OP, name=name, providers={"triton": provider})
    return Case(op, "triton", matmul.describe_axes({"M": SIZE, "N": SIZE, "K": SIZE}, "bfloat16", ("planted",)))


FP8 = case_of("fp8", pointed("", torch.float8_e4m3fn))
HINTED = case_of("hinted", pointed("evict_first", torch.bfloat16))
DESCRIBED = case_of("described", described)
STREAMED = case_of("streamed", streamed)
