"""Snapshots of a GPU through NVML's real signatures: units, nulls where it refuses, and what marks a case."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pynvml as real_nvml
import pytest
from test_environment_gpu import FakeNvml, on_gpu, properties

from bench.telemetry import THROTTLING, Telemetry, flags_of, told

KEY = "GPU-11111111-2222-3333-4444-555555555555"
POWER, THERMAL = real_nvml.NVML_PERF_POLICY_POWER, real_nvml.NVML_PERF_POLICY_THERMAL


class Nvml(FakeNvml):
    NVML_TEMPERATURE_GPU = real_nvml.NVML_TEMPERATURE_GPU
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = POWER, THERMAL


def answers(**changes: Any) -> dict[Any, Any]:
    """An H100 at work, alone, capped by nothing."""
    table: dict[Any, Any] = {
        "nvmlDeviceGetUUID": KEY,
        "nvmlDeviceGetPowerUsage": 612_345,
        "nvmlDeviceGetTotalEnergyConsumption": 7_000,
        "nvmlDeviceGetCurrentClocksEventReasons": real_nvml.nvmlClocksEventReasonGpuIdle,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=os.getpid())],
        ("nvmlDeviceGetClockInfo", real_nvml.NVML_CLOCK_SM): 1755,
        ("nvmlDeviceGetClockInfo", real_nvml.NVML_CLOCK_MEM): 2619,
        ("nvmlDeviceGetTemperature", real_nvml.NVML_TEMPERATURE_GPU): 61,
        ("nvmlDeviceGetViolationStatus", POWER): SimpleNamespace(violationTime=2_000_000),
        ("nvmlDeviceGetViolationStatus", THERMAL): SimpleNamespace(violationTime=0),
    }
    return table | changes


def snapshot(monkeypatch: pytest.MonkeyPatch, table: dict[Any, Any]) -> dict[str, Any]:
    on_gpu(monkeypatch, Nvml({KEY: table}))
    taken = Telemetry(properties()).snapshot()
    assert taken is not None
    return taken


def test_a_snapshot_has_units_and_no_reason_for_an_unthrottled_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert snapshot(monkeypatch, answers()) == {
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 2619,
        "power_w": 612.345,
        "energy_j": 7.0,
        "temperature_c": 61,
        "throttle_reasons": [],
        "other_processes": 0,
        "power_violation_us": 2000.0,
        "thermal_violation_us": 0.0,
        "refused": [],
    }


def test_e13_a_refused_query_is_null_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    table = answers()
    del table["nvmlDeviceGetPowerUsage"], table["nvmlDeviceGetViolationStatus", POWER]
    taken = snapshot(monkeypatch, table)
    assert (taken["power_w"], taken["power_violation_us"], taken["temperature_c"]) == (None, None, 61)
    assert taken["refused"] == ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetViolationStatus"]


def test_a_power_cap_is_named_and_marks_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(monkeypatch, answers())
    capped = real_nvml.nvmlClocksEventReasonSwPowerCap | real_nvml.nvmlClocksEventReasonGpuIdle
    after = snapshot(monkeypatch, answers(nvmlDeviceGetCurrentClocksEventReasons=capped))
    assert after["throttle_reasons"] == ["SwPowerCap"]
    assert flags_of(before, after, 1.0) == ("throttled",)


def test_time_under_a_cap_marks_the_case_even_when_it_is_over_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 ms of violation grow to 22 ms in 1 s: 2 % of the time; 5 ms more would be 0.5 % and is let pass."""
    before = snapshot(monkeypatch, answers())
    longer = {("nvmlDeviceGetViolationStatus", POWER): SimpleNamespace(violationTime=22_000_000)}
    assert flags_of(before, snapshot(monkeypatch, answers() | longer), 1.0) == ("throttled",)
    little = {("nvmlDeviceGetViolationStatus", POWER): SimpleNamespace(violationTime=7_000_000)}
    assert flags_of(before, snapshot(monkeypatch, answers() | little), 1.0) == ()


def test_another_process_on_the_gpu_marks_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process and its parent, which waits for a worker, are no others."""
    other = [SimpleNamespace(pid=pid) for pid in (os.getpid(), os.getppid(), 2**30)]
    before = snapshot(monkeypatch, answers(nvmlDeviceGetComputeRunningProcesses=other))
    assert before["other_processes"] == 1
    assert flags_of(before, snapshot(monkeypatch, answers()), 1.0) == ("contended",)


@pytest.mark.parametrize(("on_it", "others"), [(1, 0), (3, 2)])
def test_in_a_container_whose_numbers_are_not_nvmls_one_process_is_this_one(
    monkeypatch: pytest.MonkeyPatch, on_it: int, others: int
) -> None:
    """Drivers tell the host's process ids there (nvidia-docker issue 1483): alone must not read as contended."""
    hosts = [SimpleNamespace(pid=2**30 + n) for n in range(on_it)]
    assert snapshot(monkeypatch, answers(nvmlDeviceGetComputeRunningProcesses=hosts))["other_processes"] == others


def test_without_nvml_snapshots_are_null_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch, None)
    telemetry = Telemetry(properties())
    assert telemetry.snapshot() is None
    assert told(telemetry, None, None) == {"before": None, "after": None, "reason": telemetry.reason}
    assert "pip install nvidia-ml-py" in telemetry.reason
    assert flags_of(None, None, 1.0) == ()


def test_throttle_reasons_are_nvmls_own() -> None:
    assert {name: getattr(real_nvml, f"nvmlClocksEventReason{name}") for name in THROTTLING} == THROTTLING


def test_an_older_nvml_tells_the_same_reasons_by_their_older_name(monkeypatch: pytest.MonkeyPatch) -> None:
    table = answers(nvmlDeviceGetCurrentClocksThrottleReasons=real_nvml.nvmlClocksThrottleReasonHwSlowdown)
    del table["nvmlDeviceGetCurrentClocksEventReasons"]
    taken = snapshot(monkeypatch, table)
    assert taken["throttle_reasons"] == ["HwSlowdown"]
    assert taken["refused"] == ["nvmlDeviceGetCurrentClocksEventReasons"]
