"""The real harness on the fake GPU: a small matmul whose launches the timeline runs, as `bench run` would run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pynvml as real_nvml
import pytest
import torch
from small_cases import matmul_case
from test_environment_gpu import FakeNvml, on_gpu, properties
from test_telemetry import KEY, POWER, Nvml, answers

from bench import l2
from bench.case import Case
from bench.record import Environment, Record
from bench.run import Session, run_case
from bench.stopping import StopRule
from bench.telemetry import Telemetry
from fake_gpu.torch_cuda import FakeGpu
from kernels import matmul
from kernels.spec import Inputs, Workload

CACHE_BYTES = 4096
"""Of the small device: 24 copies of a weight of 512 bytes are cold."""
Launches = Callable[[torch.Tensor], object]


def gpu_session(**changes: Any) -> Session:
    """A session on the fake GPU."""
    environment = Environment(device_type="cuda", device_name="NVIDIA H100 80GB HBM3", l2_bytes=CACHE_BYTES)
    usual = Session(run="r1", device="cuda", environment=environment, rule=StopRule(budget_s=0.5))
    return replace(usual, **changes)


def gpu_case(gpu: FakeGpu, launch: Launches | None = None, **changes: Any) -> Case:
    """A matmul that computes on the CPU and takes its time on the fake GPU; `launch` gets the weight."""

    def provider(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        launch(b) if launch else gpu.launch(0, (b.data_ptr(), b.numel() * b.element_size()))
        return a @ b

    def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
        return matmul.make_inputs(workload, "meta" if str(device) == "meta" else "cpu", seed)

    return matmul_case(provider, changes={"make_inputs": make_inputs, **changes})


def run_on(monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu, case: Case, session: Session | None = None) -> Record:
    """The record of a case, by `run_case` with all of its own parts."""
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**10, 10**10))
    real = l2.flusher
    monkeypatch.setattr(l2, "flusher", lambda rotation, device: gpu.time.flush if real(rotation, "cpu") else None)
    return run_case(case, session or gpu_session())


class LiveNvml(dict[Any, Any]):
    """Answers that follow the timeline: the clock, and the time under a power cap."""

    def __init__(self, gpu: FakeGpu, **changes: Any) -> None:
        super().__init__(answers(**changes))
        self.gpu, self.asked = gpu, 0
        self.capped_us = self.seen_us = 0.0

    def __getitem__(self, name: Any) -> Any:
        self.asked += 1
        now_us, speed = self.gpu.time.device_us, self.gpu.time.speed(self.gpu.time.device_us)
        if speed < 1:
            self.capped_us += now_us - self.seen_us
        self.seen_us = now_us
        if name == ("nvmlDeviceGetClockInfo", real_nvml.NVML_CLOCK_SM):
            return round(1980 * speed)
        if name == ("nvmlDeviceGetViolationStatus", POWER):
            return SimpleNamespace(violationTime=round(1000 * self.capped_us))
        if name == "nvmlDeviceGetCurrentClocksEventReasons" and speed < 1:
            return real_nvml.nvmlClocksEventReasonSwPowerCap
        return super().__getitem__(name)


def live_telemetry(monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu, **changes: Any) -> tuple[Telemetry, LiveNvml]:
    """Telemetry of the fake GPU through NVML's real signatures, and the table that answers."""
    table = LiveNvml(gpu, **changes)
    nvml: FakeNvml = Nvml({KEY: table})
    on_gpu(monkeypatch, nvml)
    return Telemetry(properties()), table
