"""Clocks: how long one launch takes, as the mean of a sample of launches that lasts at least a millisecond.

Every clock is given the launches of a case, one a set of rotated inputs, and walks through them in order: a sample is a
whole number of rounds, or begins where the one before it ended. Here is what all clocks share, and the CPU's; those of
a GPU are in `bench.cuda_clock` and `bench.cupti`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bench.l2 import MAX_NODES

SAMPLE_S = 1e-3
"""A sample lasts at least this long: CUDA events resolve half a microsecond, a graph's head costs 5 to 8."""

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

    def facts(self) -> dict[str, float]:
        """What it has found out of itself, for the record."""


RESOLVED = 5
"""A sample is this many times what its clock costs, or the clock may be what was measured."""


def unresolved(median_us: float, launches: int, cost_us: float) -> dict[str, str]:
    """The flag `suspect` where a sample is as short as what timing nothing takes."""
    sample_us = median_us * launches
    if sample_us > RESOLVED * cost_us:
        return {}
    return {"suspect": f"a sample of {sample_us:.3g} us where timing nothing takes {cost_us:.3g} us"}


class Rotation:
    """The launches over and over: each taking goes on where the one before it ended."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.sets, self._next = len(launches), 0
        # Repeated beforehand, since choosing launch by launch takes longer than a short launch does.
        self._repeated = [*launches] * (1 + math.ceil(MAX_NODES / len(launches)))

    def take(self, count: int) -> Sequence[Launch]:
        """The next `count` of them, at most `MAX_NODES`."""
        start = self._next
        self._next = (start + count) % self.sets
        return self._repeated[start : start + count]


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
        self._rotation, self._before = Rotation(launches), before
        self.launches_per_sample = 1
        self._cost_us = min(_read_twice_us() for _ in range(5))
        one_s = statistics.median(self.sample() for _ in range(5)) / 1e6
        # A round over all copies of a large input would be seconds: the place in the rotation is kept instead.
        self.launches_per_sample = 1 if before else min(MAX_NODES, max(1, math.ceil(SAMPLE_S / max(one_s, 1e-7))))

    def sample(self) -> float:
        """Microseconds per launch."""
        if self._before:
            self._before()
        chosen = self._rotation.take(self.launches_per_sample)
        start = time.perf_counter_ns()
        for launch in chosen:
            launch()
        return (time.perf_counter_ns() - start) / 1e3 / self.launches_per_sample

    def calibrate(self) -> None:
        """Nothing: the call is what is measured."""

    def doubts(self, median_us: float) -> dict[str, str]:
        """A time that is the clock's own."""
        return unresolved(median_us, self.launches_per_sample, self._cost_us)

    def facts(self) -> dict[str, float]:
        """Nothing: it has no head and no spin."""
        return {}


def _read_twice_us() -> float:
    start = time.perf_counter_ns()
    return (time.perf_counter_ns() - start) / 1e3
