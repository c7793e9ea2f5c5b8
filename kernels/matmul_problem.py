"""What the matmul kernel's choice of path and configuration looks at. Leaves the configurations to `matmul_triton`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.launch import TMA_ALIGNMENT, tma_refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What the choice of a configuration depends on; `refused` is why the inputs take pointers, '' for descriptors.

    `scaling` is 0, ROWS or BLOCKS of `kernels.scaled_products`.
    """

    arch: int
    M: int
    N: int
    K: int
    dtype: torch.dtype
    allow_tf32: bool
    refused: str
    scaling: int = 0

    @property
    def out_dtype(self) -> torch.dtype:
        """Of C: that of A and B, bfloat16 of float8_e4m3fn."""
        return torch.bfloat16 if self.scaling else self.dtype

    @property
    def ragged(self) -> str:
        """Of "N" and "K" those that make rows of no whole pieces of 16 bytes: N those of C, K those of A and B."""
        sizes = {"N": (self.N, self.out_dtype), "K": (self.K, self.dtype)}
        return "".join(axis for axis, row in sizes.items() if has_ragged_rows(*row))


def problem_of(a: torch.Tensor, b: torch.Tensor, arch: int, allow_tf32: bool, scaling: int = 0) -> Problem:
    """The problem of inputs a [M, K] and b [K, N]."""
    (M, K), N = a.shape, b.shape[1]
    refused = path_for(a, b, arch, allow_tf32)
    return Problem(arch=arch, M=M, N=N, K=K, dtype=a.dtype, allow_tf32=allow_tf32, refused=refused, scaling=scaling)


def path_for(a: torch.Tensor, b: torch.Tensor, arch: int, allow_tf32: bool) -> str:
    """Why the inputs take pointers; '' when they take descriptors."""
    if arch < 90:
        return f"sm_{arch} has no tensor memory accelerator"
    if a.dtype == torch.float32 and not allow_tf32:
        return "exact float32 runs on the CUDA cores, from registers"
    if 0 in (*a.shape, *b.shape):
        return "an empty dimension"
    return tma_refusal(a, "a") or tma_refusal(b.t(), "b transposed")


def has_ragged_rows(length: int, dtype: torch.dtype) -> bool:
    """Whether rows of so many elements are no whole pieces of 16 bytes, so that no descriptor can take them."""
    return length * dtype.itemsize % TMA_ALIGNMENT != 0
