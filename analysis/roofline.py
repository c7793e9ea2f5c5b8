"""Where a case lies under the roof, what bounds it, and what it could gain.

A `Roofs` is one consistent set (datasheet, or measured): compute per dtype, DRAM bandwidth and launch floor are
never mixed between sets. Attainable time is T0 + max(FLOPs/P, bytes/BW): launches are periods in a chain, so they
add. The class of a point is decided in a fixed order and never by the phase's name; `classify` states it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from analysis import peaks as peaks_table
from analysis.ceilings import with_ceilings
from analysis.flags import doubted, with_flags
from analysis.frame import ROOF_OPS, Loaded, device_label
from analysis.methods import COLD
from analysis.metrics import with_rates
from analysis.peaks import MEASURED, MeasuredSet, Peaks, accumulate_of
from analysis.reasons import TOLERANCE, reasons
from bench.record import Environment

RESIDENT, MIXED = 0.6, 1.5
"""Bytes in units of L2 up to which a case not measured cold is served by the cache, or partly so."""
RIDGE_MARGIN = 0.2
"""Half-width of the uncertain band around the ridge where only one set of roofs exists."""
CLASSES = (
    "invalid", "cache-resident", "mixed-cache", "overhead-bound", "near the ridge", "memory-bound", "compute-bound",
    "no roofs",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """One consistent set of roofs.

    Attributes:
        kind: "datasheet" or "measured".
        tflops: compute dtype -> TFLOP/s.
        dram_gb_per_s: 1e9 byte/s.
        launch_us: T0, the period of an empty launch; 0 in a datasheet set, which knows none.
        source: where every figure of the set comes from.
    """

    kind: str
    tflops: Mapping[str, float]
    dram_gb_per_s: float
    launch_us: float
    source: str

    def ridge(self, dtype: str) -> float:
        """FLOP per byte where the roofs meet."""
        return self.tflops[dtype] * 1e3 / self.dram_gb_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as the analysis sees it: its roofs, its limits, and how it was recognised."""

    name: str
    recognised: str
    datasheet: Roofs | None = None
    measured: Roofs | None = None
    peaks: Peaks | None = None
    l2_bytes: int | None = None
    max_clock_mhz: int | None = None
    sm_count: int | None = None
    is_cpu: bool = False
    notes: tuple[str, ...] = field(default=())

    def set_for(self, dtype: str) -> Roofs | None:
        """The measured set where it knows the dtype, else the datasheet's: always one set."""
        for roofs in (self.measured, self.datasheet):
            if roofs is not None and dtype in roofs.tflops:
                return roofs
        return None


def datasheet_roofs(peaks: Peaks) -> Roofs:
    """The datasheet's set, of the accumulate types that this suite's kernels use."""
    tflops = {dtype: rate for (dtype, acc), rate in peaks.tflops.items() if acc == accumulate_of(dtype)}
    return Roofs(kind="datasheet", tflops=tflops, dram_gb_per_s=peaks.dram_gb_per_s, launch_us=0.0, source=peaks.source)


def published_roofs(measured: MeasuredSet) -> Roofs:
    """A measured set that was published for the device."""
    return Roofs(
        kind="measured",
        tflops=measured.tflops,
        dram_gb_per_s=measured.dram_gb_per_s,
        launch_us=measured.launch_us,
        source=measured.source,
    )


def own_roofs(rows: pd.DataFrame) -> Roofs | None:
    """The set a device measured of itself (`bench peaks`), of its last run that has compute, bandwidth and T0."""
    usable = (rows["status"] == "OK") & (rows["time_us"] > 0) & ~doubted(rows)
    rows = with_rates(rows[usable & rows["op"].isin(ROOF_OPS)])
    sets = [_roofs_of_run(str(run), part) for run, part in rows.groupby("run", sort=False)]
    return next((roofs for roofs in reversed(sets) if roofs), None)


