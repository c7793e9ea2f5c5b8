"""The kernels' own durations as CUPTI stamps them, through Triton's profiler (Proton): no gaps and no host in them.

Its time is the sum of a launch's kernels without the gaps between them, so it is shorter than a period by 0.5 to 2 us,
and stands in no table with one. CUPTI has one subscriber: under another profiler, or without a GPU, it is refused, and
the caller falls back and says so. Each session's kernels are counted against the launches; the first are thrown away.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from bench.clock import SAMPLE_S, Launch, Rotation
from bench.cuda_clock import MOST_QUEUED

SESSION_S, MOST_SAMPLES = 0.02, 32
"""A session takes samples for so long, and so many: writing and reading its file takes milliseconds."""
DISCARDED = "discarded"
COUNT, TIME = "count", "time (ns)"
"""What Proton calls how often a kernel ran, and how long in all."""


class CuptiError(RuntimeError):
    """CUPTI does not tell these times; the message says why."""


class CuptiClock:
    """Sums of kernel durations, a session of several samples at a time.

    Raises:
        CuptiError: from the constructor or from any sample.
    """

    timer, launch = "cupti", "stream"

    def __init__(self, launches: Sequence[Launch], before: Launch | None = None) -> None:
        self._rotation, self._before = Rotation(launches), before
        for launch in launches:  # nothing is loaded or compiled inside a session
            launch()
        self._ready: deque[float] = deque()
        self.launches_per_sample, self._kernels, self._samples = 1, 0, 3
        [first, *_] = counted = [count for count, _ in self._session()]
        if not first or len(set(counted)) > 1:
            raise CuptiError(f"one launch is {', '.join(map(str, counted))} kernels: wanted the same number, not 0")
        self._kernels = first
        one_us = statistics.median(self.sample() for _ in range(3))
        if not before:
            self.launches_per_sample = min(MOST_QUEUED, max(1, math.ceil(SAMPLE_S * 1e6 / one_us)))
        sample_s = one_us * self.launches_per_sample / 1e6
        self._samples = max(1, min(MOST_SAMPLES, math.floor(SESSION_S / sample_s)))
        self._ready.clear()

    def sample(self) -> float:
        """Microseconds per launch."""
        if not self._ready:
            wanted = self.launches_per_sample * self._kernels
            for count, time_ns in self._session():
                if count != wanted:
                    raise CuptiError(f"CUPTI told of {count} kernels where {wanted} were launched")
                if not time_ns > 0:
                    raise CuptiError(f"CUPTI gave {count} kernels no time")
                self._ready.append(time_ns / 1e3 / self.launches_per_sample)
        return self._ready.popleft()

    def calibrate(self) -> None:
        """What is left of the last session is older than the warm-up's end."""
        self._ready.clear()

    def doubts(self, median_us: float) -> dict[str, str]:
        """Nothing: every sample's kernels were counted, on whatever stream they ran."""
        return {}

    def facts(self) -> dict[str, float]:
        """Kernels of one launch."""
        return {"kernels_per_launch": self._kernels}

    def _session(self) -> list[tuple[int, float]]:
        """(kernels, their nanoseconds) of each sample of one session."""
        from triton import profiler

        with tempfile.TemporaryDirectory(prefix="roofmark-cupti-") as directory:
            path = Path(directory) / "session"
            try:
                session = profiler.start(str(path), context="shadow", data="tree", backend="cupti")
            except (RuntimeError, ValueError) as error:
                with suppress(RuntimeError):  # without a driver it cannot be ended either
                    profiler.finalize(output_format="hatchet")
                raise CuptiError(f"Proton does not start: {error}") from error
            if session is None:
                raise CuptiError("Proton is switched off, or this process runs under it already")
            try:
                self._run(profiler)
            finally:
                profiler.finalize(output_format="hatchet")
            try:
                tree = json.loads(path.with_suffix(".hatchet").read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise CuptiError(f"Proton wrote no tree that can be read: {error}") from error
        return [_totals(tree, _name(i)) for i in range(self._samples)]

    def _run(self, profiler: Any) -> None:
        torch.cuda.synchronize()  # of what was launched before, nothing may end inside
        with profiler.scope(DISCARDED):
            for launch in self._rotation.take(1):
                launch()
        for i in range(self._samples):
            if self._before:
                self._before()
            with profiler.scope(_name(i)):
                for launch in self._rotation.take(self.launches_per_sample):
                    launch()
        torch.cuda.synchronize()


def _name(sample: int) -> str:
    return f"sample {sample}"


def _totals(tree: Sequence[Any], name: str) -> tuple[int, float]:
    """(kernels, nanoseconds) under a scope of Proton's tree: its first element is the root, the second the devices."""
    scopes = [node for node in tree[0]["children"] if node["frame"]["name"] == name]
    ran = [node["metrics"] for scope in scopes for node in _under(scope) if node["metrics"].get(COUNT)]
    return sum(int(m[COUNT]) for m in ran), sum(float(m.get(TIME, 0)) for m in ran)


def _under(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("children", ()):
        yield from _under(child)
