"""Ahead-of-time compile of a case's kernels for any NVIDIA arch, on a machine without a GPU.

It goes through the launch: the provider's own wrapper is called with tensors of the "meta" device while Triton has a
driver that compiles, loads nothing and remembers what would have been launched. So signature, specialisation, options
and grid are those of the real launch, and a configuration that no GPU of that arch could hold fails as it would there.
Leaves running to `bench.run`, and what the instructions mean to `analysis`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import get_ptxas
from triton.errors import TritonError
from triton.runtime import _allocation, driver

from bench.case import Case
from bench.cubin import count_instructions, disassembly, resources
from kernels.registry import op_named
from kernels.spec import Workload

FIRST_DEVICE = 1000
"""Device numbers of these drivers: Triton caches kernels and limits by device, so no real one may share them."""
REGISTERS = 65_536
"""Of an SM, for all of its threads."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a GPU of an arch gives: shared memory of a block, and SMs."""

    shared_bytes: int
    sms: int


LIMITS = {80: Limits(166_912, 108), 89: Limits(101_376, 142), 90: Limits(232_448, 132), 100: Limits(232_448, 148)}
"""A100, L40S, H100 SXM, B200; shared memory from the CUDA programming guide's opt-in maximum of a block."""


class CompileError(ValueError):
    """A case's kernel does not compile for an arch or does not fit on it; the message names both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One launch of a case and the kernel that was compiled for it.

    Attributes:
        kernel: the kernel's name.
        num_warps: after specialisation, producer warps included.
        shared_bytes: of a block.
        num_stages, pdl: as asked of the compiler.
        grid: programs along x, y, z.
        ttir, ttgir: Triton's own form of the kernel, before and after it chose layouts and pipelines.
        seconds: compile time; 0 where Triton's cache had it.
        triton, ptxas: versions.
    """

    case_id: str
    kernel: str
    arch: int
    cubin: bytes = field(repr=False)
    ttir: str = field(repr=False)
    ttgir: str = field(repr=False)
    ptx: str = field(repr=False)
    num_warps: int
    num_stages: int
    pdl: bool
    shared_bytes: int
    grid: tuple[int, int, int]
    seconds: float
    triton: str
    ptxas: str

    @property
    def cubin_sha256(self) -> str:
        """Of the whole cubin, line numbers included."""
        return hashlib.sha256(self.cubin).hexdigest()

    @property
    def registers(self) -> int:
        """Of a thread."""
        return resources(self.cubin)["REG"]

    @property
    def stack_bytes(self) -> int:
        """Of a thread; what spills take is in it."""
        return resources(self.cubin)["STACK"]

    @property
    def sass(self) -> str:
        """The disassembly."""
        return disassembly(self.cubin)

    @property
    def spill_loads(self) -> int:
        """Loads from local memory in the code (cuobjdump's LOCAL stays 0 when a kernel spills)."""
        return count_instructions(self.sass, "LDL")

    @property
    def spill_stores(self) -> int:
        """Stores to local memory in the code."""
        return count_instructions(self.sass, "STL")


def compile_case(case: Case, arch: int, config: Any = None) -> list[Compiled]:
    """Every launch of a case in order, compiled for an arch.

    Args:
        case: of a provider whose wrapper launches Triton kernels.
        arch: compute capability, 90 for sm_90.
        config: handed to the wrapper; its own choice when None.

    Raises:
        CompileError: a kernel does not compile, or takes more than a block of this arch has.
        ValueError: an unknown arch, or a case that launches no Triton kernel.
    """
    inputs = case.op.make_inputs(case.workload, "meta", 0)
    if config is not None:
        inputs = inputs | {"config": config}
    with compile_driver(arch) as compiler:
        try:
            case.op.providers[case.provider](**inputs)
        except (TritonError, RuntimeError) as error:
            raise CompileError(f"{case.id} on sm_{arch}: {error or type(error).__name__}") from error
    if not compiler.launches:
        raise ValueError(f"{case.id}: launches no Triton kernel")
    return [_compiled(case.id, arch, *launch) for launch in compiler.launches]


def compile_named(op: str, provider: str, workload: Workload, arch: int, config: Any = None) -> list[Compiled]:
    """`compile_case` from what another process can be sent: an Op holds functions, its name does not."""
    return compile_case(Case(op_named(op), provider, workload), arch, config)


