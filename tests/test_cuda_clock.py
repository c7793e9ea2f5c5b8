"""bench.cuda_clock on a fake GPU: graphs and events, what comes off a sample, and what they doubt of themselves."""

from __future__ import annotations

import math

import pytest
from fake_gpu import HEAD_US, RESOLUTION_US, FakeGpu, launches_on

from bench.clock import CpuClock
from bench.cuda_clock import CudaEventClock, CudaGraphClock
from bench.stopping import StopRule
from bench.timing import make_clock
from bench.warming import warm


def is_long(period_us: float, sets: int) -> bool:
    """Whether a round is 10 ms, of which a head is nothing."""
    return sets * period_us >= 10_000


def warm_graph_clock(gpu: FakeGpu, sets: int = 1) -> CudaGraphClock:
    clock = CudaGraphClock(launches_on(gpu, sets))
    clock.calibrate()
    return clock


@pytest.mark.parametrize("sets", [1, 3, 16, 1000, 4000])
@pytest.mark.parametrize("period_us", [1.0, 3.0, 47.0, 1300.0])
def test_graph_period_is_right_within_a_percent_with_the_head_taken_off(
    monkeypatch: pytest.MonkeyPatch, period_us: float, sets: int
) -> None:
    gpu = FakeGpu(monkeypatch, period_us)
    clock = warm_graph_clock(gpu, sets)
    assert clock.sample() == pytest.approx(period_us, rel=0.01)
    head_us = 0 if is_long(period_us, sets) else HEAD_US
    assert clock.head_us == pytest.approx(head_us, abs=3 * RESOLUTION_US)
    assert (clock.timer, clock.launch) == ("cuda_graph", "graph")


@pytest.mark.parametrize("sets", [1, 3, 16, 1000, 3999, 4000])
@pytest.mark.parametrize("period_us", [1.0, 3.0, 47.0, 1300.0])
def test_graphs_are_whole_rounds_in_order_of_a_millisecond_and_at_most_8000_nodes(
    monkeypatch: pytest.MonkeyPatch, period_us: float, sets: int
) -> None:
    gpu = FakeGpu(monkeypatch, period_us)
    clock = CudaGraphClock(launches_on(gpu, sets))
    half, full = gpu.graphs[-2:]
    assert len(full.nodes) == clock.launches_per_sample
    assert is_long(period_us, sets) or len(full.nodes) == 2 * len(half.nodes)
    assert clock.launches_per_sample * period_us >= 1000
    for graph in gpu.graphs:
        assert len(graph.nodes) <= 8000
        assert graph.nodes == list(range(sets)) * (len(graph.nodes) // sets)


def test_launches_too_short_for_a_millisecond_stop_at_8000_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 0.05)
    assert CudaGraphClock(launches_on(gpu, 1000)).launches_per_sample == max(len(g.nodes) for g in gpu.graphs) == 8000


def test_a_sample_is_one_replay_of_the_larger_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 3.0)
    clock = warm_graph_clock(gpu, 3)
    half, full = gpu.graphs[-2:]
    before = (half.replays, full.replays)
    clock.sample()
    assert (half.replays, full.replays) == (before[0], before[1] + 1)


def test_head_is_fitted_on_a_warm_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that starts at half speed: fitted while it speeds up, the head would be hundreds of microseconds."""
    gpu = FakeGpu(monkeypatch, 3.0, speed=lambda us: 1 / (1 + math.exp(-us / 5000)))
    clock = CudaGraphClock(launches_on(gpu, 4))
    warm(clock, StopRule())
    assert clock.head_us == pytest.approx(HEAD_US, abs=3 * RESOLUTION_US)
    assert clock.sample() == pytest.approx(3.0, rel=0.01)


def test_a_long_round_is_replayed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 sets of 1.3 ms: 31 ms, of which a head is nothing; fitting it would be 9 times 94 ms of load."""
    gpu = FakeGpu(monkeypatch, 1300.0)
    clock = CudaGraphClock(launches_on(gpu, 24))
    done = len(gpu.ran)
    clock.calibrate()
    assert (clock.launches_per_sample, clock.head_us, len(gpu.ran) - done) == (24, 0.0, 24)
    assert clock.sample() == pytest.approx(1300, rel=1e-3)


