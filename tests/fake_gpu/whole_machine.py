"""A machine with one H100, as far as `bench gpu` and all processes that it starts can tell, on a CPU.

`install()` is called from a `sitecustomize.py` on PYTHONPATH, so that workers, checks and the compile pool meet the
same machine. torch.cuda is the timeline of `fake_gpu`; tensors of "cuda" lie on the CPU; the suites are the ops'
small workloads; every provider computes what the op's eager torch computes, in a simulated time of
T0 + max(FLOPs/P, bytes/BW) at an H100's peaks. What the harness does around that is the real thing. The L2 is small, so
that rotation needs few copies.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch.overrides import TorchFunctionMode

from fake_gpu.timeline import Timeline
from fake_gpu.torch_cuda import Buffer, FakeGpu
from kernels import registry, roofs
from kernels.spec import Inputs, Op, Workload, no_config, nothing_to_tell

FLOPS_PER_S, BYTES_PER_S, FLOOR_US = 989e12, 3.35e12, 3.0
SLOWER = {"torch": 1.1, "torch_flash": 1.05, "torch_cudnn": 1.2}
"""Of each provider, against `triton`."""
L2_BYTES = 2**12
OPS = ("matmul", "attention_decode")
WORKLOADS = 3
"""Of each op."""
PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=85_029_158_912,
    L2_cache_size=L2_BYTES,
    memory_bus_width=5120,
    memory_clock_rate=2_619_000,
    shared_memory_per_block_optin=232_448,
    uuid="00000000-1111-2222-3333-444444444444",
)
PATCH = pytest.MonkeyPatch()


class Lengths(Timeline):
    """A timeline with launches of several lengths: a launch's number says which."""

    def __init__(self) -> None:
        super().__init__(kernel_us=0.0)
        self.lengths_us: list[float] = []

    def kernel(self, number: int, stream: str = "default", buffer: Buffer | None = None) -> None:
        self.kernel_us = self.lengths_us[number]
        super().kernel(number, stream, buffer)

    def number_of(self, us: float) -> int:
        if us not in self.lengths_us:
            self.lengths_us.append(us)
        return self.lengths_us.index(us)


class OnTheCpu(TorchFunctionMode):
    """Tensors asked for on "cuda" are made on the CPU."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = "cpu"
        return function(*args, **given)


@triton.jit  # type: ignore[untyped-decorator]
def _touch_kernel(x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def faked(op: Op, gpu: FakeGpu, lengths: Lengths) -> Op:
    """The op with all providers computing on the CPU and timed on the fake device."""
    asked: list[Workload] = []

    def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
        asked[:] = [workload]
        return op.make_inputs(workload, "meta" if str(device) == "meta" else "cpu", seed)

    def provider(name: str, **inputs: Any) -> Any:
        inputs.pop("config", None)
        first = next(value for value in inputs.values() if isinstance(value, torch.Tensor))
        if first.is_meta:  # compiled ahead: any kernel will do
            _touch_kernel[(1,)](torch.empty(128, device="meta"), 128, BLOCK=128)
            return None
        work = op.work(asked[0])
        moved = work.bytes + work.overhead_bytes
        us = FLOOR_US + max(work.flops / FLOPS_PER_S, moved / BYTES_PER_S) * 1e6
        gpu.launch(lengths.number_of(us * SLOWER.get(name, 1.0)))
        return None if gpu.capturing else _computed(op, inputs)

    def named(name: str) -> Callable[..., Any]:
        return lambda **inputs: provider(name, **inputs)

    return replace(
        op,
        make_inputs=make_inputs,
        providers={name: named(name) for name in op.providers if name != "flash_attn"},
        unsupported=lambda workload, provider: None,
        facts=nothing_to_tell,
        configs=no_config,
    )


def _computed(op: Op, inputs: Mapping[str, Any]) -> Any:
    """What the op returns, written where it writes."""
    result = op.eager(**inputs)
    return inputs[op.writes[0]].copy_(result) if op.writes else result


def install() -> None:
    """Puts the machine under everything that this process imports from now on; the analysis needs none."""
    if "analysis" in sys.orig_argv:
        return
    gpu, lengths = FakeGpu(PATCH, kernel_us=0.0), Lengths()
    gpu.time = lengths
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "init": lambda: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: (80_000_000_000, PROPERTIES.total_memory),
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: PROPERTIES,
        "get_device_name": lambda device=None: PROPERTIES.name,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    OnTheCpu().__enter__()  # type: ignore[no-untyped-call]
    registry.OPS = tuple(faked(op, gpu, lengths) for op in registry.OPS if op.name in OPS)
    for name in ("PEAK_MATMUL", "PEAK_READ", "PEAK_COPY", "EMPTY_LAUNCH"):
        setattr(roofs, name, faked(getattr(roofs, name), gpu, lengths))
    registry.ROOF_OPS = (roofs.PEAK_MATMUL, roofs.PEAK_READ, roofs.PEAK_COPY, roofs.EMPTY_LAUNCH)
    _shrink()


def _shrink() -> None:
    """Sizes and times that a CPU gets through in seconds."""
    from bench import gpu_plan, peaks, suites
    from bench.stopping import StopRule

    suites.suite_workloads = lambda name: {op.name: list(op.check_workloads[:WORKLOADS]) for op in registry.OPS}
    peaks.CUDA_SHAPES = ((64, 64, 64), (128, 128, 128))  # type: ignore[assignment]
    peaks.LEAST_BYTES = 2**20
    gpu_plan.RULE = StopRule(min_s=0.0, budget_s=0.02)
    gpu_plan.SENTINELS = {"hot": 6, "sustained": 2, "zeros": 3, "noise": 4}
    os.cpu_count = lambda: 1
