"""Kernels' own times through Proton: what is counted, what is refused, and what a run falls back to, aloud."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_gpu import FakeGpu, FakeProton, launches_on
from triton import profiler
from triton.profiler.flags import flags

from bench.clock import Rotation
from bench.cuda_clock import CudaEventClock, CudaGraphClock
from bench.cupti import CuptiClock, CuptiError
from bench.stopping import StopRule
from bench.timing import make_clock
from bench.warming import warm

Fault = Callable[[FakeProton], Any]


@pytest.mark.parametrize("kernel_us", [2.0, 47.0, 1300.0, 200_000.0])
def test_the_time_is_the_kernels_without_gap_and_host(monkeypatch: pytest.MonkeyPatch, kernel_us: float) -> None:
    """T24: 1.2 us under the period of the same launches in a graph, and another timer in the record."""
    gpu = FakeGpu(monkeypatch, kernel_us, gap_us=1.2, host_us=5.0)
    FakeProton(monkeypatch, gpu)
    clock = CuptiClock(launches_on(gpu, 3))
    warm(clock, StopRule())
    assert [clock.sample() for _ in range(40)] == pytest.approx([kernel_us] * 40, rel=1e-3)
    assert (clock.timer, clock.launch, clock.doubts(kernel_us)) == ("cupti", "stream", {})
    assert clock.facts() == {"kernels_per_launch": 1}
    assert clock.launches_per_sample == max(1, min(250, -(-1000 // kernel_us)))
    graph = CudaGraphClock(launches_on(gpu, 3))
    warm(graph, StopRule())
    assert graph.sample() - clock.sample() == pytest.approx(1.2, rel=0.2 if kernel_us < 1e5 else 2)


def test_kernels_of_one_launch_are_summed_on_whatever_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 10.0)
    FakeProton(monkeypatch, gpu)

    def three() -> None:
        gpu.launch()
        gpu.launch()
        gpu.launch_aside()

    clock = CuptiClock([three])
    assert clock.sample() == pytest.approx(30.0)
    assert clock.facts() == {"kernels_per_launch": 3}


def test_a_session_walks_the_rotation_and_ends_before_its_times_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 100.0)
    proton = FakeProton(monkeypatch, gpu)
    clock = CuptiClock(launches_on(gpu, 7))
    clock.calibrate()
    gpu.ran.clear()
    begun = proton.started
    for _ in range(60):
        clock.sample()
    assert proton.started - begun == 3, "20 samples of a millisecond a session"
    assert proton.open == "" and proton.finalized == proton.started
    numbers = [number for _, number in gpu.ran]
    assert set(numbers) == set(range(7))


def test_behind_a_flush_every_launch_is_cold_and_the_flush_is_in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 10.0)
    FakeProton(monkeypatch, gpu)
    clock = CuptiClock(launches_on(gpu, 1), gpu.time.flush)
    clock.calibrate()
    gpu.ran.clear()
    assert clock.sample() == 10.0
    assert gpu.ran[1:5] == [("flush", -1), ("default", 0)] * 2


def refuses(proton: FakeProton) -> None:
    proton.refuses = "Failed to execute cuptiSubscribe with error 39"


def is_off(proton: FakeProton) -> None:
    proton.is_off = True


def loses(proton: FakeProton) -> None:
    proton.loses = 1


def no_time(proton: FakeProton) -> None:
    proton.no_time = True


def torn(proton: FakeProton) -> None:
    proton.torn = True


FAULTS: list[tuple[Fault, str]] = [
    (refuses, "Proton does not start: Failed to execute cuptiSubscribe with error 39"),
    (is_off, "Proton is switched off, or this process runs under it already"),
    (loses, "one launch is 0, 0, 0 kernels: wanted the same number, not 0"),
    (no_time, "CUPTI gave 1 kernels no time"),
    (torn, "Proton wrote no tree that can be read"),
]


@pytest.mark.parametrize(("fault", "told"), FAULTS)
def test_what_cupti_does_not_tell_is_timed_by_a_graph_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, told: str
) -> None:
    gpu = FakeGpu(monkeypatch, 10.0)
    proton = FakeProton(monkeypatch, gpu)
    assert isinstance(make_clock("cuda", launches_on(gpu, 2), None, "cupti")[0], CuptiClock)
    fault(proton)
    clock, refused = make_clock("cuda", launches_on(gpu, 2), None, "cupti")
    assert isinstance(clock, CudaGraphClock)
    assert refused["cupti_refused"].startswith(told)
    gpu.refuses_capture = True
    clock, refused = make_clock("cuda", launches_on(gpu, 2), None, "cupti")
    assert isinstance(clock, CudaEventClock)
    assert set(refused) == {"cupti_refused", "graph_refused"}


def test_records_that_get_lost_while_measuring_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytorch's profiler and others have lost the first records of a session: fewer kernels are no shorter time."""
    gpu = FakeGpu(monkeypatch, 10.0)
    proton = FakeProton(monkeypatch, gpu)
    clock = CuptiClock(launches_on(gpu, 2))
    clock.calibrate()
    proton.loses = 3
    with pytest.raises(CuptiError, match="CUPTI told of 97 kernels where 100 were launched"):
        clock.sample()


def test_launches_of_changing_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 10.0)
    FakeProton(monkeypatch, gpu)
    calls: list[int] = []

    def changing() -> None:
        calls.append(0)
        for _ in range(1 + len(calls) % 2):
            gpu.launch()

    with pytest.raises(CuptiError, match=r"one launch is [12], [12], [12] kernels: wanted the same number"):
        CuptiClock([changing])


def test_an_error_in_the_launches_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 10.0)
    proton = FakeProton(monkeypatch, gpu)
    clock = CuptiClock(launches_on(gpu, 2))
    clock.calibrate()

    def broken() -> None:
        raise RuntimeError("CUDA error: misaligned address")

    clock._rotation = Rotation([broken])
    gpu.synchronize()
    with pytest.raises(RuntimeError, match="misaligned"):
        clock.sample()
    assert proton.open == ""


def test_the_real_proton_of_a_machine_without_a_gpu_is_refused_and_left_as_it_was() -> None:
    """The installed one, and no stub: it raises from its start, and again from its end."""
    with pytest.raises(CuptiError, match=r"Proton does not start: .*"):
        CuptiClock([lambda: None])
    assert not flags.profiling_on
    assert profiler.__name__ == "triton.profiler"
