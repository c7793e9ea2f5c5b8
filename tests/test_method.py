"""Each way of timing that can be asked for: what it does, what its record says, and that roofs have one way only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu
from small_cases import matmul_case, session

from bench import l2, timing
from bench.case import Case
from bench.clock import Clock
from bench.cuda_clock import CudaEventClock
from bench.method import Method
from bench.record import Record, Status
from bench.run import Session, run_case
from bench.stopping import StopRule
from kernels import roofs
from kernels.inputs import DISTRIBUTION


@pytest.fixture(autouse=True)
def cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is spent on warming up."""
    monkeypatch.setattr(timing, "warm", lambda *given: 0)


def asking(**method: str) -> Session:
    return replace(session(), method=Method(**method))


def addresses_of(asked: Session, **roles: str) -> tuple[Record, set[int]]:
    """The record of a small matmul, and where its weight lay in the launches after the check."""
    seen: list[int] = []

    def noting(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        seen.append(b.data_ptr())
        return a @ b

    record = run_case(matmul_case(noting, changes={"roles": roles}), asked)
    assert record.status is Status.OK, record.detail
    return record, set(seen)


def test_hot_is_one_set_of_inputs_and_cold_many_and_each_says_so() -> None:
    """T24. The recheck's fresh inputs may lie at an address of their own."""
    hot, one = addresses_of(asking(cache="hot"), b="streamed")
    assert (hot.cache, hot.kernel["copies"], hot.asked["cache"]) == ("hot", 1, "hot")
    assert len(one) in (1, 2)
    cold, many = addresses_of(asking(), b="streamed")
    assert (cold.cache, cold.kernel["copies"], cold.asked["cache"]) == ("cold", 24, "cold")
    assert len(many) in (24, 25)


def test_an_op_with_nothing_streamed_is_resident_however_it_is_asked() -> None:
    for cache in ("hot", "cold"):
        record, _ = addresses_of(asking(cache=cache))
        assert (record.cache, record.asked["cache"]) == ("resident", cache)


@pytest.mark.parametrize(("regime", "least_s"), [("burst", 0.0), ("sustained", 3.0)])
def test_the_regime_decides_the_load_before_measuring(
    monkeypatch: pytest.MonkeyPatch, regime: str, least_s: float
) -> None:
    asked: list[tuple[StopRule, float]] = []

    def warm(clock: Clock, rule: StopRule, least_s: float) -> int:
        asked.append((rule, least_s))
        return 7

    monkeypatch.setattr(timing, "warm", warm)
    record = run_case(matmul_case(), asking(regime=regime))
    assert (record.regime, record.asked["regime"], record.warm_up_samples) == (regime, regime, 7)
    assert asked == [(session().rule, least_s)]


def test_zeros_are_timed_and_normal_values_checked_before_and_after() -> None:
    """T15: 27 % between zeros and normal values have been seen; the record says which."""
    seen: list[tuple[bool, bool]] = []

    def noting(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        seen.append((bool(a.any()), bool(b.any())))
        return a @ b

    record = run_case(matmul_case(noting), asking(inputs="zeros"))
    assert (record.status, record.data) == (Status.OK, {"distribution": "zeros", "seed": 0})
    assert seen[0] == seen[-1] == (True, True)
    timed = [pair for pair in seen if pair == (False, False)]
    assert len(timed) >= record.launches_per_sample * len(record.times_us)
    assert set(seen) == {(True, True), (False, False)}
    assert run_case(matmul_case(), asking()).data["distribution"] == DISTRIBUTION


def test_zeros_leave_integers_and_what_is_no_tensor_alone() -> None:
    inputs: dict[str, Any] = {
        "half": torch.ones(2, dtype=torch.float16), "fp8": torch.ones(2).to(torch.float8_e4m3fn),
        "strided": torch.ones(4, 4)[:, ::2], "table": torch.ones(2, dtype=torch.int32), "causal": True, "bias": None,
    }  # fmt: skip
    timing.zero(inputs)
    assert [inputs[n].float().abs().sum().item() for n in ("half", "fp8", "strided", "table")] == [0, 0, 0, 2]
    assert (inputs["causal"], inputs["bias"]) == (True, None)


def test_a_wrong_case_is_incorrect_though_zeros_would_be_right() -> None:
    wrong = matmul_case(lambda a, b, **_: torch.zeros(a.shape[0], b.shape[1]))
    record = run_case(wrong, asking(inputs="zeros"))
    assert (record.status, record.times_us) == (Status.INCORRECT, ())


def test_every_record_says_what_was_asked_also_one_without_times() -> None:
    method = Method(cache="hot", regime="sustained", timer="auto", inputs="zeros")
    failing = matmul_case(changes={"unsupported": lambda workload, provider: "no such size"})
    record = run_case(failing, replace(session(), method=method))
    assert (record.status, record.asked) == (Status.UNSUPPORTED, asdict(method))


def test_roofs_are_measured_in_the_default_way_whatever_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A roof from hot or zero inputs would be too high for every case under it."""
    asked: list[float] = []

    def warm(clock: Clock, rule: StopRule, least_s: float) -> int:
        asked.append(least_s)
        return 1

    monkeypatch.setattr(timing, "warm", warm)
    workload = roofs.PEAK_READ.describe_axes({"N": 4096}, "float32", ("roof",))
    everything = asking(cache="hot", regime="sustained", inputs="zeros")
    record = run_case(Case(roofs.PEAK_READ, "torch", workload), everything)
    assert (record.status, record.cache, record.regime) == (Status.OK, "cold", "burst")
    assert (record.data["distribution"], record.asked, asked) == (DISTRIBUTION, asdict(Method()), [0.0])


def test_the_timer_asked_for_is_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 3.0)
    asked: list[str] = []

    def on_gpu(device: str, launches: Any, flush: Any, timer: str) -> Any:
        asked.append(timer)
        return CudaEventClock(launches, flush), {}

    def provider(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        gpu.launch(0)
        return a @ b

    monkeypatch.setattr(timing, "make_clock", on_gpu)
    record = run_case(matmul_case(provider), asking(timer="event"))
    assert (record.timer, record.asked["timer"], asked) == ("cuda_event", "event", ["event"])


def test_a_cpu_has_one_clock() -> None:
    for timer in ("graph", "event", "cupti"):
        with pytest.raises(ValueError, match=f"timer {timer}: a CPU has one clock"):
            timing.make_clock("cpu", [], None, timer)


def test_an_nvtx_range_of_the_case_is_around_its_warm_up_and_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU and when asked for only: the installed CPU build has no NVTX, and would raise."""
    done: list[str] = []

    @contextmanager
    def told(name: str) -> Iterator[None]:
        done.append(f"in {name}")
        yield
        done.append("out")

    def noting(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            done.append(name)
            return work(*given)

        return noted

    monkeypatch.setattr(torch.cuda, "nvtx", SimpleNamespace(range=told))
    monkeypatch.setattr(timing, "warm", noting("warm", lambda *given: 1))
    monkeypatch.setattr(timing, "take_samples", noting("samples", timing.take_samples))
    made = timing.make_clock
    monkeypatch.setattr(timing, "make_clock", lambda device, *given: made("cpu", *given))
    for device, nvtx in (("cuda", True), ("cuda", False), ("cpu", True)):
        asked, case, phases = replace(session(), device=device, nvtx=nvtx), matmul_case(), dict[str, float]()
        inputs = case.op.make_inputs(case.workload, "cpu", 0)
        rotation = l2.plan(inputs, case.op.roles, 4096)
        timing.time_case(case, asked, case.op.providers["mine"], rotation, inputs, phases)
    bare = ["warm", "samples"]
    assert done == ["in matmul/mine/float32/M=4,N=8,K=16", *bare, "out", *bare, *bare]


def test_another_method_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="unknown regime 'boost'; known: burst, sustained"):
        Method(regime="boost")
