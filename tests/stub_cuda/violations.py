"""Launches that an H100's driver refuses, and some that are right, one function each; run in the stub's child."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
import triton
import triton.language as tl
from toy_ops import OVER_SHARED, SPILLING, TOY, describe, toy_matmul
from triton.tools.tensor_descriptor import TensorDescriptor

from bench.case import Case
from bench.compile import compile_case
from stub_cuda.child import Observation, capturing, libcuda, observe


@triton.jit
def _copy_kernel(source, target, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + i, tl.load(source + i, mask=i < n), mask=i < n)


@triton.jit
def _copy_block_kernel(source, target):
    target.store([0, 0], source.load([0, 0]))


@triton.jit
def _copy_with_own_descriptors_kernel(source, target, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    x = tl.make_tensor_descriptor(source, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    y = tl.make_tensor_descriptor(target, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    y.store([0, 0], x.load([0, 0]))


@triton.jit
def _zero_kernel(target):
    tl.store(target, 0.0)


def meta(*shape: int) -> torch.Tensor:
    """A bfloat16 tensor that is an address alone."""
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def copy_block(tensor: torch.Tensor, block: Sequence[int]) -> None:
    """Copies one block of a tensor through host-made descriptors."""
    descriptor = TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))
    _copy_block_kernel[(1,)](descriptor, descriptor)


def unchecked_copy_block(tensor: torch.Tensor, stride: int) -> None:
    """With a base or stride that TensorDescriptor's own check refuses, set behind its back: the driver's turn."""
    descriptor = TensorDescriptor(meta(64, 64), [64, 64], [64, 1], [64, 64])
    descriptor.base, descriptor.strides = tensor, [stride, 1]
    _copy_block_kernel[(1,)](descriptor, descriptor)


def copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copies elements."""
    n = source.numel()
    _copy_kernel[(triton.cdiv(n, 256),)](source, target, n, BLOCK=256)


def copy_with_own_descriptors() -> None:
    """Device-made descriptors, which take scratch memory from Triton's allocator."""
    _copy_with_own_descriptors_kernel[(4,)](meta(256, 256), meta(256, 256), 256, 256, BLOCK_M=64, BLOCK_N=64)


def copy_with_allocator() -> None:
    """The allocator is set, as a wrapper must."""
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="meta"))
    copy_with_own_descriptors()


def unwarmed_in_capture() -> Observation:
    """The second launch's input starts 2 bytes off the alignment that the first was compiled for."""
    copy(meta(1000), meta(1000))
    with capturing():
        return observe(lambda: copy(meta(1001)[1:], meta(1000)))


def warmed_in_capture() -> Observation:
    """Both alignments were launched before."""
    copy(meta(1000), meta(1000))
    copy(meta(1001)[1:], meta(1000))
    with capturing():
        return observe(lambda: copy(meta(1001)[1:], meta(1000)))


def allocation_in_capture() -> Observation:
    """By the driver API itself, as no pool of a graph does."""
    pointer, codes = ctypes.c_uint64(), list[int]()
    with capturing():
        seen = observe(lambda: codes.append(libcuda().cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1024))))
    seen.error = f"CUDA error {codes[0]}"
    return seen


def bare_map(dims: Sequence[int], row_bytes: int, box: Sequence[int], swizzle: int = 0) -> Observation:
    """A bfloat16 tensor map of rank 2, fast axis first, past the checks of Triton, which also cuts wide boxes."""
    bfloat16, count = 9, 2
    sizes, sides = (ctypes.c_uint64 * count)(*dims), (ctypes.c_uint32 * count)(*box)
    steps, strides = (ctypes.c_uint32 * count)(1, 1), (ctypes.c_uint64 * 1)(row_bytes)
    cuda, target, base = libcuda(), (ctypes.c_char * 128)(), ctypes.c_void_p(1 << 40)
    codes = list[int]()
    seen = observe(
        lambda: codes.append(
            cuda.cuTensorMapEncodeTiled(target, bfloat16, count, base, sizes, strides, sides, steps, 0, swizzle, 0, 0)
        )
    )
    seen.error = f"CUDA error {codes[0]}"
    return seen


MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


def bare_launch(threads: int, shared_bytes: int = 0, *, ask: int = 0) -> Observation:
    """The toy matmul's own cubin, launched past Triton with another block or shared memory than it was compiled for.

    Args:
        threads, shared_bytes: of the block.
        ask: shared memory to opt in to first.
    """
    [compiled] = compile_case(Case(TOY, "triton", describe(256, 256, 256)), 90, SPILLING)
    module, function, cuda = ctypes.c_void_p(), ctypes.c_void_p(), libcuda()
    cuda.cuModuleLoadData(ctypes.byref(module), compiled.cubin)
    cuda.cuModuleGetFunction(ctypes.byref(function), module, compiled.kernel.encode())
    config = LaunchConfig((ctypes.c_uint * 3)(1, 1, 1), (ctypes.c_uint * 3)(threads, 1, 1), shared_bytes, None, None, 0)
    codes = list[int]()

    def launch() -> None:
        codes.append(cuda.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, ask) if ask else 0)
        codes.append(cuda.cuLaunchKernelEx(ctypes.byref(config), function, None, None))

    seen = observe(launch)
    seen.error = f"CUDA error {max(codes)}"
    seen.launches[0]["cuobjdump_registers"] = compiled.registers
    return seen


LAUNCHES: dict[str, Callable[[], object]] = {
    "right": lambda: copy(meta(1000), meta(1000)),
    "right_block": lambda: copy_block(meta(64, 64), (64, 64)),
    "narrow_box": lambda: copy_block(meta(64, 64), (16, 4)),
    "misaligned_base": lambda: unchecked_copy_block(meta(64 * 64 + 1)[1:].view(64, 64), 64),
    "misaligned_stride": lambda: unchecked_copy_block(meta(64, 65)[:, :64], 65),
    "stride_over_2_40": lambda: unchecked_copy_block(meta(64, 64), 1 << 40),
    "with_allocator": copy_with_allocator,
    "no_allocator": copy_with_own_descriptors,
    "grid_y_70000": lambda: _zero_kernel[(1, 70_000)](meta(4)),
    "grid_product_2_31": lambda: _zero_kernel[(65_536, 32_768)](meta(4)),
    "grid_product_wraps": lambda: _zero_kernel[(65_538, 65_535)](meta(4)),
    "grid_empty": lambda: _zero_kernel[(0,)](meta(4)),
    "over_shared": lambda: toy_matmul(meta(512, 512), meta(512, 512).t(), config=OVER_SHARED),
    "hundred_gb": lambda: toy_matmul(meta(1_000_000, 50_000), meta(64, 50_000).t()),
}
OBSERVED: dict[str, Callable[[], Observation]] = {
    "unwarmed_in_capture": unwarmed_in_capture,
    "warmed_in_capture": warmed_in_capture,
    "allocation_in_capture": allocation_in_capture,
    "bare_map": lambda: bare_map((1024, 64), 2048, (64, 64), swizzle=3),
    "long_box": lambda: bare_map((1024, 512), 2048, (64, 512), swizzle=3),
    "over_swizzle": lambda: bare_map((1024, 64), 2048, (128, 64), swizzle=3),
    "dimension_over_2_32": lambda: bare_map((1024, 2**32 + 1), 2048, (64, 64), swizzle=3),
    "empty_dimension": lambda: bare_map((1024, 0), 2048, (64, 64), swizzle=3),
    "too_many_registers": lambda: bare_launch(1024),
    "right_bare_launch": lambda: bare_launch(128, 40_000),
    "shared_not_asked_for": lambda: bare_launch(128, 60_000),
    "shared_asked_for": lambda: bare_launch(128, 60_000, ask=60_000),
    "shared_over_most": lambda: bare_launch(128, 40_000, ask=232_449),
    "block_of_2048": lambda: bare_launch(2048),
}


def everything() -> dict[str, Any]:
    """What the stub saw of each, by name."""
    seen = {name: observe(launch) for name, launch in LAUNCHES.items()}
    seen |= {name: function() for name, function in OBSERVED.items()}
    return {name: asdict(observation) for name, observation in seen.items()}
