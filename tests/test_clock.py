"""bench.clock: on a CPU whose time stands still but for the launches, and on a simulated GPU."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

import pytest
from simulated_gpu import HEAD_US, RESOLUTION_US, SimulatedGpu, launches_on

from bench import clock as clocks
from bench.clock import CpuClock, CudaEventClock, CudaGraphClock, launches_for
from bench.l2 import MAX_NODES
from bench.stopping import StopRule
from bench.timing import make_clock
from bench.warming import warm


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


def warm_graph_clock(gpu: SimulatedGpu, sets: int = 1) -> CudaGraphClock:
    clock = CudaGraphClock(launches_on(gpu, sets))
    clock.calibrate()
    return clock


@pytest.mark.parametrize("sets", [1, 3, 16, 1000, 4000])
@pytest.mark.parametrize("period_us", [1.0, 3.0, 47.0, 1300.0])
def test_graph_period_is_right_within_a_percent_with_the_head_taken_off(
    monkeypatch: pytest.MonkeyPatch, period_us: float, sets: int
) -> None:
    gpu = SimulatedGpu(monkeypatch, period_us)
    clock = warm_graph_clock(gpu, sets)
    assert clock.sample() == pytest.approx(period_us, rel=0.01)
    assert clock.head_us == pytest.approx(HEAD_US, abs=3 * RESOLUTION_US)
    assert (clock.timer, clock.launch) == ("cuda_graph", "graph")


@pytest.mark.parametrize("sets", [1, 3, 16, 1000, 3999, 4000])
@pytest.mark.parametrize("period_us", [1.0, 3.0, 47.0, 1300.0])
def test_graphs_are_whole_rounds_in_order_of_a_millisecond_and_at_most_8000_nodes(
    monkeypatch: pytest.MonkeyPatch, period_us: float, sets: int
) -> None:
    gpu = SimulatedGpu(monkeypatch, period_us)
    clock = CudaGraphClock(launches_on(gpu, sets))
    half, full = gpu.graphs[-2:]
    assert len(full.nodes) == 2 * len(half.nodes) == clock.launches_per_sample
    assert clock.launches_per_sample * period_us >= 1000
    for graph in gpu.graphs:
        assert len(graph.nodes) <= 8000
        assert graph.nodes == list(range(sets)) * (len(graph.nodes) // sets)


def test_launches_too_short_for_a_millisecond_stop_at_8000_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu(monkeypatch, 0.05)
    assert CudaGraphClock(launches_on(gpu, 1000)).launches_per_sample == max(len(g.nodes) for g in gpu.graphs) == 8000


def test_a_sample_is_one_replay_of_the_larger_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu(monkeypatch, 3.0)
    clock = warm_graph_clock(gpu, 3)
    half, full = gpu.graphs[-2:]
    before = (half.replays, full.replays)
    clock.sample()
    assert (half.replays, full.replays) == (before[0], before[1] + 1)


def test_head_is_fitted_on_a_warm_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that starts at half speed: fitted while it speeds up, the head would be hundreds of microseconds."""
    gpu = SimulatedGpu(monkeypatch, 3.0, ramp_us=5000)
    clock = CudaGraphClock(launches_on(gpu, 4))
    warm(clock, StopRule())
    assert clock.head_us == pytest.approx(HEAD_US, abs=3 * RESOLUTION_US)
    assert clock.sample() == pytest.approx(3.0, rel=0.01)


def test_every_launch_runs_once_on_a_side_stream_before_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu(monkeypatch, 3.0)
    CudaGraphClock(launches_on(gpu, 3))
    assert gpu.ran[:3] == [("side", 0), ("side", 1), ("side", 2)]
    assert {name for name, _ in gpu.ran[3:]} == {"default"}
    assert gpu.waits == [("side", "default"), ("default", "side")]


def test_behind_a_flush_a_sample_is_one_cold_launch_and_the_flush_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """T02: 10 us behind a flush of 80 are 10, and a graph's head where one node is a replay."""
    gpu = SimulatedGpu(monkeypatch, 10.0)
    for clock, us in (
        (CudaGraphClock(launches_on(gpu, 1), gpu.flush), 10 + HEAD_US),
        (CudaEventClock(launches_on(gpu, 1), gpu.flush), 10),
    ):
        clock.calibrate()
        gpu.ran.clear()
        assert clock.sample() == clock.sample() == pytest.approx(us, abs=RESOLUTION_US)
        assert gpu.ran == [("flush", -1), ("default", 0)] * 2
        assert clock.launches_per_sample == 1


@pytest.mark.parametrize("sets", [1, 7, 4000])
def test_event_period_is_right_within_a_percent_over_whole_rounds(monkeypatch: pytest.MonkeyPatch, sets: int) -> None:
    gpu = SimulatedGpu(monkeypatch, 3.0)
    clock = CudaEventClock(launches_on(gpu, sets))
    gpu.ran.clear()
    assert clock.sample() == pytest.approx(3.0, rel=0.01)
    assert clock.launches_per_sample * 3 >= 0.99 * 1000
    assert [number for _, number in gpu.ran] == list(range(sets)) * (clock.launches_per_sample // sets)
    assert (clock.timer, clock.launch) == ("cuda_event", "stream")


def test_what_a_graph_cannot_hold_is_timed_by_events_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu(monkeypatch, 3.0)
    assert make_clock("cuda", launches_on(gpu, 2), None)[1] == {}
    gpu.refuses_capture = True
    clock, refused = make_clock("cuda", launches_on(gpu, 2), None)
    assert isinstance(clock, CudaEventClock)
    assert refused == {"graph_refused": "RuntimeError: operation not permitted when stream is capturing"}
    with pytest.raises(RuntimeError, match="not permitted"):
        make_clock("cuda", launches_on(gpu, 2), None, "graph")
    assert isinstance(make_clock("cuda", launches_on(gpu, 2), None, "event")[0], CudaEventClock)


def test_the_device_decides_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu(monkeypatch, 3.0)
    assert isinstance(make_clock("cuda", launches_on(gpu, 2), None)[0], CudaGraphClock)
    StillTime(monkeypatch)
    assert isinstance(make_clock("cpu", launches_on(gpu, 2), None)[0], CpuClock)


def test_the_simulated_gpu_refuses_what_torch_would(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu(monkeypatch, 3.0)
    with pytest.raises(TypeError, match="enable_timming"):
        gpu.Event(enable_timming=True)
    start, end = gpu.Event(enable_timing=True), gpu.Event(enable_timing=True)
    start.record()
    gpu.launch(0)
    end.record()
    with pytest.raises(AssertionError, match="before the device was waited for"):
        start.elapsed_time(end)
    gpu.synchronize()
    assert start.elapsed_time(end) == pytest.approx((2 + 3) / 1000)