def _roofs_of_run(run: str, rows: pd.DataFrame) -> Roofs | None:
    tflops = rows[rows["op"] == "peak_matmul"].groupby("dtype")["tflops_per_s"].max()
    read = rows.loc[rows["op"] == "peak_read", "gb_per_s"]
    launch = rows.loc[rows["op"] == "empty_launch", "time_us"]
    if tflops.empty or read.empty or launch.empty:
        return None
    return Roofs(
        kind="measured",
        tflops={str(dtype): float(rate) for dtype, rate in tflops.items()},
        dram_gb_per_s=float(read.max()),
        launch_us=float(launch.min()),
        source=f"measured on this device by python -m bench peaks, run {run}",
    )


def device_of(environment: Environment | None, rows: pd.DataFrame) -> Device:
    """The device of some records, from its environment and the roofs measured in `rows`."""
    own = own_roofs(rows)
    if environment is None or (environment.device_type == "cuda" and not environment.device_name):
        peaks = peaks_table.table()[peaks_table.DEFAULT_DEVICE]
        told = f"the records name no device: drawn against {peaks.device}; {peaks.source}"
        return Device(name="", recognised=told, datasheet=datasheet_roofs(peaks), peaks=peaks, l2_bytes=peaks.l2_bytes)
    matched, told = peaks_table.match(environment)
    published = MEASURED.get(matched.device) if matched and (rows["timer"] == "published").any() else None
    return Device(
        name=device_label(environment),
        recognised=told,
        datasheet=datasheet_roofs(matched) if matched else None,
        measured=own or (published_roofs(published) if published else None),
        peaks=matched,
        l2_bytes=environment.l2_bytes or (matched.l2_bytes if matched else None),
        max_clock_mhz=environment.max_sm_clock_mhz,
        sm_count=environment.sm_count or (matched.sm_count if matched else None),
        is_cpu=environment.device_type == "cpu",
    )


def devices(loaded: Loaded) -> list[Device]:
    """Every device that the records name, in order of appearance."""
    names = loaded.frame["device"].unique()
    return [device_of(loaded.environment_of(n), loaded.frame[loaded.frame["device"] == n]) for n in names]


def classify(frame: pd.DataFrame, device: Device) -> pd.DataFrame:
    """Places one device's rows under its roofs.

    Args:
        frame: columns of `analysis.frame` with status OK.
        device: whose roofs apply.

    Returns:
        The frame with rates, attainable_us, fraction_of_datasheet, fraction_of_measured, fraction_of_attainable,
        class and reason; `flags` with the words of `analysis.flags`. The order of the classes: invalid, cache-resident
        or mixed-cache, overhead-bound, near the ridge, memory-bound or compute-bound.
    """
    frame = _with_limits(with_rates(frame), device)
    usable = frame["time_us"].where(frame["time_us"] > 0)
    frame["attainable_us"] = frame["launch_us"] + frame["roof_us"]
    frame["fraction_of_datasheet"] = frame["datasheet_us"] / usable
    frame["fraction_of_measured"] = frame["measured_us"] / usable
    frame["fraction_of_attainable"] = frame["attainable_us"] / usable
    frame["doubted"] = doubted(frame)
    frame["class"] = _class(frame, device)
    frame = with_ceilings(frame, device.sm_count)
    frame["reason"] = reasons(frame, device.l2_bytes)
    return with_flags(frame)


def _with_limits(frame: pd.DataFrame, device: Device) -> pd.DataFrame:
    """Adds per row the set's P, BW, T0 and band, and the times they allow."""
    by_dtype = {dtype: _limits_of(dtype, device) for dtype in frame["dtype"].unique()}
    limits = pd.DataFrame.from_dict(by_dtype, orient="index")
    frame = frame.assign(**{str(c): frame["dtype"].map(limits[c]).astype("float64") for c in limits})
    for kind in ("roof", "datasheet", "measured"):
        compute_us = frame["flops"] / (frame[f"{kind}_tflops"] * 1e6)
        memory_us = frame["bytes"] / (frame[f"{kind}_gb_per_s"] * 1e3)
        frame[f"{kind}_us"] = np.maximum(compute_us, memory_us)
    return frame


