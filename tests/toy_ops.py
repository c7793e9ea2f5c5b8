"""A small op with a Triton provider, for tests of what proves kernels; it comes before and beside the real ones."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from kernels import matmul
from kernels.spec import Inputs, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters of the toy matmul."""

    block_m: int = 64
    block_n: int = 64
    block_k: int = 32
    num_warps: int = 4
    num_stages: int = 2


SPILLING = Config(block_m=128, block_n=256, block_k=64, num_stages=3)
"""64 K accumulators in the registers of 4 warps: 256 a thread, more than there are."""
OVER_SHARED = Config(block_m=128, block_n=128, block_k=64, num_stages=8)
"""Seven steps of 32 KiB in flight: more than a block of an H100 has."""


@triton.jit
def _toy_matmul_kernel(
    a, b, c, M, N, K, stride_a, stride_b, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    ms = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    ns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        inside = k + ks < K
        x = tl.load(a + ms[:, None] * stride_a + (k + ks)[None, :], mask=(ms < M)[:, None] & inside[None, :], other=0.0)
        w = tl.load(b + ns[None, :] * stride_b + (k + ks)[:, None], mask=inside[:, None] & (ns < N)[None, :], other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    tl.store(c + ms[:, None] * N + ns[None, :], acc.to(c.dtype.element_ty), mask=(ms < M)[:, None] & (ns < N)[None, :])


def toy_matmul(
    a: torch.Tensor, b: torch.Tensor, *, allow_tf32: bool = False, config: Config | None = None
) -> torch.Tensor:
    """[M, N] of a [M, K] and b [K, N], both K-major."""
    config = config or Config()
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(M, config.block_m), triton.cdiv(N, config.block_n))
    _toy_matmul_kernel[grid](
        a, b, c, M, N, K, a.stride(0), b.stride(1),
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        num_warps=config.num_warps, num_stages=config.num_stages, enable_fp_fusion=True,
    )  # fmt: skip
    return c


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """Those of matmul; here so that another process finds the op by the module of its inputs."""
    return matmul.make_inputs(workload, device, seed)


def describe(M: int, N: int, K: int, dtype: str = "bfloat16") -> Workload:
    """A workload of the toy op."""
    return matmul.describe_axes({"M": M, "N": N, "K": K}, dtype, ("toy",))


def launch_nothing(**inputs: Any) -> torch.Tensor:
    """A provider that forgot its kernel."""
    return torch.empty((inputs["a"].shape[0], inputs["b"].shape[1]), dtype=inputs["a"].dtype, device=inputs["a"].device)


PROVIDERS: Mapping[str, Any] = {"triton": toy_matmul, "nothing": launch_nothing, "torch": matmul.matmul_torch}
TOY = replace(
    matmul.OP,
    name="toy_matmul",
    make_inputs=make_inputs,
    providers=PROVIDERS,
    check_workloads=(describe(100, 72, 40, "float16"), describe(5, 3, 1, "float32")),
)
