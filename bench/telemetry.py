"""What the GPU reports of itself before and after a case: clocks, power, temperature, throttling, other processes.

Needs nvidia-ml-py and never root: nothing is set, only read. What NVML refuses is null with the query's name; a case on
a machine without NVML has telemetry null with the reason. Throttled and contended cases are marked, not dropped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bench.environment import NoNvmlError, NvmlDevice, open_nvml

THROTTLING = {
    "SwPowerCap": 0x4,
    "HwSlowdown": 0x8,
    "SwThermalSlowdown": 0x20,
    "HwThermalSlowdown": 0x40,
    "HwPowerBrakeSlowdown": 0x80,
}
"""NVML's clock event reasons that lower a kernel's clock; idle, application clocks and sync boost do not."""
VIOLATIONS = {"power_violation_us": "NVML_PERF_POLICY_POWER", "thermal_violation_us": "NVML_PERF_POLICY_THERMAL"}
VIOLATED_SHARE = 0.01
"""Share of the time between two snapshots under a power or thermal cap from which a case counts as throttled."""


class Telemetry:
    """Snapshots of one GPU, or the reason why there are none.

    Attributes:
        reason: why every snapshot is null; '' where NVML answers.
    """

    def __init__(self, properties: Any) -> None:
        self.reason = ""
        self._device: NvmlDevice | None = None
        try:
            self._device = open_nvml(properties)
        except NoNvmlError as error:
            self.reason = str(error)

    def snapshot(self) -> dict[str, Any] | None:
        """The GPU's state now; None without NVML. Clocks in MHz, power in W, energy in J, temperature in Celsius."""
        if self._device is None:
            return None
        device, nvml = self._device, self._device.nvml
        device.refused.clear()
        power_mw, energy_mj = device.ask("nvmlDeviceGetPowerUsage"), device.ask("nvmlDeviceGetTotalEnergyConsumption")
        reasons = device.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:
            reasons = device.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        others = device.ask("nvmlDeviceGetComputeRunningProcesses")
        state: dict[str, Any] = {
            "sm_clock_mhz": device.ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": device.ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "power_w": None if power_mw is None else power_mw / 1000,
            "energy_j": None if energy_mj is None else energy_mj / 1000,
            "temperature_c": device.ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": None if reasons is None else [n for n, bit in THROTTLING.items() if reasons & bit],
            "other_processes": None if others is None else _other_than_ours([process.pid for process in others]),
        }
        for name, policy in VIOLATIONS.items():
            violation = device.ask("nvmlDeviceGetViolationStatus", getattr(nvml, policy))
            state[name] = None if violation is None else violation.violationTime / 1000
        return state | {"refused": sorted(set(device.refused))}


def _other_than_ours(pids: Sequence[int]) -> int:
    """How many of the processes on the GPU are not this one, which is on it when asked, nor its waiting parent."""
    if pids and os.getpid() not in pids:
        # In a container most drivers tell the host's numbers, under which one of them is this process.
        return len(pids) - 1
    return sum(pid not in (os.getpid(), os.getppid()) for pid in pids)


def told(
    telemetry: Telemetry | None, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The snapshots around a case as its record holds them, with the reason where they are null."""
    if telemetry is None:
        return {"before": None, "after": None, "reason": "a CPU reports none here"}
    return {"before": before, "after": after} | ({"reason": telemetry.reason} if telemetry.reason else {})


def flags_of(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, elapsed_s: float) -> tuple[str, ...]:
    """throttled and contended, from the snapshots around a case that took `elapsed_s`.

    Throttled is a reason that stands at the end or time under a cap; contended another process on the GPU.
    """
    flags = []
    if before and after:
        grown_us = sum((after[name] or 0) - (before[name] or 0) for name in VIOLATIONS)
        if after["throttle_reasons"] or grown_us > VIOLATED_SHARE * elapsed_s * 1e6:
            flags.append("throttled")
        if (before["other_processes"] or 0) or (after["other_processes"] or 0):
            flags.append("contended")
    return tuple(flags)