def _compiled(case_id: str, arch: int, kernel: _Kernel, grid: tuple[int, int, int]) -> Compiled:
    return Compiled(
        case_id=case_id,
        kernel=kernel.metadata.name,
        arch=arch,
        cubin=kernel.cubin,
        **kernel.texts,
        num_warps=kernel.metadata.num_warps,
        num_stages=kernel.metadata.num_stages,
        pdl=bool(kernel.metadata.launch_pdl),
        shared_bytes=kernel.metadata.shared,
        grid=grid,
        seconds=kernel.seconds,
        triton=triton.__version__,
        ptxas=get_ptxas(arch).version,
    )


@contextmanager
def compile_driver(arch: int) -> Iterator[CompileDriver]:
    """Makes kernel launches compile for an arch and go nowhere; the former driver and allocator come back after.

    Raises:
        ValueError: an arch without known limits, or kernels that are interpreted.
    """
    if arch not in LIMITS:
        raise ValueError(f"no limits known for sm_{arch}; known: {', '.join(map(str, LIMITS))}")
    if knobs.runtime.interpret:
        raise ValueError("TRITON_INTERPRET is set: interpreted kernels are not compiled")
    before = (driver._active, knobs.compilation.listener, _allocation._allocator.get())
    compiler = _driver_for(arch)
    compiler.launches = []
    driver.set_active(compiler)
    knobs.compilation.listener = compiler.on_compiled
    try:
        yield compiler
    finally:
        driver._active, knobs.compilation.listener = before[:2]
        triton.set_allocator(before[2])


@dataclass(slots=True)
class _Kernel:
    """A kernel as the compiler leaves it, by the order of its calls: listener, launcher, load."""

    texts: dict[str, str]
    seconds: float
    metadata: Any = None
    cubin: bytes = b""


class CompileDriver(DriverBase):  # type: ignore[misc]
    """The part of a CUDA driver that Triton asks before and after it compiles.

    Attributes:
        launches: (kernel, grid) of each launch since it was made active.
    """

    def __init__(self, arch: int) -> None:
        self.arch = arch
        self.launches: list[tuple[_Kernel, tuple[int, int, int]]] = []
        self._kernels: dict[str, _Kernel] = {}
        self._loading = ""
        properties = {
            "max_shared_mem": LIMITS[arch].shared_bytes,
            "multiprocessor_count": LIMITS[arch].sms,
            "max_num_regs": REGISTERS,
            "warpSize": 32,
        }
        self.utils = SimpleNamespace(load_binary=self._load, get_device_properties=lambda device: properties)

    @classmethod
    def is_active(cls) -> bool:
        """Never chosen by Triton itself."""
        return False

    def get_current_target(self) -> GPUTarget:
        """The arch to compile for."""
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        """A number that no real device and no other arch has."""
        return FIRST_DEVICE + self.arch

    def set_current_device(self, device: int) -> None:
        """There is only one."""

    def get_current_stream(self, device: int | None = None) -> int:
        """The default stream."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Where this driver's tensors live."""
        return torch.device("meta")

    def map_python_to_cpp_type(self, ty: str) -> str:
        """No launcher is built, so none is needed."""
        return ty

    def get_benchmarker(self) -> Any:
        """Raises: nothing runs here."""
        raise RuntimeError("kernels are compiled, not run: nothing can be timed")

    def on_compiled(self, *, src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool) -> None:
        """Triton's compilation listener: keeps the texts of the kernel and the time it took."""
        files = {Path(name).suffix[1:]: Path(path) for name, path in metadata_group.items()}
        texts = {kind: files[kind].read_text(encoding="utf-8") for kind in ("ttir", "ttgir", "ptx")}
        seconds = 0.0 if cache_hit else times.total / 1e6
        self._kernels[metadata["hash"]] = _Kernel(texts, seconds)

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        """What Triton calls to launch the kernel."""
        self._loading = metadata.hash
        kernel = self._kernels[metadata.hash]
        kernel.metadata = metadata

        def launch(*arguments: Any) -> None:
            launch_metadata, enter_hook = arguments[6:8]
            enter_hook(launch_metadata)
            self.launches.append((kernel, arguments[:3]))

        return launch

    def _load(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[None, int, int, int, int]:
        """(module, function, registers, spills, most threads). No module: there is nothing to unload."""
        kernel = self._kernels[self._loading]
        kernel.cubin = cubin
        return None, id(kernel), 0, 0, 1024


@cache
def _driver_for(arch: int) -> CompileDriver:
    """One for each arch: Triton keeps kernels, and with them their launchers, for the life of the process."""
    return CompileDriver(arch)
