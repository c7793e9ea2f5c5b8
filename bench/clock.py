"""Clocks: how long one launch takes, as the mean of a sample of launches that lasts at least a millisecond.

Every clock is given the launches of a case, one a set of rotated inputs, and walks through them in order, so that a
sample is a whole number of rounds. The GPU-only lines are those of torch's own documentation.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from bench.l2 import MAX_NODES

SAMPLE_S = 1e-3
"""A sample lasts at least this long: CUDA events resolve half a microsecond, a graph's head costs 5 to 8."""
PROBE_US, PROBE_NODES = 100, 16
"""A replay under so many microseconds is repeated with so many nodes at least, or its head would pass for launches."""

Launch = Callable[[], object]


class Clock(Protocol):
    """What the runner needs of a clock."""

    timer: str
    launch: str
    launches_per_sample: int

    def sample(self) -> float:
        """Microseconds per launch of the next sample."""

    def calibrate(self) -> None:
        """Measures, on a warm device, what comes off every sample."""

    def doubts(self, median_us: float) -> dict[str, str]:
        """Flag -> reason why its samples of this median may not be the launches' time; {} when they are."""


RESOLVED = 5
"""A sample is this many times what its clock costs, or the clock may be what was measured."""


def unresolved(median_us: float, launches: int, cost_us: float) -> dict[str, str]:
    """The flag `suspect` where a sample is as short as what timing nothing takes."""
    sample_us = median_us * launches
    if sample_us > RESOLVED * cost_us:
        return {}
    return {"suspect": f"a sample of {sample_us:.3g} us where timing nothing takes {cost_us:.3g} us"}


def launches_for(one_s: float, sets: int, most: int) -> int:
    """Launches of a sample: whole rounds over the sets, at least `SAMPLE_S` long, at most `most` where that allows."""
    rounds = max(1, math.ceil(SAMPLE_S / max(one_s, 1e-9) / sets))
    return sets * max(1, min(rounds, most // sets))


class CpuClock:
    """Wall clock. A CPU launch is a call, and its dispatch is part of it.

    Args:
        launches: one a set of inputs.
        before: run ahead of each sample, outside its time (a cache flush); a sample is then one launch.
    """

    timer, launch = "cpu_wall", "call"

    def __init__(self, launches: Sequence[Launch], before: Launch | None = None) -> None:
        self._launches, self._before, self._next = launches, before, 0
        self.launches_per_sample = 1
        self._cost_us = min(_read_twice_us() for _ in range(5))
        one_s = statistics.median(self.sample() for _ in range(5)) / 1e6
        # A round over all copies of a large input would be seconds: the place in the rotation is kept instead.
        self.launches_per_sample = 1 if before else min(MAX_NODES, max(1, math.ceil(SAMPLE_S / max(one_s, 1e-7))))

    def sample(self) -> float:
        """Microseconds per launch."""
        if self._before:
            self._before()
        chosen = [self._launches[(self._next + i) % len(self._launches)] for i in range(self.launches_per_sample)]
        self._next = (self._next + self.launches_per_sample) % len(self._launches)
        start = time.perf_counter_ns()
        for launch in chosen:
            launch()
        return (time.perf_counter_ns() - start) / 1e3 / self.launches_per_sample

    def calibrate(self) -> None:
        """Nothing: the call is what is measured."""

    def doubts(self, median_us: float) -> dict[str, str]:
        """A time that is the clock's own."""
        return unresolved(median_us, self.launches_per_sample, self._cost_us)


def _read_twice_us() -> float:
    start = time.perf_counter_ns()
    return (time.perf_counter_ns() - start) / 1e3


class CudaEventClock:
    """CUDA events around a stream of launches, for what a graph cannot hold. Includes gaps of a slow host."""

    timer, launch = "cuda_event", "stream"

    def __init__(self, launches: Sequence[Launch], before: Launch | None = None) -> None:
        self._launches, self._before = launches, before
        self.launches_per_sample = len(launches)
        if before:
            self.launches_per_sample = 1
        else:
            for _ in range(2):  # the first, of few launches, has the host's latency in it
                one_us = statistics.median(self.sample() for _ in range(3))
                self.launches_per_sample = launches_for(one_us / 1e6, len(launches), MAX_NODES)

    def sample(self) -> float:
        """Microseconds per launch."""
        if self._before:
            self._before()

        def launch_all() -> None:
            for i in range(self.launches_per_sample):
                self._launches[i % len(self._launches)]()

        return _event_us(launch_all) / self.launches_per_sample

    def calibrate(self) -> None:
        """Nothing: a stream of launches has no head."""

    def doubts(self, median_us: float) -> dict[str, str]:
        """A time that is the events' own."""
        return unresolved(median_us, self.launches_per_sample, 0.0)


class CudaGraphClock:
    """Replays of a captured graph: no host in the time, and the gap between nodes is part of a launch's period.

    The head of a replay is fitted once, when warm, from graphs of n and 2n nodes and taken off every sample of 2n.
    Behind a flush one launch is a sample, and its head stays in it.
    """

    timer, launch = "cuda_graph", "graph"

    def __init__(self, launches: Sequence[Launch], before: Launch | None = None) -> None:
        self._before = before
        nodes = 1 if before else launches_for(_one_launch_s(launches), len(launches), MAX_NODES // 2)
        self.launches_per_sample = 1 if before else 2 * nodes
        self._half = None if before else _captured(launches, nodes)
        self._graph = _captured(launches, self.launches_per_sample)
        self.head_us = 0.0

    def calibrate(self) -> None:
        """Fits the head. The two graphs take turns, so that a clock that still drifts moves both alike."""
        if not self._half:
            return
        _event_us(self._half.replay)
        pairs = [(_event_us(self._half.replay), _event_us(self._graph.replay)) for _ in range(9)]
        self.head_us = max(0.0, statistics.median(2 * short - long for short, long in pairs))

    def doubts(self, median_us: float) -> dict[str, str]:
        """A time that is the events' own."""
        return unresolved(median_us, self.launches_per_sample, 0.0)

    def sample(self) -> float:
        """Microseconds per launch, the replay's head taken off."""
        if self._before:
            self._before()
        return (_event_us(self._graph.replay) - self.head_us) / self.launches_per_sample


def _captured(launches: Sequence[Launch], nodes: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(nodes):
            launches[i % len(launches)]()
    return graph


def _one_launch_s(launches: Sequence[Launch]) -> float:
    """Seconds of a launch, after each has run on a side stream as capture wants."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for launch in launches:
            launch()
    torch.cuda.current_stream().wait_stream(side)
    one_s, replay_us = _probed(launches, len(launches))
    if replay_us < PROBE_US:
        one_s, _ = _probed(launches, len(launches) * math.ceil(PROBE_NODES / len(launches)))
    return one_s


def _probed(launches: Sequence[Launch], nodes: int) -> tuple[float, float]:
    """(seconds of a launch with its share of the head, microseconds of the replay)."""
    graph = _captured(launches, nodes)
    graph.replay()
    replay_us = _event_us(graph.replay)
    return replay_us / 1e6 / nodes, replay_us


def _event_us(work: Launch) -> float:
    """Microseconds between two events around some work on the current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3
