"""torch.cuda over a simulated timeline, for clocks: no kernel runs, and calls that torch would not take fail.

Launches and replays take time on the device, a replay has a head before its nodes, events resolve half a microsecond
and are read only after the device was waited for. Every call is bound to the signature of torch's own function.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench import clock as clocks
from bench import warming

HEAD_US, RESOLUTION_US, FLUSH_US, HOST_US = 6.0, 0.5, 80.0, 2.0
REAL: dict[str, Callable[..., Any]] = {
    "Event": torch.cuda.Event,
    "record": torch.cuda.Event.record,
    "elapsed_time": torch.cuda.Event.elapsed_time,
    "Stream": torch.cuda.Stream,
    "wait_stream": torch.cuda.Stream.wait_stream,
    "current_stream": torch.cuda.current_stream,
    "stream": torch.cuda.stream,
    "CUDAGraph": torch.cuda.CUDAGraph,
    "replay": torch.cuda.CUDAGraph.replay,
    "graph": torch.cuda.graph,
    "synchronize": torch.cuda.synchronize,
}


def bound(name: str, *given: Any, **named: Any) -> dict[str, Any]:
    """What torch's own function would get. Raises TypeError for a call that it would not take."""
    call = inspect.signature(REAL[name]).bind(*given, **named)
    call.apply_defaults()
    return call.arguments


class FakeEvent:
    def __init__(self, gpu: SimulatedGpu, *given: Any, **named: Any) -> None:
        self.gpu, self.times = gpu, bound("Event", *given, **named)["enable_timing"]
        self.at_us = self.seen_us = math.nan

    def record(self, *given: Any, **named: Any) -> None:
        bound("record", self, *given, **named)
        assert self.gpu.capturing is None, "an event inside a capture"
        self.at_us = max(self.gpu.device_us, self.gpu.host_us) // RESOLUTION_US * RESOLUTION_US

    def elapsed_time(self, *given: Any, **named: Any) -> float:
        end = bound("elapsed_time", self, *given, **named)["end_event"]
        assert self.times and end.times, "elapsed_time needs enable_timing=True"
        assert self.gpu.synchronised_us >= end.at_us, "elapsed_time before the device was waited for"
        return float((end.at_us - self.at_us) / 1000)


class FakeStream:
    def __init__(self, gpu: SimulatedGpu, name: str) -> None:
        self.gpu, self.name = gpu, name

    def wait_stream(self, *given: Any, **named: Any) -> None:
        other = bound("wait_stream", self, *given, **named)["stream"]
        self.gpu.waits.append((self.name, other.name))


class FakeGraph:
    def __init__(self, gpu: SimulatedGpu, *given: Any, **named: Any) -> None:
        bound("CUDAGraph", *given, **named)
        self.gpu, self.replays = gpu, 0
        gpu.graphs.append(self)
        self.nodes: list[int] = []

    def replay(self, *given: Any, **named: Any) -> None:
        bound("replay", self, *given, **named)
        self.replays += 1
        self.gpu.run(HEAD_US)
        for number in self.nodes:
            self.gpu.node(number)


class SimulatedGpu:
    """torch.cuda over a timeline: `period_us` of a launch, at full speed after `ramp_us` of device time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, period_us: float, ramp_us: float = 0.0) -> None:
        self.period_us, self.ramp_us = period_us, ramp_us
        self.host_us = self.device_us = self.synchronised_us = 0.0
        self.capturing: FakeGraph | None = None
        self.refuses_capture = False
        self.ran: list[tuple[str, int]] = []
        self.waits: list[tuple[str, str]] = []
        self.graphs: list[FakeGraph] = []
        self.streams = [FakeStream(self, "default")]
        for name in ("Event", "Stream", "CUDAGraph", "current_stream", "stream", "graph", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        for module in (clocks, warming):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.host_us / 1e6))

    def launch(self, number: int) -> None:
        """What a provider does: a node when capturing, else work of the current stream."""
        if self.capturing is None:
            self.host_us += HOST_US
            self.node(number)
        elif self.refuses_capture:
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines")
        else:
            self.capturing.nodes.append(number)

    def node(self, number: int) -> None:
        slow = 1 + math.exp(-self.device_us / self.ramp_us) if self.ramp_us else 1
        self.run(self.period_us * slow)
        self.ran.append((self.streams[-1].name, number))

    def flush(self) -> None:
        self.run(FLUSH_US)
        self.ran.append(("flush", -1))

    def run(self, us: float) -> None:
        self.device_us = max(self.device_us, self.host_us) + us

    def Event(self, *given: Any, **named: Any) -> FakeEvent:  # noqa: N802 - torch's name
        return FakeEvent(self, *given, **named)

    def Stream(self, *given: Any, **named: Any) -> FakeStream:  # noqa: N802 - torch's name
        bound("Stream", *given, **named)
        return FakeStream(self, "side")

    def CUDAGraph(self, *given: Any, **named: Any) -> FakeGraph:  # noqa: N802 - torch's name
        return FakeGraph(self, *given, **named)

    def current_stream(self, *given: Any, **named: Any) -> FakeStream:
        bound("current_stream", *given, **named)
        return self.streams[-1]

    def synchronize(self, *given: Any, **named: Any) -> None:
        bound("synchronize", *given, **named)
        self.host_us = self.synchronised_us = max(self.host_us, self.device_us)

    @contextmanager
    def stream(self, *given: Any, **named: Any) -> Iterator[None]:
        self.streams.append(bound("stream", *given, **named)["stream"])
        yield
        self.streams.pop()

    @contextmanager
    def graph(self, *given: Any, **named: Any) -> Iterator[None]:
        self.capturing = bound("graph", *given, **named)["cuda_graph"]
        try:
            yield
        finally:
            self.capturing = None


def launches_on(gpu: SimulatedGpu, sets: int) -> Sequence[Callable[[], None]]:
    return [partial(gpu.launch, number) for number in range(sets)]
