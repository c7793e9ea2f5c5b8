"""Clocks of a GPU that need torch alone: replays of a CUDA graph, and events around a stream of launches.

Both look at the device as a whole once, when warm: work that is still going on after the last event has run on a stream
that the events did not see, and the record says `suspect`. The calls are those of torch's own documentation.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

import torch

from bench.clock import SAMPLE_S, Launch, Rotation, launches_for, unresolved
from bench.l2 import MAX_NODES

PROBE_US, PROBE_NODES = 100, 16
"""A replay under so many microseconds is repeated with so many nodes at least, or its head would pass for launches."""
FITS = 9
"""Pairs of replays that the head is the median of, and empty pairs of events that their cost is."""
RESOLUTION_US = 0.5
"""Of events, says the CUDA runtime's documentation."""
LONG_US = 10_000
"""Of this a head of 5 to 8 us is less than a thousandth: it is left in, and the long work is done fewer times."""
HOST_US = 200.0
"""What a host may take to launch and to wait, beyond which a busy device is not explained by it."""
MOST_QUEUED = 250
"""Launches behind one spin: a queue holds about a thousand kernels, a launch here may be a few."""
SPIN_US, MOST_SPIN_US = 100.0, 10_000.0
CYCLES = 1_000_000
"""To learn how fast the device counts: half a millisecond."""
LATE_SHARE, TRIES = 0.05, 8


class _Watched:
    """What both clocks find out of themselves on a warm device, and what they doubt for it."""

    launches_per_sample: int

    def __init__(self) -> None:
        self._event_cost_us = self._unseen_us = self._seen_us = 0.0

    def _watch(self, work: Launch, spun_us: float = 0.0) -> None:
        """Times one sample's work from outside too, and nothing by events.

        Args:
            work: without a flush; `spun_us` of it passes before the first event.
        """
        walls = [_wall_us(work)]
        if walls[0][0] < LONG_US:
            walls += [_wall_us(work) for _ in range(2)]
        self._seen_us = statistics.median(seen for seen, _ in walls)
        self._unseen_us = statistics.median(wall - seen for seen, wall in walls) - spun_us
        self._event_cost_us = max(RESOLUTION_US, statistics.median(_nothing_us() for _ in range(FITS)))

    def doubts(self, median_us: float) -> dict[str, str]:
        """A time that is the events' own, or work that they did not see."""
        if self._unseen_us > max(HOST_US, self._seen_us):
            return {
                "suspect": f"the device was busy for {self._unseen_us:.0f} us outside the {self._seen_us:.0f} us "
                "that the events saw: work on another stream?"
            }
        return unresolved(median_us, self.launches_per_sample, self._event_cost_us)


