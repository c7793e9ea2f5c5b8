"""Warming up: the very samples that will be measured, until two stretches of them agree.

A fixed warm-up of 25 ms has been seen to read 30 % too slow. Here it lasts at least `FLOOR_S`, and then until the
medians of two successive windows differ by no more than `AGREE`. What never settles is measured all the same, after
`PATIENCE` times the measuring budget more: its drift shows in the record's times, which keep their order.
"""

from __future__ import annotations

import statistics
import time

from bench.clock import Clock
from bench.stopping import StopRule

FLOOR_S = 0.2
WINDOW_S = 0.05
AGREE = 0.01
PATIENCE = 4.0
REWARM_S = 0.02


def warm(clock: Clock, rule: StopRule, least_s: float = 0.0) -> int:
    """Runs samples until caches, clocks and allocators have settled, then calibrates the clock; how many samples.

    Args:
        clock: whose samples to run.
        rule: its budget bounds how long an unsettled case is waited for.
        least_s: seconds of load at the least, for the sustained regime.
    """
    floor_s = max(FLOOR_S, least_s)
    start = window_start = time.perf_counter()
    window: list[float] = []
    before_us, count, settled = 0.0, 0, False
    while True:
        window.append(clock.sample())
        count += 1
        now = time.perf_counter()
        if now - window_start >= WINDOW_S:
            median_us = statistics.median(window)
            settled = abs(median_us - before_us) <= AGREE * median_us
            before_us, window_start, window = median_us, now, []
        if (settled and now - start >= floor_s) or now - start >= floor_s + PATIENCE * rule.budget_s:
            clock.calibrate()
            return count


def keep_warm(clock: Clock) -> None:
    """A few samples more, since clocks fall while the host asks for telemetry; none of them is kept."""
    start = time.perf_counter()
    while time.perf_counter() - start < REWARM_S:
        clock.sample()
