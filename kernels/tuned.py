"""Tuned launch configurations: the tables that `bench tune` prints, held by a kernel's file, looked up by what runs.

An entry holds for one device by its full name and one version of Triton: the best configuration moves between parts of
one architecture (H100 and H100 NVL) and between releases. Where no entry fits, the kernel's own rule decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import torch
import triton
from triton.runtime import driver

from kernels.launch import INTERPRETED

ConfigT = TypeVar("ConfigT")
DeviceKey = tuple[str, str]
"""The device's name as its driver gives it, and Triton's version: ("NVIDIA H100 80GB HBM3", "3.7.1")."""
Bucket = tuple[Any, ...]
"""What the choice depends on beside those: dtype, path and classes of sizes, as the kernel's `bucket_of` says."""
Table = Mapping[DeviceKey, Mapping[Bucket, ConfigT]]


def tuned(table: Table[ConfigT], bucket: Bucket, arch: int | None = None) -> ConfigT | None:
    """The configuration that was tuned for this device, Triton and bucket; None where there is none.

    Args:
        table: of one kernel.
        bucket: of the problem.
        arch: what is compiled for, 90 for sm_90; a device of another has no say. None for the device's own.
    """
    if not table:
        return None
    key = device_key(arch)
    return table.get(key, {}).get(bucket) if key else None


def tuned_first(
    table: Table[ConfigT], bucket: Bucket, configs: tuple[ConfigT, ...], arch: int | None = None
) -> tuple[ConfigT, ...]:
    """The configurations with the tuned one, if any, before all others; arguments as of `tuned`."""
    chosen = tuned(table, bucket, arch)
    return configs if chosen is None else (chosen, *(config for config in configs if config != chosen))


def device_key(arch: int | None = None) -> DeviceKey | None:
    """Of the GPU that kernels are launched on; None where they are interpreted, or compiled for a machine elsewhere."""
    if INTERPRETED or not torch.cuda.is_available() or driver.active.get_active_torch_device().type != "cuda":
        return None
    name, own_arch = _device(torch.cuda.current_device())
    return None if arch not in (None, own_arch) else (name, triton.__version__)


@cache
def _device(index: int) -> tuple[str, int]:
    major, minor = torch.cuda.get_device_capability(index)
    return torch.cuda.get_device_name(index), 10 * major + minor


def dtype_name(dtype: torch.dtype, allow_tf32: bool = False) -> str:
    """The compute dtype by its name in a bucket."""
    return "tfloat32" if allow_tf32 else str(dtype).removeprefix("torch.")


def size_class(size: int, least: int, most: int) -> int:
    """The power of two that holds a size, between `least` and `most`."""
    return max(least, min(most, int(triton.next_power_of_2(size))))
