"""The harness itself, whole, on a fake GPU: what it says of kernels whose times, and whose mischief, are known."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_gpu import RESOLUTION_US, FakeGpu, FakeProton, Timeline
from fake_gpu.cases import CACHE_BYTES, gpu_case, gpu_session, live_telemetry, run_on

from bench import timing
from bench.method import Method
from bench.record import Record, Status
from bench.run import Session
from bench.stopping import StopRule, median_interval
from bench.worker import is_sticky
from kernels.spec import UnsupportedError, Workload

PERIODS_US = (2.0, 4.7, 31.0, 480.0, 9_000.0, 200_000.0)


def median_us(record: Record) -> float:
    assert record.status is Status.OK, record.detail
    return median_interval(record.times_us)[0]


def asking(**method: str) -> Session:
    return gpu_session(method=Method(**method))


# Known periods


@pytest.mark.parametrize("timer", ["graph", "event", "cupti"])
@pytest.mark.parametrize("cache", ["cold", "hot"])
@pytest.mark.parametrize("period_us", PERIODS_US)
def test_a_known_period_is_measured_within_a_percent(
    monkeypatch: pytest.MonkeyPatch, period_us: float, cache: str, timer: str
) -> None:
    """From 2 us to 200 ms, with a head of 6 us, a host of 2 us a launch and events of half a microsecond."""
    gpu = FakeGpu(monkeypatch, period_us)
    FakeProton(monkeypatch, gpu)
    record = run_on(monkeypatch, gpu, gpu_case(gpu), asking(timer=timer, cache=cache))
    assert median_us(record) == pytest.approx(period_us, rel=0.01)
    assert record.timer == {"graph": "cuda_graph", "event": "cuda_event", "cupti": "cupti"}[timer]
    assert (record.flags, record.cache, record.regime) == ((), cache, "burst")
    assert record.stop_reason in ("converged", "budget")


@pytest.mark.parametrize("timer", ["graph", "event"])
@pytest.mark.parametrize("period_us", [40.0, 480.0, 9_000.0])
def test_a_known_period_behind_a_flush_is_within_a_resolution(
    monkeypatch: pytest.MonkeyPatch, period_us: float, timer: str
) -> None:
    """T02: one launch a sample, which an event resolves to half a microsecond; 80 us of flush are outside."""
    gpu = FakeGpu(monkeypatch, period_us)
    case = gpu_case(gpu)
    small = gpu_session(method=Method(timer=timer))
    big = gpu_session(method=Method(timer=timer), environment=SimpleNamespace(l2_bytes=10**6))
    assert run_on(monkeypatch, gpu, case, small).cache == "cold"
    record = run_on(monkeypatch, gpu, case, big)
    assert (record.cache, record.launches_per_sample) == ("flush", 1)
    assert median_us(record) == pytest.approx(period_us, abs=2 * RESOLUTION_US + 0.01 * period_us)


def test_gaps_between_launches_are_part_of_the_period_and_pdl_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for pdl, period_us in ((False, 4.2), (True, 3.0)):
        gpu = FakeGpu(monkeypatch, 3.0, gap_us=1.2, pdl=pdl)
        for timer in ("graph", "event"):
            record = run_on(monkeypatch, gpu, gpu_case(gpu), asking(timer=timer))
            assert median_us(record) == pytest.approx(period_us, rel=0.01)


# The cache


@pytest.mark.parametrize("timer", ["graph", "event"])
def test_a_warm_cache_is_seen_as_hot_and_not_as_cold(monkeypatch: pytest.MonkeyPatch, timer: str) -> None:
    """T01, flashinfer#4468: a launch whose weight the cache holds takes 40 %; rotation must see none of that."""
    gpu = FakeGpu(monkeypatch, 50.0, l2_bytes=CACHE_BYTES, hot=0.4)
    cold = run_on(monkeypatch, gpu, gpu_case(gpu), asking(timer=timer))
    hot = run_on(monkeypatch, gpu, gpu_case(gpu), asking(timer=timer, cache="hot"))
    assert cold.cache == "cold" and median_us(cold) == pytest.approx(50.0, rel=0.01)
    assert hot.cache == "hot" and median_us(hot) == pytest.approx(20.0, rel=0.01)


