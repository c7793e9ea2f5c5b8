"""What measuring costs beside what is measured: from first to last sample, and step by step in the record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_gpu import FakeGpu
from fake_gpu.cases import gpu_case, gpu_session, run_on
from small_cases import matmul_case, session

from bench.record import Record, Status
from bench.run import run_case
from bench.stopping import StopRule

ALLOWED = 0.15
"""Share of the time from first to last sample that is not the launches'."""


def share_beside(record: Record) -> float:
    """Of the measuring, by the record alone."""
    assert record.status is Status.OK, record.detail
    measured_s = sum(record.times_us) * record.launches_per_sample / 1e6
    return 1 - measured_s / record.phases_s["measure"]


@pytest.mark.parametrize("kernel_us", [2.0, 50.0, 3000.0])
def test_on_a_gpu_clock_and_stopping_take_under_15_percent(monkeypatch: pytest.MonkeyPatch, kernel_us: float) -> None:
    """With 10 us for every call of torch: two records, a replay and a wait beside a sample of a millisecond or two."""
    gpu = FakeGpu(monkeypatch, kernel_us, call_us=10.0)
    assert 0 < share_beside(run_on(monkeypatch, gpu, gpu_case(gpu))) < ALLOWED


@pytest.mark.speed
@pytest.mark.parametrize("size", [4, 64, 256])
def test_on_a_cpu_clock_stopping_and_bookkeeping_take_under_15_percent(size: int) -> None:
    """On this machine and its real clock; the best of three, since others may work on it too."""
    asked = replace(session(), rule=StopRule(relative=0.0, budget_s=0.3))
    case = matmul_case(axes={"M": size, "N": size, "K": size})
    assert min(share_beside(run_case(case, asked)) for _ in range(3)) < ALLOWED


def test_each_step_has_its_own_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs, first call, check, rotation, warm-up, measuring and the check after it; together they are the case."""
    gpu = FakeGpu(monkeypatch, 50.0)
    record = run_on(monkeypatch, gpu, gpu_case(gpu), gpu_session(rule=StopRule(min_s=0.3)))
    steps = {"inputs", "first_call", "check", "rotate", "warm_up", "measure", "recheck"}
    assert set(record.phases_s) == steps
    assert 0.2 <= record.phases_s["warm_up"] < 0.3
    assert 0.3 <= record.phases_s["measure"] < 0.34, "judged each time the samples have grown by a tenth"
    assert all(seconds >= 0 for seconds in record.phases_s.values())