class CudaGraphClock(_Watched):
    """Replays of a captured graph: no host in the time, and the gap between nodes is part of a launch's period.

    The head of a replay is fitted once, when warm, from graphs of n and 2n nodes and taken off every sample of 2n. A
    round of sets that is long already is replayed as it is, head and all.
    Behind a flush a sample is a graph of one node; its head is the one fitted from n and 2n without the flush, since
    the head is the launch of the graph and does not depend on what the cache holds.
    """

    timer, launch = "cuda_graph", "graph"

    def __init__(self, launches: Sequence[Launch], before: Launch | None = None) -> None:
        super().__init__()
        self._before = before
        one_s = _one_launch_s(launches)
        nodes = launches_for(one_s, len(launches), MAX_NODES // 2)
        self._half = None if one_s * nodes * 1e6 >= LONG_US else _captured(launches, nodes)
        nodes = 2 * nodes if self._half else nodes
        self._whole = _captured(launches, nodes)
        self._graph = _captured(launches, 1) if before else self._whole
        self.launches_per_sample = 1 if before else nodes
        self.head_us = 0.0

    def calibrate(self) -> None:
        """Fits the head. The two graphs take turns, so that a clock that still drifts moves both alike."""
        if self._half:
            _event_us(self._half.replay)
            pairs = [(_event_us(self._half.replay), _event_us(self._whole.replay)) for _ in range(FITS)]
            self.head_us = max(0.0, statistics.median(2 * short - long for short, long in pairs))
        self._watch(self._graph.replay)

    def sample(self) -> float:
        """Microseconds per launch, the replay's head taken off."""
        if self._before:
            self._before()
        # An empty graph takes less than its head's fit: no time is negative.
        return max(0.0, _event_us(self._graph.replay) - self.head_us) / self.launches_per_sample

    def facts(self) -> dict[str, float]:
        """The head, and what a pair of events costs."""
        return {"head_us": self.head_us, "event_cost_us": self._event_cost_us}


class CudaEventClock(_Watched):
    """Events around launches that were queued behind a spinning kernel, for what a graph cannot hold.

    The spin gives the host time to queue the whole sample, so that the device has no gaps to wait in; it is made longer
    until it does. Where the first event has passed before the last launch was queued, the spin was too short, and when
    that happens to more than `LATE_SHARE` of the samples the record says `gaps`. Every launch runs once before, so that
    nothing is loaded or compiled behind a spin.
    """

    timer, launch = "cuda_event", "stream"

    def __init__(self, launches: Sequence[Launch], before: Launch | None = None) -> None:
        super().__init__()
        self._rotation, self._before = Rotation(launches), before
        for launch in launches:
            launch()
        self._spin_us, self._cycles_per_us = SPIN_US, _cycles_per_us()
        self._taken = self._late = 0
        self.launches_per_sample = 1
        if not before:
            for _ in range(2):  # the first, of one launch, has what an event costs in it
                one_us = self._without_gaps_us()
                self.launches_per_sample = min(MOST_QUEUED, max(1, math.ceil(SAMPLE_S * 1e6 / max(one_us, 1e-3))))

    def sample(self) -> float:
        """Microseconds per launch."""
        if self._before:
            self._before()
        return self._queued_us() / self.launches_per_sample

    def _without_gaps_us(self) -> float:
        """Of a launch; each try that was late has made the spin longer, up to the longest there is."""
        for _ in range(TRIES):
            late = self._late
            one_us = statistics.median(self.sample() for _ in range(3))
            if self._late == late:
                break
        return one_us

    def _queued_us(self) -> float:
        chosen = self._rotation.take(self.launches_per_sample)
        start, end = _two_events()
        torch.cuda._sleep(int(self._spin_us * self._cycles_per_us))  # type: ignore[no-untyped-call]
        start.record()
        for launch in chosen:
            launch()
        end.record()
        late = start.query()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        self._taken += 1
        if late:
            self._late += 1
            self._spin_us = min(2 * self._spin_us, MOST_SPIN_US)
        return float(start.elapsed_time(end)) * 1e3

    def calibrate(self) -> None:
        """Looks at the device as a whole, and counts late samples from here on."""

        def queue() -> None:
            for launch in self._rotation.take(self.launches_per_sample):
                launch()

        self._watch(queue)
        self._taken = self._late = 0

    def doubts(self, median_us: float) -> dict[str, str]:
        """Gaps of a slow host beside what is doubted of all events."""
        found = super().doubts(median_us)
        if self._late > LATE_SHARE * self._taken:
            found["gaps"] = (
                f"the host was still queueing when a spin of {self._spin_us:.0f} us ended, "
                f"in {self._late} of {self._taken} samples: gaps between launches may be in the time"
            )
        return found

    def facts(self) -> dict[str, float]:
        """The spin, and what a pair of events costs."""
        return {"spin_us": self._spin_us, "event_cost_us": self._event_cost_us}


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


def _cycles_per_us() -> float:
    """How many of `_sleep`'s cycles a microsecond has: 10 % more or less as clocks move, which a spin may be."""

    def sleep(cycles: int) -> Launch:
        return lambda: torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

    short_us, long_us = _event_us(sleep(CYCLES // 10)), _event_us(sleep(CYCLES))
    return (CYCLES - CYCLES // 10) / max(long_us - short_us, 1.0)


def _two_events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    return start, end


def _event_us(work: Launch) -> float:
    """Microseconds between two events around some work on the current stream."""
    start, end = _two_events()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _nothing_us() -> float:
    """Between two events with nothing between, behind a spin: without the host's time from one call to the next."""
    start, end = _two_events()
    torch.cuda._sleep(CYCLES // 10)  # type: ignore[no-untyped-call]
    start.record()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _wall_us(work: Launch) -> tuple[float, float]:
    """(by events, by the host until the device is idle) microseconds of some work on an idle device."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    seen_us = _event_us(work)
    return seen_us, (time.perf_counter() - begun) * 1e6