def test_a_rotation_that_is_too_short_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the assertion in `l2.rotate` guards: the fake cache tells a round that it holds from others."""
    gpu = FakeGpu(monkeypatch, 50.0, l2_bytes=100 * CACHE_BYTES, hot=0.4)
    assert median_us(run_on(monkeypatch, gpu, gpu_case(gpu))) == pytest.approx(20.0, rel=0.01)


def test_graph_and_events_agree_cold_and_each_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """T01: within 10 % by the two timers, and both records state timer and cache."""
    gpu = FakeGpu(monkeypatch, 16.0, l2_bytes=CACHE_BYTES, hot=0.4)
    graph, event = (run_on(monkeypatch, gpu, gpu_case(gpu), asking(timer=timer)) for timer in ("graph", "event"))
    assert median_us(graph) == pytest.approx(median_us(event), rel=0.1)
    assert [(r.timer, r.launch, r.cache) for r in (graph, event)] == [
        ("cuda_graph", "graph", "cold"),
        ("cuda_event", "stream", "cold"),
    ]


def test_a_flush_inside_the_window_would_be_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """triton#8384: 80 us of flush beside 10 of kernel. The same case with the flush in the launch says 90."""
    gpu = FakeGpu(monkeypatch, 10.0)
    big = gpu_session(environment=SimpleNamespace(l2_bytes=10**6))
    assert median_us(run_on(monkeypatch, gpu, gpu_case(gpu), big)) == pytest.approx(10, abs=2 * RESOLUTION_US)

    def with_flush(weight: torch.Tensor) -> None:
        gpu.launch()
        gpu.time.run(80.0)

    eager = gpu_session(method=Method(timer="event"), environment=big.environment)
    assert median_us(run_on(monkeypatch, gpu, gpu_case(gpu, with_flush), eager)) == pytest.approx(90, abs=1)


# Stopping, drift and throttling


def test_a_lucky_first_sample_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve samples at half the time, right after the warm-up, would have looked converged."""
    gpu = FakeGpu(monkeypatch, 50.0)
    lucky_until = [0.0]
    real = timing.take_samples

    def lucky(*given: Any) -> Any:
        lucky_until[0] = gpu.time.device_us + 12_500.0 * 2
        return real(*given)

    gpu.time.speed = lambda us: 2.0 if us < lucky_until[0] else 1.0
    monkeypatch.setattr(timing, "take_samples", lucky)
    record = run_on(monkeypatch, gpu, gpu_case(gpu), gpu_session(rule=StopRule(budget_s=0.5, min_s=0.0)))
    assert record.times_us[0] == pytest.approx(25.0, rel=0.05)
    assert median_us(record) == pytest.approx(50.0, rel=0.01)
    assert (record.stop_reason, len(record.times_us) >= 30) == ("converged", True)


def test_throttling_in_the_middle_is_flagged_and_all_samples_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """T14, nvbench#231: a power cap after 50 ms of measuring takes 30 % of the clock; nothing is thrown away."""
    gpu = FakeGpu(monkeypatch, 50.0)
    telemetry, _ = live_telemetry(monkeypatch, gpu)
    from_us = [1e12]
    real = timing.take_samples

    def capped(*given: Any) -> Any:
        from_us[0] = gpu.time.device_us + 50_000
        return real(*given)

    gpu.time.speed = lambda us: 0.7 if us >= from_us[0] else 1.0
    monkeypatch.setattr(timing, "take_samples", capped)
    record = run_on(monkeypatch, gpu, gpu_case(gpu), gpu_session(telemetry=telemetry))
    assert record.flags == ("throttled",)
    assert min(record.times_us) == pytest.approx(50.0, rel=0.01)
    assert max(record.times_us) == pytest.approx(50 / 0.7, rel=0.02)
    tenth = len(record.times_us) // 10
    first, last = (statistics.median(part) for part in (record.times_us[:tenth], record.times_us[-tenth:]))
    assert last / first == pytest.approx(1 / 0.7, rel=0.02), "in the order taken, so that the drift can be told"
    assert record.telemetry is not None
    before, after = record.telemetry["before"], record.telemetry["after"]
    assert (before["sm_clock_mhz"], after["sm_clock_mhz"], after["throttle_reasons"]) == (1980, 1386, ["SwPowerCap"])


def test_a_gpu_at_its_clock_is_not_flagged_and_the_clock_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """E12: unlocked clocks are observed, never demanded."""
    gpu = FakeGpu(monkeypatch, 50.0)
    telemetry, _ = live_telemetry(monkeypatch, gpu)
    record = run_on(monkeypatch, gpu, gpu_case(gpu), gpu_session(telemetry=telemetry))
    assert record.flags == () and record.telemetry is not None
    assert record.telemetry["before"]["sm_clock_mhz"] == 1980


def test_another_process_on_the_gpu_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 50.0)
    other = [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=2**30)]
    telemetry, _ = live_telemetry(monkeypatch, gpu, nvmlDeviceGetComputeRunningProcesses=other)
    record = run_on(monkeypatch, gpu, gpu_case(gpu), gpu_session(telemetry=telemetry))
    assert record.flags == ("contended",) and median_us(record) == pytest.approx(50.0, rel=0.01)


