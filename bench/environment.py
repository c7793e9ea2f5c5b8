"""What machine and software a run is on, as they themselves report it: fills `bench.record.Environment`.

A field that nothing reports, or whose query is refused, is None and `note` says why; nothing is guessed from a name.
Also finds the NVML device that is torch's GPU, for whoever reads its clocks. Leaves choosing the device to
`bench.device`, what changes during a run to `bench.telemetry`, and peaks to the analysis.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bench.record import Environment

ROOT = Path(__file__).resolve().parent.parent
CPU_INFO = Path("/proc/cpuinfo")
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
MIB = 2**20
CPU_CACHE_CAP_BYTES = 256 * MIB
"""A virtual machine reports its host's whole last level; rotating inputs over three times that would not fit."""
CPU_CACHE_ASSUMED_BYTES = 32 * MIB
PROVIDER_PACKAGES = ("flash-attn", "flashinfer-python", "vllm")


class NoNvmlError(RuntimeError):
    """NVML cannot tell about torch's GPU; the message says why."""


class NvmlDevice:
    """NVML's view of the GPU that torch uses. A refused query is None, and `refused` keeps its name.

    Attributes:
        handle: the physical GPU's, also where torch has a MIG slice of it: clocks and power are the whole card's.
        uuid: that of what torch has, the slice's where it is one.
        is_mig_slice: whether torch has a slice.
        refused: names of the queries that got no answer.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle
        self.is_mig_slice = False
        self.refused: list[str] = []
        self.uuid: str | None = self.ask("nvmlDeviceGetUUID")
        try:
            if nvml.nvmlDeviceIsMigDeviceHandle(handle):
                self.is_mig_slice = True
                self.handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        except (nvml.NVMLError, AttributeError):
            pass  # a driver that cannot say knows no slices: nothing was refused

    def ask(self, query: str, *arguments: Any) -> Any:
        """One query about the device by the name of its function, or None when refused or unknown."""
        try:
            return getattr(self.nvml, query)(self.handle, *arguments)
        except (self.nvml.NVMLError, AttributeError):
            self.refused.append(query)
            return None

    def driver(self) -> str | None:
        """The driver's version."""
        try:
            return str(self.nvml.nvmlSystemGetDriverVersion())
        except self.nvml.NVMLError:
            self.refused.append("nvmlSystemGetDriverVersion")
            return None


