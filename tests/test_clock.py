"""bench.clock: on a CPU whose time stands still but for the launches."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

import pytest

from bench import clock as clocks
from bench.clock import CpuClock, launches_for
from bench.l2 import MAX_NODES


@pytest.mark.parametrize(
    ("one_s", "sets", "most", "launches"),
    [
        (3e-6, 1, 8000, 334),
        (3e-6, 5, 8000, 335),
        (1e-3, 1, 8000, 1),
        (1.0, 7, 8000, 7),
        (1e-7, 3, 8000, 7998),
        (1e-7, 4000, 4000, 4000),
        (1e-7, 3000, 4000, 3000),
        (0.0, 1, 8000, 8000),
    ],
)
def test_a_sample_is_whole_rounds_of_a_millisecond_within_the_nodes_allowed(
    one_s: float, sets: int, most: int, launches: int
) -> None:
    assert launches_for(one_s, sets, most) == launches


class StillTime:
    """A CPU whose clock moves by what launches take and by nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, read_ns: int = 0) -> None:
        self.now_ns, self.read_ns = 10**15, read_ns
        self.ran: list[int] = []
        fake = SimpleNamespace(perf_counter_ns=self.read, perf_counter=lambda: self.now_ns / 1e9)
        monkeypatch.setattr(clocks, "time", fake)

    def read(self) -> int:
        self.now_ns += self.read_ns
        return self.now_ns

    def launch(self, us: float, number: int = 0) -> None:
        self.now_ns += round(us * 1000)
        self.ran.append(number)


@pytest.mark.parametrize("us", [0.02, 3.0, 700.0, 5e6])
def test_cpu_period_is_that_of_a_launch(monkeypatch: pytest.MonkeyPatch, us: float) -> None:
    cpu = StillTime(monkeypatch)
    clock = CpuClock([partial(cpu.launch, us)])
    assert clock.sample() == pytest.approx(us, rel=0.05)
    assert clock.launches_per_sample * us >= min(1000, MAX_NODES * us)
    assert clock.launches_per_sample == min(MAX_NODES, math.ceil(1000 / us))
    assert (clock.timer, clock.launch) == ("cpu_wall", "call")


def test_cpu_time_that_does_not_move_is_a_finite_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """T10: an empty launch under a coarse clock."""
    cpu = StillTime(monkeypatch)
    assert CpuClock([partial(cpu.launch, 0.0)]).sample() == 0.0


def test_a_cpu_time_that_is_the_clocks_own_is_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the clock takes 0.1 us here, so that a sample of up to 0.5 us may be nothing but that."""
    cpu = StillTime(monkeypatch, read_ns=100)
    clock = CpuClock([partial(cpu.launch, 3.0)])
    assert clock.doubts(3.0) == {}
    assert clock.doubts(0.51 / clock.launches_per_sample) == {}
    assert "suspect" in clock.doubts(0.49 / clock.launches_per_sample)
    assert clock.doubts(0.0) == {"suspect": "a sample of 0 us where timing nothing takes 0.1 us"}


def test_cpu_keeps_its_place_in_the_rotation_from_sample_to_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = StillTime(monkeypatch)
    clock = CpuClock([partial(cpu.launch, 300.0, number) for number in range(7)])
    for _ in range(10):
        clock.sample()
    assert clock.launches_per_sample == 4
    assert cpu.ran == [number % 7 for number in range(5 + 10 * 4)]


def test_cpu_flush_is_outside_the_time_and_ahead_of_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = StillTime(monkeypatch)
    clock = CpuClock([partial(cpu.launch, 10.0, 1)], before=partial(cpu.launch, 900.0, 0))
    assert [clock.sample() for _ in range(3)] == [10.0] * 3
    assert clock.launches_per_sample == 1
    assert cpu.ran == [0, 1] * 8
