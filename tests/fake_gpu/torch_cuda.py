"""torch.cuda over a timeline: no kernel runs, and calls that torch would not take fail."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from bench import clock, cuda_clock, timing, warming
from fake_gpu.timeline import RESOLUTION_US, Timeline

REAL: dict[str, Callable[..., Any]] = {
    "Event": torch.cuda.Event,
    "record": torch.cuda.Event.record,
    "query": torch.cuda.Event.query,
    "elapsed_time": torch.cuda.Event.elapsed_time,
    "Stream": torch.cuda.Stream,
    "wait_stream": torch.cuda.Stream.wait_stream,
    "current_stream": torch.cuda.current_stream,
    "stream": torch.cuda.stream,
    "CUDAGraph": torch.cuda.CUDAGraph,
    "replay": torch.cuda.CUDAGraph.replay,
    "graph": torch.cuda.graph,
    "synchronize": torch.cuda.synchronize,
    "_sleep": torch.cuda._sleep,
}
REPLACED = ("Event", "Stream", "CUDAGraph", "current_stream", "stream", "graph", "synchronize", "_sleep")
TIMED: tuple[ModuleType, ...] = (clock, cuda_clock, timing, warming)
CYCLES_PER_US = 1980
Buffer = tuple[int, int]


def bound(name: str, *given: Any, **named: Any) -> dict[str, Any]:
    """What torch's own function would get. Raises TypeError for a call that it would not take."""
    call = inspect.signature(REAL[name]).bind(*given, **named)
    call.apply_defaults()
    return call.arguments


class FakeEvent:
    def __init__(self, gpu: FakeGpu, *given: Any, **named: Any) -> None:
        self.gpu, self.times = gpu, bound("Event", *given, **named)["enable_timing"]
        self.at_us = math.nan

    def record(self, *given: Any, **named: Any) -> None:
        bound("record", self, *given, **named)
        assert self.gpu.capturing is None, "an event inside a capture"
        self.gpu.time.call()
        self.gpu.time.run(self.gpu.time.event_us, self.gpu.here)
        self.at_us = self.gpu.time.ready_us[self.gpu.here]

    def query(self, *given: Any, **named: Any) -> bool:
        bound("query", self, *given, **named)
        assert not math.isnan(self.at_us), "an event that was not recorded"
        self.gpu.time.call()
        return self.gpu.time.host_now_us >= self.at_us

    def elapsed_time(self, *given: Any, **named: Any) -> float:
        end = bound("elapsed_time", self, *given, **named)["end_event"]
        assert self.times and end.times, "elapsed_time needs enable_timing=True"
        assert self.gpu.time.synchronised_us >= end.at_us, "elapsed_time before the device was waited for"
        first, last = (at // RESOLUTION_US * RESOLUTION_US for at in (self.at_us, end.at_us))
        return float(last - first) / 1000


class FakeStream:
    def __init__(self, gpu: FakeGpu, name: str) -> None:
        self.gpu, self.name = gpu, name

    def wait_stream(self, *given: Any, **named: Any) -> None:
        other = bound("wait_stream", self, *given, **named)["stream"]
        ready = self.gpu.time.ready_us
        ready[self.name] = max(ready.get(self.name, 0.0), ready.get(other.name, 0.0))
        self.gpu.waits.append((self.name, other.name))


class FakeGraph:
    def __init__(self, gpu: FakeGpu, *given: Any, **named: Any) -> None:
        bound("CUDAGraph", *given, **named)
        self.gpu, self.replays = gpu, 0
        gpu.graphs.append(self)
        self.launches: list[tuple[int, Buffer | None]] = []

    @property
    def nodes(self) -> list[int]:
        """The numbers of what was captured."""
        return [number for number, _ in self.launches]

    def replay(self, *given: Any, **named: Any) -> None:
        bound("replay", self, *given, **named)
        assert self.gpu.capturing is None, "a replay inside a capture"
        self.replays += 1
        self.gpu.time.call()
        self.gpu.time.run(self.gpu.time.head_us)
        for number, buffer in self.launches:
            self.gpu.time.kernel(number, buffer=buffer)


class FakeGpu:
    """torch.cuda over `time`. Its kernels are launched by `launch`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel_us: float, **laws: Any) -> None:
        self.time = Timeline(kernel_us=kernel_us, **laws)
        self.capturing: FakeGraph | None = None
        self.refuses_capture = False
        self.waits: list[tuple[str, str]] = []
        self.graphs: list[FakeGraph] = []
        self.streams = [FakeStream(self, "default")]
        for name in REPLACED:
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        seconds = SimpleNamespace(perf_counter=lambda: self.time.host_now_us / 1e6)
        for module in TIMED:
            monkeypatch.setattr(module, "time", seconds)

    @property
    def here(self) -> str:
        """The current stream's name."""
        return self.streams[-1].name

    @property
    def ran(self) -> list[tuple[str, int]]:
        """What has run: stream and number."""
        return self.time.ran

    def launch(self, number: int = 0, buffer: Buffer | None = None) -> None:
        """What a provider does: a node when capturing, else work of the current stream."""
        if self.capturing is None:
            self.time.call(self.time.host_us)
            self.time.kernel(number, self.here, buffer)
        elif self.refuses_capture:
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines")
        elif self.here == "default":
            self.capturing.launches.append((number, buffer))
        else:  # a stream that the capture does not know runs at once, and is no node
            self.time.kernel(number, self.here, buffer)

    def launch_aside(self, number: int = 0) -> None:
        """A provider that launches on a stream of its own and joins it never."""
        with self.stream(FakeStream(self, "aside")):
            self.launch(number)

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
        assert self.capturing is None, "the device is waited for inside a capture"
        self.time.call()
        self.time.wait()

    def _sleep(self, *given: Any, **named: Any) -> None:
        cycles = bound("_sleep", *given, **named)["cycles"]
        assert isinstance(cycles, int) and cycles > 0, f"{cycles!r} cycles"
        self.time.call()
        self.time.run(cycles / CYCLES_PER_US, self.here)

    @contextmanager
    def stream(self, *given: Any, **named: Any) -> Iterator[None]:
        self.streams.append(bound("stream", *given, **named)["stream"])
        yield
        self.streams.pop()

    @contextmanager
    def graph(self, *given: Any, **named: Any) -> Iterator[None]:
        assert self.capturing is None, "a capture inside a capture"
        self.capturing = bound("graph", *given, **named)["cuda_graph"]
        try:
            yield
        finally:
            self.capturing = None


def launches_on(gpu: FakeGpu, sets: int) -> Sequence[Callable[[], None]]:
    """One launch a set, of what the cache does not know."""
    return [partial(gpu.launch, number) for number in range(sets)]