def test_every_launch_runs_once_on_a_side_stream_before_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 3.0)
    CudaGraphClock(launches_on(gpu, 3))
    assert gpu.ran[:3] == [("side", 0), ("side", 1), ("side", 2)]
    assert {name for name, _ in gpu.ran[3:]} == {"default"}
    assert gpu.waits == [("side", "default"), ("default", "side")]


def test_behind_a_flush_a_sample_is_one_cold_launch_and_the_flush_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """T02: 10 us behind a flush of 80 are 10, also where one node is a replay: its head is known from others."""
    for make in (CudaGraphClock, CudaEventClock):
        gpu = FakeGpu(monkeypatch, 10.0)
        clock = make(launches_on(gpu, 1), gpu.time.flush)
        warm(clock, StopRule())
        gpu.ran.clear()
        assert clock.sample() == clock.sample() == pytest.approx(10, abs=2 * RESOLUTION_US)
        assert gpu.ran == [("flush", -1), ("default", 0)] * 2
        assert clock.launches_per_sample == 1


@pytest.mark.parametrize("sets", [1, 7, 4000])
def test_event_period_is_right_within_a_percent_and_keeps_its_place_in_the_rotation(
    monkeypatch: pytest.MonkeyPatch, sets: int
) -> None:
    """A host of 2 us a launch for kernels of 3 us: without a spin the first few would be the host's."""
    gpu = FakeGpu(monkeypatch, 3.0)
    clock = CudaEventClock(launches_on(gpu, sets))
    clock.calibrate()
    assert clock.launches_per_sample == 250, "as many as a queue holds, where a millisecond would be 334"
    gpu.ran.clear()
    for _ in range(20):
        assert clock.sample() == pytest.approx(3.0, rel=0.01)
    numbers = [number for _, number in gpu.ran]
    assert len(numbers) == 20 * 250
    assert numbers == [(numbers[0] + i) % sets for i in range(len(numbers))]
    assert (clock.timer, clock.launch, clock.doubts(3.0)) == ("cuda_event", "stream", {})


def test_a_host_slower_than_the_kernels_is_waited_for_behind_a_longer_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """T18, triton#1893: 20 us of host for a kernel of 4 us; eager timing would say 20."""
    gpu = FakeGpu(monkeypatch, 4.0, host_us=20.0)
    clock = CudaEventClock(launches_on(gpu, 3))
    warm(clock, StopRule())
    assert [clock.sample() for _ in range(9)] == pytest.approx([4.0] * 9, rel=0.01)
    assert clock.facts()["spin_us"] >= 250 * 20
    assert clock.doubts(4.0) == {}
    graph = CudaGraphClock(launches_on(gpu, 3))
    warm(graph, StopRule())
    assert graph.sample() == pytest.approx(4.0, rel=0.01)


def test_a_host_too_slow_for_any_spin_leaves_gaps_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """250 launches of 100 us take 25 ms to queue, and no spin is longer than 10: a period of 100 us, not of 4."""
    gpu = FakeGpu(monkeypatch, 4.0, host_us=100.0)
    clock = CudaEventClock(launches_on(gpu, 3))
    clock.calibrate()
    clock.launches_per_sample = 250
    for _ in range(20):
        clock.sample()
    assert clock.sample() > 20.0
    reason = clock.doubts(clock.sample())["gaps"]
    assert "a spin of 10000 us ended" in reason and "gaps between launches may be in the time" in reason


def test_late_samples_of_the_warm_up_and_a_rare_one_are_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 4.0, host_us=20.0)
    clock = CudaEventClock(launches_on(gpu, 3))
    for _ in range(9):
        clock.sample()
    clock.calibrate()
    for _ in range(99):
        clock.sample()
    gpu.time.host_us = 200.0
    clock.sample()
    assert clock.doubts(4.0) == {}


