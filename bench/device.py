"""Which device a run is on: the GPU when torch can use it, the CPU only when there is none or it was asked for.

A GPU that torch cannot use is an error that says how to mend it, never a silent run on the CPU: a torch for CUDA 13 on
an older driver just says `is_available() == False`. Leaves what the device is to `bench.environment`, and the exit
code (3) to the command.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Major version of the CUDA a torch is built for -> oldest driver branch that runs it, by minor-version compatibility.

Source: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
"""
OFFERED_CUDA = 12
"""The older CUDA that torch >= 2.11 is still built for."""
ON_CPU = "Or run on the CPU: --device cpu."

DEV = Path("/dev")
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
IMAGE_ERRORS = (
    "kernel image is invalid",
    "no kernel image is available",
    "unsupported toolchain",
    "unsupported PTX version",
    "driver version is insufficient",
)


class DeviceError(RuntimeError):
    """The device asked for, or the GPU that is here, cannot be used; the message says why and what mends it."""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What the installed torch is built for, and whether it reaches a GPU."""

    version: str
    cuda: str | None
    usable: bool
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Sighting:
    """GPUs seen without torch: who saw them, what they are (name and architecture as far as told), their driver."""

    seen_by: str
    gpus: tuple[str, ...]
    driver: str | None


def choose_device(asked: str | None) -> str:
    """The device to run on, "cuda" or "cpu".

    Args:
        asked: "cuda", "cpu", or None for the GPU where there is one.

    Raises:
        DeviceError: a GPU is here (or was asked for) that torch cannot use.
        ValueError: another device.
    """
    if asked not in (None, "cuda", "cpu"):
        raise ValueError(f"--device {asked}: wanted cuda or cpu; CUDA_VISIBLE_DEVICES=1 chooses one GPU of several")
    if asked == "cpu":
        return "cpu"
    build = torch_build()
    if build.usable:
        return "cuda"
    seen = nvidia_gpus()
    if seen is not None:
        raise DeviceError(_unusable(build, seen))
    if asked == "cuda":
        raise DeviceError(
            f"--device cuda: no NVIDIA GPU on this {platform.system()} machine (asked NVML, nvidia-smi and "
            f"{DEV}/nvidia*). Run where `nvidia-smi` lists one, in a container with --gpus all. {ON_CPU}"
        )
    return "cpu"


def torch_build() -> TorchBuild:
    """Asks torch; its reason, where it has one, is kept for the message instead of its warning."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usable = torch.cuda.is_available() and torch.version.hip is None
        trouble = ""
        if not usable and torch.version.cuda is not None:
            try:
                torch.cuda.init()  # type: ignore[no-untyped-call]
            except (RuntimeError, AssertionError) as error:
                trouble = str(error).strip().split("\n")[0]
    return TorchBuild(str(torch.__version__), torch.version.cuda, usable, trouble)


def nvidia_gpus() -> Sighting | None:
    """The GPUs of this machine by the first witness that sees any; None when all see none."""
    return seen_by_nvml() or seen_by_nvidia_smi() or seen_in_dev()


def seen_by_nvml() -> Sighting | None:
    """What NVML counts; it ignores CUDA_VISIBLE_DEVICES."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        driver = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
    gpus = []
    for handle in handles:
        try:
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            gpus.append(f"{pynvml.nvmlDeviceGetName(handle)} (sm_{major}{minor})")
        except pynvml.NVMLError:
            gpus.append("a GPU that does not tell its name")
    return Sighting("NVML", tuple(gpus), driver) if gpus else None


def seen_by_nvidia_smi() -> Sighting | None:
    """What nvidia-smi lists."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.rpartition(",") for line in done.stdout.splitlines() if "," in line]
    if not rows:
        return None
    driver = rows[0][2].strip()
    return Sighting("nvidia-smi", tuple(row[0].strip() for row in rows), driver if driver[:1].isdecimal() else None)


def seen_in_dev() -> Sighting | None:
    """Device nodes, which stay when the driver's libraries are missing or do not fit its kernel module."""
    nodes = tuple(str(node) for node in sorted(DEV.glob("nvidia[0-9]*")))
    if not nodes:
        return None
    try:
        module = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", KERNEL_MODULE.read_text(encoding="utf-8"))
    except OSError:
        module = None
    return Sighting(f"{DEV}/nvidia*", nodes, module[1] if module else None)


def needed_driver(cuda: str | None) -> int | None:
    """The oldest driver branch for a torch built for `cuda` ("13.0"); None when unknown."""
    return OLDEST_DRIVER.get(int(cuda.split(".")[0])) if cuda else None


def explain_cuda_error(message: str) -> str:
    """Adds driver, needed driver and GPU to an error that a driver or a GPU of another generation causes.

    Other messages come back as they are.
    """
    if not any(text in message for text in IMAGE_ERRORS):
        return message
    build, seen = torch_build(), nvidia_gpus()
    gpus = ", ".join(dict.fromkeys(seen.gpus)) if seen else "not reported"
    driver = (seen.driver if seen else None) or "not reported"
    return f"{message} [GPU: {gpus}; driver: {driver}; {_needs(build)}]"


def _needs(build: TorchBuild) -> str:
    if build.cuda is None:
        return f"torch {build.version} is not built for CUDA"
    need = needed_driver(build.cuda)
    wanted = f"driver {need} or newer" if need else "the driver of that CUDA's release"
    return f"torch {build.version}, built for CUDA {build.cuda}, needs {wanted}"


def _unusable(build: TorchBuild, seen: Sighting) -> str:
    """Why torch does not reach a GPU that is here, and the line that mends it."""
    head = f"{', '.join(dict.fromkeys(seen.gpus))} (seen by {seen.seen_by}) cannot be used: "
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    need = needed_driver(build.cuda)
    if visible is not None and visible.strip() in ("", "-1"):
        return f"{head}CUDA_VISIBLE_DEVICES={visible!r} hides every GPU. Unset it: unset CUDA_VISIBLE_DEVICES. {ON_CPU}"
    if build.cuda is None:
        return (
            f"{head}{_needs(build)} (driver: {seen.driver or 'not reported'}). "
            f"Install one that is: {sys.executable} -m pip install --force-reinstall "
            f"torch=={build.version.split('+')[0]}. {ON_CPU}"
        )
    if seen.driver is None:
        return (
            f"{head}no driver answers; {_needs(build)}. Install the driver, or start the container with "
            f"--gpus all. {ON_CPU}"
        )
    if need is not None and int(seen.driver.split(".")[0]) < need:
        return f"{head}driver {seen.driver} is too old: {_needs(build)}. {_newer_driver(need, seen.driver)} {ON_CPU}"
    hidden = f" CUDA_VISIBLE_DEVICES={visible!r} may name no GPU of this machine: unset it." if visible else ""
    return (
        f"{head}driver {seen.driver} should do ({_needs(build)}), but torch says: "
        f"{build.trouble or 'no CUDA device'}.{hidden} `nvidia-smi` shows whether MIG mode has no slice or the GPU is "
        f"lost; on a machine with NVSwitch: sudo systemctl start nvidia-fabricmanager. {ON_CPU}"
    )


def _newer_driver(need: int, driver: str) -> str:
    """The way out of an old driver; an older CUDA is one only where this driver runs it."""
    line = f"Install a newer one, on Ubuntu: sudo apt-get install nvidia-driver-{need} && sudo reboot."
    if OLDEST_DRIVER[OFFERED_CUDA] <= int(driver.split(".")[0]) < need:
        line += f" Or install torch built for CUDA {OFFERED_CUDA}, which this driver runs."
    return line