def open_nvml(properties: Any) -> NvmlDevice:
    """The NVML device of torch's device properties, by UUID or PCI address.

    Never by index: NVML counts by PCI address and ignores CUDA_VISIBLE_DEVICES, CUDA counts the fastest first.

    Raises:
        NoNvmlError: no nvidia-ml-py, no NVML, or no device of that UUID or address.
    """
    try:
        import pynvml
    except ImportError:
        raise NoNvmlError("nvidia-ml-py is not installed: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoNvmlError(f"NVML does not start: {error}") from error
    keys = _nvml_keys(properties)
    for lookup, key in keys:
        try:
            return NvmlDevice(pynvml, getattr(pynvml, lookup)(key))
        except pynvml.NVMLError:
            continue
    raise NoNvmlError(f"NVML knows no device {' or '.join(key for _, key in keys) or 'without UUID or PCI address'}")


def _nvml_keys(properties: Any) -> list[tuple[str, str]]:
    """(lookup function, key) to try in turn; torch gives a UUID without the prefix that tells a GPU from a slice."""
    keys = []
    uuid = str(getattr(properties, "uuid", None) or "").removeprefix("GPU-").removeprefix("MIG-")
    if uuid:
        keys += [("nvmlDeviceGetHandleByUUID", prefix + uuid) for prefix in ("GPU-", "MIG-")]
    bus, device = getattr(properties, "pci_bus_id", None), getattr(properties, "pci_device_id", None)
    if bus is not None and device is not None:
        domain = getattr(properties, "pci_domain_id", 0)
        keys.append(("nvmlDeviceGetHandleByPciBusId", f"{domain:08x}:{bus:02x}:{device:02x}.0"))
    return keys


def environment(device: str) -> Environment:
    """Everything a run's header says about where it ran.

    Args:
        device: "cpu", "cuda" (torch's current one) or "cuda:1".
    """
    notes: list[str] = []
    if torch.device(device).type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        machine = _gpu(properties)
        machine |= _nvml(properties, machine, notes)
        major = properties.major
    else:
        machine, major = _cpu(notes), None
    commit, dirty = _commit()
    return Environment(
        **{name: value for name, value in machine.items() if value is not None},
        threads=torch.get_num_threads(),
        os=platform.platform(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        triton=_version("triton"),
        ptxas=_ptxas(major),
        packages={name: version for name in PROVIDER_PACKAGES if (version := _version(name)) is not None},
        commit=commit,
        dirty=dirty,
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        note="; ".join(notes) or None,
    )


def _gpu(properties: Any) -> dict[str, Any]:
    """What torch says of a GPU; bus width and clock only where this torch has them (kHz, as CUDA gives it)."""
    memory_clock_khz = getattr(properties, "memory_clock_rate", None)
    return {
        "device_type": "cuda",
        "device_name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "sm_count": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "memory_bus_bits": getattr(properties, "memory_bus_width", None) or None,
        "memory_clock_mhz": memory_clock_khz // 1000 if memory_clock_khz else None,
        "l2_bytes": properties.L2_cache_size or None,
    }


def _nvml(properties: Any, machine: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """What NVML adds to `machine`; each refused query is left out and noted."""
    try:
        nvml = open_nvml(properties)
    except NoNvmlError as error:
        notes.append(f"no driver version, power limit, clocks, ECC or MIG mode: {error}")
        return {}
    clocks = {kind: getattr(nvml.nvml, f"NVML_CLOCK_{kind}") for kind in ("SM", "MEM")}
    power_mw = nvml.ask("nvmlDeviceGetEnforcedPowerLimit")
    ecc, mig = nvml.ask("nvmlDeviceGetEccMode"), nvml.ask("nvmlDeviceGetMigMode")
    told = {
        "driver": nvml.driver(),
        "uuid": nvml.uuid,
        "power_limit_w": None if power_mw is None else power_mw / 1000,
        "max_sm_clock_mhz": nvml.ask("nvmlDeviceGetMaxClockInfo", clocks["SM"]),
        "memory_clock_mhz": machine["memory_clock_mhz"] or nvml.ask("nvmlDeviceGetMaxClockInfo", clocks["MEM"]),
        "memory_bus_bits": machine["memory_bus_bits"] or nvml.ask("nvmlDeviceGetMemoryBusWidth"),
        "ecc": None if ecc is None else bool(ecc[0]),
        "mig": True if nvml.is_mig_slice else None if mig is None else bool(mig[0]),
    }
    if nvml.is_mig_slice:
        notes.append("a MIG slice: power limit and clocks are the whole GPU's")
    if nvml.refused:
        notes.append(f"NVML refused {', '.join(nvml.refused)}")
    return told


def _cpu(notes: list[str]) -> dict[str, Any]:
    """What the operating system says of the CPU."""
    try:
        model = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        model = None
    pages, page_bytes = _sysconf("SC_PHYS_PAGES"), _sysconf("SC_PAGE_SIZE")
    cache_bytes = cpu_cache_bytes()
    if cache_bytes is None:
        notes.append(f"no cache size reported: {CPU_CACHE_ASSUMED_BYTES // MIB} MiB assumed")
    elif cache_bytes > CPU_CACHE_CAP_BYTES:
        notes.append(f"last-level cache of {cache_bytes // MIB} MiB counted as {CPU_CACHE_CAP_BYTES // MIB}")
    return {
        "device_type": "cpu",
        "device_name": model[1].strip() if model else platform.processor() or platform.machine() or None,
        "memory_bytes": pages * page_bytes or None,
        "l2_bytes": min(cache_bytes or CPU_CACHE_ASSUMED_BYTES, CPU_CACHE_CAP_BYTES),
    }


def cpu_cache_bytes() -> int | None:
    """The largest cache reported by the C library or the kernel, which differ in virtual machines; None for neither."""
    told = _output("getconf", "LEVEL3_CACHE_SIZE") or ""  # Python's sysconf lacks this name
    sizes = [int(told) if told.isdecimal() else 0]
    for file in CPU_CACHES.glob("index*/size"):
        try:
            size = re.fullmatch(r"(\d+)([KMG]?)", file.read_text(encoding="utf-8").strip())
        except OSError:
            continue
        if size:
            sizes.append(int(size[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[size[2]])
    return max(sizes) or None


def _sysconf(name: str) -> int:
    """A value of the C library's, 0 where it has none."""
    try:
        return max(0, os.sysconf(name))
    except (ValueError, OSError):
        return 0


def _version(package: str) -> str | None:
    """The installed version, by its metadata alone: importing vllm takes seconds and sets up CUDA."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _ptxas(major: int | None) -> str | None:
    """The version of the ptxas that Triton calls for this compute capability."""
    try:
        from triton import knobs

        tool = knobs.nvidia.ptxas
        if major is not None and major >= 10:
            tool = getattr(knobs.nvidia, "ptxas_blackwell", tool)
    except (ImportError, AttributeError, RuntimeError):  # RuntimeError: Triton finds no ptxas
        return None
    version = re.search(r"\bV(\d+\.\d+\.\d+)", _output(tool.path, "--version") or "")
    return version[1] if version else None


def _commit() -> tuple[str | None, bool | None]:
    """Commit of this checkout, and whether its files differ from it; reports, being results, do not count."""
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != ROOT:
        return None, None
    changes = _git("status", "--porcelain", "--", ".", ":!reports")
    return _git("rev-parse", "HEAD"), None if changes is None else bool(changes)


def _git(*arguments: str) -> str | None:
    """Git's answer about this checkout, whatever repository a hook's environment names; None when it has none."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return _output("git", "-C", str(ROOT), *arguments, env=variables | {"GIT_OPTIONAL_LOCKS": "0"})


def _output(*command: str, env: dict[str, str] | None = None) -> str | None:
    """What a command prints; None when it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True, env=env)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