def test_kernels_of_a_stream_run_one_behind_the_other_with_their_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A period has the gap in it; a dependent launch hides it. Both clocks agree."""
    for pdl, period_us in ((False, 4.2), (True, 3.0)):
        gpu = FakeGpu(monkeypatch, 3.0, gap_us=1.2, pdl=pdl)
        for make in (CudaGraphClock, CudaEventClock):
            clock = make(launches_on(gpu, 4))
            warm(clock, StopRule())
            assert clock.sample() == pytest.approx(period_us, rel=0.01)


@pytest.mark.parametrize("make", [CudaGraphClock, CudaEventClock])
def test_a_kernel_on_another_stream_is_not_seen_and_makes_the_time_suspect(
    monkeypatch: pytest.MonkeyPatch, make: type[CudaGraphClock] | type[CudaEventClock]
) -> None:
    """T06, T07: 250 us on a stream of its own once read as 5."""
    gpu = FakeGpu(monkeypatch, 250.0)
    clock: CudaGraphClock | CudaEventClock = make([gpu.launch_aside])
    warm(clock, StopRule())
    time_us = clock.sample()
    assert time_us < 5
    assert "suspect" in clock.doubts(time_us), "the record must not stand as a time"
    honest = make(launches_on(gpu, 1))
    warm(honest, StopRule())
    assert honest.doubts(honest.sample()) == {}


def test_work_beside_the_events_is_seen_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """T07: the clock sees some of the launch's work, and another stream has five times as much."""
    gpu = FakeGpu(monkeypatch, 250.0)

    def both() -> None:
        gpu.launch()
        for _ in range(5):
            gpu.launch_aside()

    clock = CudaEventClock([both])
    warm(clock, StopRule())
    assert clock.doubts(clock.sample())["suspect"].endswith("that the events saw: work on another stream?")


def test_a_time_that_is_the_events_own_is_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """T10, T19: launches that do nothing."""
    for make in (CudaGraphClock, CudaEventClock):
        FakeGpu(monkeypatch, 3.0)
        clock = make([lambda: None])
        warm(clock, StopRule())
        time_us = clock.sample()
        assert 0 <= time_us < 0.1
        assert "where timing nothing takes" in clock.doubts(time_us)["suspect"]


def test_what_an_event_costs_is_the_devices_and_not_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that takes 10 us from call to call, and a stream that takes 1.6 for an event: 1.5 as events resolve.

    With the host in it a launch of 20 us behind a flush would be called unresolved.
    """
    for make in (CudaGraphClock, CudaEventClock):
        gpu = FakeGpu(monkeypatch, 20.0, call_us=10.0, event_us=1.6)
        clock = make(launches_on(gpu, 1), gpu.time.flush)
        clock.calibrate()
        assert 1.5 <= clock.facts()["event_cost_us"] <= 2.0
        assert clock.doubts(20.0) == {}
        assert "suspect" in clock.doubts(7.0)
        free = make(launches_on(FakeGpu(monkeypatch, 20.0), 1), None)
        free.calibrate()
        assert free.facts()["event_cost_us"] == RESOLUTION_US


def test_waiting_for_the_device_is_part_of_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """T04: a kernel of 5 ms is 5 ms, by either clock."""
    for make in (CudaGraphClock, CudaEventClock):
        gpu = FakeGpu(monkeypatch, 5000.0)
        clock = make(launches_on(gpu, 1))
        warm(clock, StopRule())
        assert clock.sample() == pytest.approx(5000, rel=0.001)


def test_what_a_graph_cannot_hold_is_timed_by_events_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 3.0)
    assert make_clock("cuda", launches_on(gpu, 2), None)[1] == {}
    gpu.refuses_capture = True
    clock, refused = make_clock("cuda", launches_on(gpu, 2), None)
    assert isinstance(clock, CudaEventClock)
    assert refused == {"graph_refused": "RuntimeError: operation not permitted when stream is capturing"}
    with pytest.raises(RuntimeError, match="not permitted"):
        make_clock("cuda", launches_on(gpu, 2), None, "graph")
    assert isinstance(make_clock("cuda", launches_on(gpu, 2), None, "event")[0], CudaEventClock)


def test_the_device_decides_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 3.0)
    assert isinstance(make_clock("cuda", launches_on(gpu, 2), None)[0], CudaGraphClock)
    monkeypatch.undo()
    assert isinstance(make_clock("cpu", [lambda: None], None)[0], CpuClock)