def test_the_device_is_warm_again_after_telemetry_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks fall while the host asks: 5 ms of an idle device cost 20 % of speed here, until it has worked for 5 ms."""
    gpu = FakeGpu(monkeypatch, 50.0)
    telemetry, table = live_telemetry(monkeypatch, gpu)
    cold_until = [0.0]
    real = telemetry.snapshot

    def slow_snapshot() -> Any:
        gpu.time.host_now_us += 5000.0
        cold_until[0] = gpu.time.host_now_us + 5000.0
        return real()

    gpu.time.speed = lambda us: 0.8 if us < cold_until[0] else 1.0
    monkeypatch.setattr(telemetry, "snapshot", slow_snapshot)
    record = run_on(monkeypatch, gpu, gpu_case(gpu), gpu_session(telemetry=telemetry))
    assert record.times_us[0] == pytest.approx(50.0, rel=0.01)
    assert table.asked > 0


def test_sustained_load_is_three_seconds_of_the_case_before_its_first_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUTLASS: clocks swing for three seconds. Here they fall by 20 % within 2.5 s, which a burst does not see."""
    gpu = FakeGpu(monkeypatch, 100.0)
    gpu.time.speed = lambda us: 1.0 - 0.2 * min(1.0, max(0.0, us - 5e5) / 2e6)
    burst = run_on(monkeypatch, gpu, gpu_case(gpu))
    gpu.time = Timeline(kernel_us=100.0, speed=gpu.time.speed)
    sustained = run_on(monkeypatch, gpu, gpu_case(gpu), asking(regime="sustained"))
    assert burst.regime == "burst" and median_us(burst) == pytest.approx(100, rel=0.03)
    assert sustained.regime == "sustained" and median_us(sustained) == pytest.approx(125, rel=0.005)
    assert sustained.warm_up_samples * sustained.launches_per_sample * 100 >= 0.8 * 3e6


# What a clock cannot see


def test_a_clock_that_returns_0_is_a_finite_time_and_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """T10, T19: a launch that does nothing."""
    gpu = FakeGpu(monkeypatch, 50.0)
    for timer in ("graph", "event"):
        short = gpu_session(method=Method(timer=timer), rule=StopRule(budget_s=0.01))
        record = run_on(monkeypatch, gpu, gpu_case(gpu, lambda weight: None), short)
        assert median_us(record) < 0.1
        assert record.flags == ("suspect",)
        assert "where timing nothing takes" in record.kernel["suspect_because"]


@pytest.mark.parametrize("timer", ["graph", "event"])
def test_a_kernel_on_another_stream_is_suspect(monkeypatch: pytest.MonkeyPatch, timer: str) -> None:
    """T06, T07, helion#2994: 250 us read as 5, and KernelBench's cheat of a stream that is joined never."""
    gpu = FakeGpu(monkeypatch, 250.0)
    record = run_on(monkeypatch, gpu, gpu_case(gpu, lambda weight: gpu.launch_aside()), asking(timer=timer))
    assert median_us(record) < 5
    assert record.flags == ("suspect",) and record.kernel["suspect_because"]


def test_cupti_sees_a_kernel_on_any_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 250.0)
    FakeProton(monkeypatch, gpu)
    record = run_on(monkeypatch, gpu, gpu_case(gpu, lambda weight: gpu.launch_aside()), asking(timer="cupti"))
    assert record.flags == () and median_us(record) == pytest.approx(250.0)


def test_a_slow_host_has_smaller_samples_and_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """T18: 90 us of host for a kernel of 2 us. 250 launches would be 22 ms to queue, and a spin is 10 at most."""
    gpu = FakeGpu(monkeypatch, 2.0, host_us=90.0)
    record = run_on(monkeypatch, gpu, gpu_case(gpu), asking(timer="event"))
    assert record.flags == () and record.launches_per_sample < 111
    assert median_us(record) == pytest.approx(2.0, abs=RESOLUTION_US / record.launches_per_sample + 0.02)
    assert median_us(run_on(monkeypatch, gpu, gpu_case(gpu))) == pytest.approx(2.0, rel=0.01)


def test_a_launch_that_the_host_holds_up_inside_has_gaps_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """T18: two kernels of 2 us with 20 ms of host between them: no spin is as long."""
    gpu = FakeGpu(monkeypatch, 2.0)

    def held_up(weight: torch.Tensor) -> None:
        gpu.launch()
        gpu.time.call(20_000.0)
        gpu.launch()

    record = run_on(monkeypatch, gpu, gpu_case(gpu, held_up), asking(timer="event"))
    assert record.flags == ("gaps",)
    assert "gaps between launches may be in the time" in record.kernel["gaps_because"]
    assert median_us(record) > 5000
    assert median_us(run_on(monkeypatch, gpu, gpu_case(gpu, held_up))) == pytest.approx(4.0, rel=0.01)


# Refusals and errors


