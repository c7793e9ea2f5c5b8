"""How Triton kernels of this suite are launched: for which arch, on how many SMs, with which descriptors.

Under the interpreter (TRITON_INTERPRET=1) there is no driver: kernels are chosen as for sm_90, whose paths use every
feature, and as if there were a few SMs, so that persistent loops and splits are walked more than once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import triton
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
INTERPRETED_SMS = 3
OPTIONS: dict[str, Any] = {"enable_fp_fusion": True}
"""Of every launch: what Triton 3.10 will no longer do by itself."""
TMA_ALIGNMENT = 16
USUAL_SMS = {80: 108, 86: 84, 89: 142, 90: 132, 100: 148, 103: 148, 120: 170}
"""A100, A40, L40S, H100 SXM, B200, B300, RTX 5090."""


def target_arch() -> int:
    """The compute capability that kernels are compiled for, as 90 for sm_90."""
    return 90 if INTERPRETED else int(driver.active.get_current_target().arch)


def sm_count(arch: int | None = None) -> int:
    """SMs of the current device; of an arch's usual part where there is no device, for choosing ahead of time."""
    if INTERPRETED:
        return INTERPRETED_SMS
    try:
        active = driver.active
        return int(active.utils.get_device_properties(active.get_current_device())["multiprocessor_count"])
    except RuntimeError:
        if arch is None:
            raise
        return USUAL_SMS[arch]


def tma_refusal(tensor: torch.Tensor, name: str) -> str:
    """Why a descriptor cannot be made of a tensor; '' when it can.

    The tensor memory accelerator wants the last stride 1, and the base and all other strides in whole 16 bytes.
    """
    if tensor.stride(-1) != 1:
        return f"{name}: inner stride is {tensor.stride(-1)}, not 1"
    strides = [stride * tensor.element_size() for stride in tensor.stride()[:-1]]
    if any(stride % TMA_ALIGNMENT or stride <= 0 for stride in strides):
        return f"{name}: rows are {strides} bytes apart, not multiples of {TMA_ALIGNMENT}"
    if tensor.data_ptr() % TMA_ALIGNMENT:
        return f"{name}: starts at an address that is not a multiple of {TMA_ALIGNMENT}"
    return ""


def descriptor(tensor: torch.Tensor, block: Sequence[int]) -> TensorDescriptor:
    """A host-made descriptor of a tensor for blocks of this shape."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


def use_allocator(device: torch.device) -> None:
    """Gives device-made descriptors their scratch memory. The allocator is one per thread, so it is set per launch."""

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int8, device=device)

    triton.set_allocator(allocate)
