"""The child's side: Triton's CUDA driver on the stub, tensors that are addresses alone, and the stub's log read back.

Run as `python -m stub_cuda.child JOB RESULT` by `stub_cuda.driver.run_in_stub`.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from triton import knobs
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver

from bench.case import Case
from bench.l2 import Rotation, rotate
from bench.launched import kernels_launched
from kernels.registry import OPS, op_named
from kernels.spec import Op, Workload

FIRST_ADDRESS = 0x7F00_0000_0000
ALLOCATION_BYTES = 512
"""torch's CUDA allocator gives memory in multiples of this, so that is how aligned a fresh tensor is."""


class StandIns(TorchFunctionMode):
    """Gives every meta tensor an address, so that one of 100 GB can be an argument: only addresses matter here.

    Views share their storage's address, and a new storage lies behind the last one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[torch.UntypedStorage, int]] = {}
        self._next = FIRST_ADDRESS

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answers data_ptr of meta tensors; everything else is torch's."""
        if function is torch.Tensor.data_ptr and args[0].is_meta:
            return self.address_of(args[0])
        return function(*args, **(kwargs or {}))

    def address_of(self, tensor: torch.Tensor) -> int:
        """Of the tensor's first element."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            # Holding the storage keeps its key from being another's later.
            self._storages[key] = (storage, self._next)
            self._next += -(-max(storage.nbytes(), 1) // ALLOCATION_BYTES) * ALLOCATION_BYTES
        return self._storages[key][1] + int(tensor.storage_offset()) * tensor.element_size()


@dataclass(slots=True)
class Observation:
    """What the stub saw of some launches.

    Attributes:
        error: what was raised, '' when nothing was.
        rules: broken ones, and launches that never reached the driver.
        loads: modules.
        launches, maps: the stub's log lines.
    """

    error: str = ""
    rules: list[str] = field(default_factory=list)
    loads: int = 0
    launches: list[dict[str, Any]] = field(default_factory=list)
    maps: list[dict[str, Any]] = field(default_factory=list)


def observe(launch: Callable[[], object]) -> Observation:
    """Calls something that launches kernels and tells what the driver was asked."""
    log = Path(os.environ["STUB_CUDA_LOG"])
    start = log.stat().st_size if log.exists() else 0
    attempted: list[str] = []

    def count(metadata: Any) -> None:
        attempted.append(metadata.get()["name"])

    seen = Observation()
    knobs.runtime.launch_enter_hook.add(count)
    try:
        copy_context().run(launch)  # an allocator set by one launch is no other's
    except Exception as error:
        seen.error = f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        knobs.runtime.launch_enter_hook.remove(count)
    if log.exists():
        _read(log.read_bytes()[start:].decode(), seen)
    # Triton multiplies the grid in 32 bits and, where that comes out at 0 or below, returns as if it had launched.
    if len(attempted) > len(seen.launches):
        seen.rules.append(f"of launches {attempted} the driver saw {len(seen.launches)}: a grid of 0 or over 2^31")
    return seen


def _read(log: str, seen: Observation) -> None:
    for line in map(json.loads, log.splitlines()):
        event = line.pop("event")
        if event == "rule":
            seen.rules.append(line["rule"])
        elif event == "load":
            seen.loads += 1
        else:
            {"launch": seen.launches, "map": seen.maps}[event].append(line)


@contextmanager
def capturing() -> Iterator[None]:
    """As if a CUDA graph were being captured: a module load or an allocation by the driver is an error."""
    libcuda().stub_set_capturing(1)
    try:
        yield
    finally:
        libcuda().stub_set_capturing(0)


@cache
def libcuda() -> ctypes.CDLL:
    """The stub, as Triton loaded it."""
    return ctypes.CDLL("libcuda.so.1")


def install() -> None:
    """Makes Triton's CUDA driver the active one: the look-ups that it leaves to torch.cuda are answered here."""
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda device: None
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    driver.set_active(CudaDriver())


def run_cases_here(described: Sequence[tuple[str, str, str, Workload, Any]]) -> list[dict[str, Any]]:
    """`stub_cuda.driver.run_cases`, in the child."""
    return [_run_case(Case(_op(name, module), *asked)) for name, module, *asked in described]


def cubins_here(described: Sequence[tuple[str, str, Workload, Any]]) -> list[list[str]]:
    """Of each (op, provider, workload, config) the hashes of the cubins that its launches load, in order."""
    hashes = []
    for name, provider, workload, config in described:
        op = op_named(name)
        inputs = op.make_inputs(workload, "meta", 0)
        with kernels_launched() as kernels:
            op.providers[provider](**inputs, config=config)
        hashes.append([str(kernel["cubin_sha256"]) for kernel in kernels])
    return hashes


def _op(name: str, module: str) -> Op:
    """The op of that name in the registry, or else in the module that makes its inputs."""
    ops = [*OPS, *(value for value in vars(importlib.import_module(module)).values() if isinstance(value, Op))]
    return next(op for op in ops if op.name == name)


def _run_case(case: Case) -> dict[str, Any]:
    op, run = case.op, case.op.providers[case.provider]
    if case.config is not None:
        run = partial(run, config=case.config)
    twice = Rotation(cache="hot", copies=2, streamed_bytes=0, resident_bytes=0, cache_bytes=0)
    first_inputs, second_inputs = rotate(op.make_inputs(case.workload, "meta", 0), op.roles, twice)
    first = observe(lambda: run(**first_inputs))
    second = Observation()
    if not first.error:
        with capturing():
            second = observe(lambda: run(**second_inputs))
    return {
        "case_id": f"{case.id} {case.config or ''}".strip(),
        "error": first.error or second.error,
        "rules": first.rules + second.rules,
        "loads_first": first.loads,
        "loads_second": second.loads,
        "launches": first.launches,
        "maps": first.maps,
    }


def main(job: Path, result: Path) -> None:
    """Calls the job's function and writes what it returns."""
    target, argument = pickle.loads(job.read_bytes())
    module, _, name = target.partition(":")
    install()
    with StandIns():
        function = getattr(importlib.import_module(module), name)
        returned = function() if argument is None else function(argument)
    result.write_text(json.dumps(returned, default=asdict), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