def test_what_a_graph_cannot_hold_is_timed_by_events_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """T16: a capture that is refused, by an autotuner's wait say."""
    gpu = FakeGpu(monkeypatch, 20.0)
    gpu.refuses_capture = True
    record = run_on(monkeypatch, gpu, gpu_case(gpu))
    assert record.timer == "cuda_event" and median_us(record) == pytest.approx(20.0, rel=0.01)
    assert record.kernel["graph_refused"] == "RuntimeError: operation not permitted when stream is capturing"
    assert record.asked["timer"] == "auto"
    wanted = run_on(monkeypatch, gpu, gpu_case(gpu), asking(timer="graph"))
    assert (wanted.status, wanted.times_us) == (Status.FAILED, ())
    assert "not permitted when stream is capturing" in wanted.detail


def test_cupti_that_loses_records_while_measuring_ends_in_a_graph_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(monkeypatch, 50.0)
    proton = FakeProton(monkeypatch, gpu)
    real = timing.take_samples

    def losing(*given: Any) -> Any:
        proton.loses = 1
        return real(*given)

    monkeypatch.setattr(timing, "take_samples", losing)
    record = run_on(monkeypatch, gpu, gpu_case(gpu), asking(timer="cupti"))
    assert (record.timer, record.asked["timer"]) == ("cuda_graph", "cupti")
    assert record.kernel["cupti_refused"] == "CUPTI told of 19 kernels where 20 were launched"
    assert median_us(record) == pytest.approx(50.0, rel=0.01)


def test_a_tuner_that_picks_its_config_in_the_first_call_has_done_so_before_the_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T16: its wait for the device kills a capture; the first call and the check come before any."""
    gpu = FakeGpu(monkeypatch, 20.0)
    tuned: list[bool] = []

    def tuning(weight: torch.Tensor) -> None:
        if not tuned:
            torch.cuda.synchronize()
            tuned.append(gpu.capturing is None)
        gpu.launch()

    record = run_on(monkeypatch, gpu, gpu_case(gpu, tuning))
    assert (record.timer, tuned) == ("cuda_graph", [True])


@pytest.mark.parametrize("breaks_at", [1, 5, 40, 3000, 6000])
def test_an_error_that_stays_ends_in_a_record_that_costs_the_process(
    monkeypatch: pytest.MonkeyPatch, breaks_at: int
) -> None:
    """E17: in the first call, the check, the capture's warm-up, the warm-up or the measuring."""
    gpu = FakeGpu(monkeypatch, 50.0, breaks_at=breaks_at)
    record = run_on(monkeypatch, gpu, gpu_case(gpu))
    assert (record.status, record.times_us) == (Status.FAILED, ())
    assert record.detail == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert is_sticky(record)


def test_out_of_memory_and_unsupported_have_their_status_on_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 50.0)
    ends = {
        Status.OUT_OF_MEMORY: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        Status.UNSUPPORTED: UnsupportedError("head_dim 512 does not fit"),
    }
    for status, error in ends.items():

        def broken(weight: torch.Tensor, error: Exception = error) -> None:
            raise error

        assert run_on(monkeypatch, gpu, gpu_case(gpu, broken)).status is status


def test_samples_are_in_the_order_taken_and_none_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """triton#4493: a throttle cycle of 20 ms shows in the record, whose quantiles alone would hide it."""
    gpu = FakeGpu(monkeypatch, 100.0)
    gpu.time.speed = lambda us: 0.8 if int(us) // 10_000 % 2 else 1.0
    rule = StopRule(budget_s=0.2)
    record = run_on(monkeypatch, gpu, gpu_case(gpu), gpu_session(rule=rule))
    slow = [time_us > 112 for time_us in record.times_us]
    changes = sum(a != b for a, b in pairwise(slow))
    assert record.stop_reason == "budget"
    assert 12 <= changes <= 24, "a cycle every 20 ms for 0.2 s"


def test_our_own_kernels_are_timed_in_the_first_configuration_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record holds it; a provider of somebody else's has none."""
    gpu = FakeGpu(monkeypatch, 50.0)
    asked: list[tuple[str, int]] = []
    used: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))

    def provider(a: torch.Tensor, b: torch.Tensor, config: object = None, **_: object) -> torch.Tensor:
        used.append(config)
        gpu.launch()
        return a @ b

    def configs(workload: Workload, capability: int) -> list[Tile]:
        asked.append((workload.dtype, capability))
        return [Tile(64), Tile(128)]

    for name, expected in (("triton", {"block_m": 64}), ("mine", {})):
        case = gpu_case(gpu, providers={name: provider}, configs=configs)
        record = run_on(monkeypatch, gpu, replace(case, provider=name))
        assert (record.status, record.config) == (Status.OK, expected), record.detail
    assert asked == [("float32", 90)] and set(used) == {Tile(64), None}


@dataclass(frozen=True)
class Tile:
    block_m: int