def _limits_of(dtype: str, device: Device) -> dict[str, float]:
    nan = float("nan")
    row: dict[str, float] = {}
    for kind, roofs in (
        ("datasheet", device.datasheet),
        ("measured", device.measured),
        ("roof", device.set_for(dtype)),
    ):
        known = roofs is not None and dtype in roofs.tflops
        row[f"{kind}_tflops"] = roofs.tflops[dtype] if roofs and known else nan
        row[f"{kind}_gb_per_s"] = roofs.dram_gb_per_s if roofs and known else nan
    chosen = device.set_for(dtype)
    row["launch_us"] = chosen.launch_us if chosen else nan
    row["band_low"], row["band_high"] = ridge_band(dtype, device) or (nan, nan)
    bound = device.peaks.clock_bound_tflops(dtype, device.max_clock_mhz) if device.peaks else None
    row["bound_tflops"] = bound or nan
    row["bound_gb_per_s"] = device.datasheet.dram_gb_per_s if device.datasheet else nan
    return row


def ridge_band(dtype: str, device: Device) -> tuple[float, float] | None:
    """Intensities for which the choice of roofs decides the class; None where no roofs know the dtype."""
    sheet, measured = device.datasheet, device.measured
    if sheet and measured and dtype in sheet.tflops and dtype in measured.tflops:
        return (
            measured.tflops[dtype] * 1e3 / sheet.dram_gb_per_s,
            sheet.tflops[dtype] * 1e3 / measured.dram_gb_per_s,
        )
    only = device.set_for(dtype)
    return ((1 - RIDGE_MARGIN) * only.ridge(dtype), (1 + RIDGE_MARGIN) * only.ridge(dtype)) if only else None


def _class(frame: pd.DataFrame, device: Device) -> pd.Series[str]:
    l2 = device.l2_bytes or 0
    not_cold = ~frame["cache"].isin(COLD)
    too_fast = frame["tflops_per_s"] > TOLERANCE * frame["bound_tflops"]
    from_cache = not_cold & (frame["bytes"] < MIXED * l2)
    above_dram = frame["gb_per_s"] > TOLERANCE * frame["bound_gb_per_s"]
    intensity = frame["intensity_flops_per_byte"]
    in_band = (intensity >= frame["band_low"]) & (intensity <= frame["band_high"])
    conditions = {
        "invalid": ~(frame["time_us"] > 0) | frame["doubted"] | too_fast | (above_dram & ~from_cache),
        "cache-resident": not_cold & (frame["bytes"] < RESIDENT * l2),
        "mixed-cache": from_cache,
        "no roofs": frame["roof_us"].isna(),
        "overhead-bound": frame["launch_us"] >= frame["roof_us"],
        "near the ridge": in_band,
        "memory-bound": intensity < frame["roof_tflops"] * 1e3 / frame["roof_gb_per_s"],
    }
    names = np.select(list(conditions.values()), list(conditions), default="compute-bound")
    return pd.Series(names, index=frame.index, dtype="str")


_NO_POINTS: dict[str, float | str] = dict.fromkeys(
    (
        "intensity_flops_per_byte", "tflops_per_s", "gb_per_s", "attainable_us",
        "fraction_of_datasheet", "fraction_of_measured", "fraction_of_attainable",
    ),
    float("nan"),
) | {"class": "", "reason": ""}  # fmt: skip
"""The columns that `classify` adds, for a frame without rows."""


def points(loaded: Loaded) -> tuple[pd.DataFrame, list[Device]]:
    """All measured cases of all devices, classified; the roofs' own records are no points."""
    seen = devices(loaded)
    rows = loaded.frame[(loaded.frame["status"] == "OK") & ~loaded.frame["op"].isin(ROOF_OPS)]
    by_device = [(rows[rows["device"] == device.name], device) for device in seen]
    parts = [classify(part, device) for part, device in by_device if not part.empty]
    return (pd.concat(parts, ignore_index=True) if parts else rows.assign(**_NO_POINTS)), seen
