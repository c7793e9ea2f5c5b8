"""Classes of points, planted one by one in the order that decides them, and roofs that are always one consistent set.

Ids like A14 in docstrings name the known accounting mistake that a test guards against.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis import peaks, roofline
from analysis.frame import Loaded, load
from analysis.peaks import MEASURED, MeasuredSet
from analysis.roofline import CLASSES, Device, Roofs, classify, datasheet_roofs, device_of, points, published_roofs
from bench.record import Environment, Record, RecordWriter, Status
from kernels.work import matmul_work, mla_decode_work

H100_ENVIRONMENT = Environment(
    device_type="cuda",
    device_name="NVIDIA H100 80GB HBM3",
    compute_capability="9.0",
    sm_count=132,
    memory_bytes=85_045_477_376,
    memory_bus_bits=5120,
    memory_clock_mhz=2619,
    l2_bytes=52_428_800,
    max_sm_clock_mhz=1980,
)
H200_ENVIRONMENT = Environment(device_type="cuda", device_name="NVIDIA H200")
UNKNOWN_ENVIRONMENT = replace(H100_ENVIRONMENT, device_name="NVIDIA H800", l2_bytes=None)
CPU_ENVIRONMENT = Environment(device_type="cpu", device_name="AMD EPYC 9654", l2_bytes=256 * 2**20)
L2 = 52_428_800
BIG = 1e9
"""Bytes far beyond any L2 and any launch floor."""

SHEET = datasheet_roofs(peaks.table()["H100 SXM5 80GB"])
PUBLISHED = published_roofs(MEASURED["H100 SXM5 80GB"])
SHEET_ONLY = Device(
    name="H100",
    recognised="",
    datasheet=SHEET,
    peaks=peaks.table()["H100 SXM5 80GB"],
    l2_bytes=L2,
    max_clock_mhz=1980,
)
H100 = replace(SHEET_ONLY, measured=PUBLISHED)
"""Datasheet 989.4 TFLOP/s and 3350 GB/s; measured 794.5 TFLOP/s, 2750 GB/s and 3.0 us."""
CPU = Device(
    name="EPYC",
    recognised="",
    measured=Roofs(kind="measured", tflops={"float32": 2.0}, dram_gb_per_s=200.0, launch_us=5.0, source="own"),
    l2_bytes=256 * 2**20,
    is_cpu=True,
)
UNKNOWN = Device(name="NVIDIA H800", recognised="")


def rows(*given: dict[str, Any]) -> pd.DataFrame:
    usual: dict[str, Any] = {
        "dtype": "bfloat16",
        "cache": "cold",
        "phase": "decode",
        "op": "matmul",
        "timer": "cuda_graph",
    }
    usual |= {"flags": "", "drift": float("nan")}
    return pd.DataFrame([usual | row for row in given]).astype({"flops": float, "bytes": float, "time_us": float})


def place(device: Device, **row: Any) -> pd.Series[Any]:
    """One classified row."""
    return classify(rows(row), device).iloc[0]


def at_rate(device: Device, tflops_per_s: float, **row: Any) -> pd.Series[Any]:
    """A large row of 2000 FLOP/byte, so compute-bound, that reaches a rate."""
    return place(device, flops=2000 * BIG, bytes=BIG, time_us=2000 * BIG / tflops_per_s / 1e6, **row)


def at_bandwidth(device: Device, gb_per_s: float, num_bytes: float = BIG, **row: Any) -> pd.Series[Any]:
    """A row of 1 FLOP/byte, so memory-bound, that reaches a bandwidth."""
    return place(device, flops=num_bytes, bytes=num_bytes, time_us=num_bytes / gb_per_s / 1e3, **row)


def at_intensity(device: Device, intensity: float, num_bytes: float = BIG, **row: Any) -> str:
    """The class of a row that takes twice as long as it could by either datasheet roof."""
    needed_us = max(intensity * num_bytes / 989.4e6, num_bytes / 3350e3)
    return str(place(device, flops=intensity * num_bytes, bytes=num_bytes, time_us=2 * needed_us, **row)["class"])


# 1. Invalid


@pytest.mark.parametrize("device", [H100, CPU, UNKNOWN])
@pytest.mark.parametrize("time_us", [0.0, -1.0, float("nan")])
def test_no_usable_time_is_invalid_anywhere(device: Device, time_us: float) -> None:
    point = place(device, flops=BIG, bytes=BIG, time_us=time_us, dtype="float32")
    assert (point["class"], "no usable time" in point["reason"]) == ("invalid", True)
    assert point[["tflops_per_s", "gb_per_s", "fraction_of_datasheet", "fraction_of_attainable"]].isna().all()


@pytest.mark.parametrize("device", [H100, SHEET_ONLY])
@pytest.mark.parametrize(
    ("tflops_per_s", "name", "boosted"),
    [
        (980, "compute-bound", False),
        (1000, "compute-bound", True),
        (1085, "compute-bound", True),
        (1095, "invalid", False),
    ],
)
def test_bound_is_all_sms_at_their_highest_clock(device: Device, tflops_per_s: float, name: str, boosted: bool) -> None:
    """989.4 is the datasheet's, 132 x 4096 x 1980 MHz = 1070.5, and 1.02 x that 1091.9."""
    point = at_rate(device, tflops_per_s)
    assert (point["class"], "boost clock" in point["reason"]) == (name, boosted)


def test_bound_follows_the_devices_own_highest_clock() -> None:
    """At 1755 MHz the bound is 948.9, and 1.02 x that 967.9."""
    slow = replace(H100, max_clock_mhz=1755)
    assert at_rate(slow, 965)["class"] == "compute-bound"
    invalid = at_rate(slow, 970)
    assert invalid["class"] == "invalid"
    assert "970 TFLOP/s is above 949, all SMs at their maximum clock" in invalid["reason"]


def test_bound_follows_the_table_where_the_device_tells_no_clock() -> None:
    assert at_rate(replace(H100, max_clock_mhz=None), 1085)["class"] == "compute-bound"
    assert at_rate(replace(H100, max_clock_mhz=None), 1095)["class"] == "invalid"


def test_boost_clock_is_noted_whatever_the_class() -> None:
    """300 FLOP/byte at 1000 TFLOP/s is 3333 GB/s: near the ridge; hot and small, cache-resident."""
    near = place(H100, flops=300 * BIG, bytes=BIG, time_us=300.0)
    small = place(H100, flops=300e6, bytes=1e6, time_us=0.3, cache="hot")
    assert [near["class"], small["class"]] == ["near the ridge", "cache-resident"]
    assert all("boost clock" in point["reason"] for point in (near, small))


def test_above_the_datasheet_is_no_stale_roof_where_nothing_was_measured() -> None:
    assert "measured" not in at_rate(SHEET_ONLY, 1050)["reason"]
    assert "suspect, faster than the measured roof" in at_rate(H100, 1050)["reason"]
    assert "suspect" not in at_rate(H100, 1050, timer="published")["reason"], "its roofs are a fit to such rows"


@pytest.mark.parametrize("cache", ["cold", "flush", "hot", ""])
def test_more_than_dram_gives_is_invalid_where_no_cache_explains_it(cache: str) -> None:
    """1.02 x 3350 is 3417; a gigabyte fits no L2."""
    assert at_bandwidth(H100, 3400, cache=cache)["class"] == "memory-bound"
    point = at_bandwidth(H100, 3430, cache=cache)
    assert point["class"] == "invalid"
    assert "3430 GB/s is above the DRAM peak of 3350" in point["reason"]


def test_planted_kv_bytes_of_query_heads_show_as_invalid() -> None:
    """A05: at 70 % of DRAM, counting KV 4 x too high claims 280 %: caught, and not a record run."""
    assert at_bandwidth(H100, 0.7 * 3350)["class"] == "memory-bound"
    assert at_bandwidth(H100, 4 * 0.7 * 3350)["class"] == "invalid"


def test_planted_full_square_shows_as_invalid() -> None:
    """A01: a causal kernel at 600 TFLOP/s counted as S^2 claims 1200."""
    assert at_rate(H100, 600)["class"] == "compute-bound"
    assert at_rate(H100, 1200)["class"] == "invalid"


# 2. Cache


@pytest.mark.parametrize(
    ("share_of_l2", "name"),
    [(0.59, "cache-resident"), (0.61, "mixed-cache"), (1.49, "mixed-cache"), (1.51, "memory-bound")],
)
@pytest.mark.parametrize("cache", ["hot", "resident", "", "unknown"])
def test_not_measured_cold_is_judged_by_its_share_of_l2(cache: str, share_of_l2: float, name: str) -> None:
    assert at_bandwidth(H100, 1000, share_of_l2 * L2, cache=cache)["class"] == name


@pytest.mark.parametrize("cache", ["cold", "flush"])
def test_cold_is_never_cached(cache: str) -> None:
    assert at_bandwidth(H100, 1000, 0.3 * L2, cache=cache)["class"] == "memory-bound"
    assert at_bandwidth(H100, 9000, 0.3 * L2, cache=cache)["class"] == "invalid"


def test_cached_bandwidth_above_dram_is_no_error() -> None:
    for share, name in ((0.3, "cache-resident"), (1.0, "mixed-cache")):
        point = at_bandwidth(H100, 9000, share * L2, cache="hot")
        assert point["class"] == name
        assert "the DRAM roof does not apply" in point["reason"]


def test_unknown_l2_explains_nothing() -> None:
    no_l2 = replace(H100, l2_bytes=None)
    assert at_bandwidth(no_l2, 2000, 0.3 * L2, cache="hot")["class"] == "memory-bound"
    assert at_bandwidth(no_l2, 9000, 0.3 * L2, cache="hot")["class"] == "invalid"


# 3. to 5. Overhead, ridge, memory, compute


def test_launch_floor_that_is_at_least_the_work_is_overhead() -> None:
    """2750 GB/s x 3.0 us = 8.25 MB."""
    assert at_bandwidth(H100, 500, 8.2e6)["class"] == "overhead-bound"
    assert at_bandwidth(H100, 500, 8.3e6)["class"] == "memory-bound"
    assert at_bandwidth(SHEET_ONLY, 500, 8.2e6)["class"] == "memory-bound", "a datasheet knows no launch floor"


@pytest.mark.parametrize(
    ("intensity", "name"),
    [(236, "memory-bound"), (238, "near the ridge"), (359, "near the ridge"), (361, "compute-bound")],
)
def test_ridge_band_is_what_mixing_the_sets_would_span(intensity: float, name: str) -> None:
    """[794.5 / 3.350, 989.4 / 2.750] = [237.2, 359.8] FLOP/byte."""
    assert at_intensity(H100, intensity) == name


@pytest.mark.parametrize(
    ("intensity", "name"),
    [(236, "memory-bound"), (237, "near the ridge"), (354, "near the ridge"), (355, "compute-bound")],
)
def test_ridge_band_is_a_fifth_where_there_is_one_set(intensity: float, name: str) -> None:
    """295.3 x [0.8, 1.2] = [236.3, 354.4] FLOP/byte."""
    assert at_intensity(SHEET_ONLY, intensity) == name


def test_classes_are_decided_in_their_order() -> None:
    """A hot megabyte at 300 FLOP/byte is in L2, under the launch floor and near the ridge; each in turn decides."""
    assert place(H100, flops=300e6, bytes=1e6, time_us=0.27, cache="hot")["class"] == "invalid", "1111 TFLOP/s"
    assert at_intensity(H100, 300, 1e6, cache="hot") == "cache-resident"
    assert at_intensity(H100, 300, 1e6) == "overhead-bound"
    assert at_intensity(H100, 300, BIG) == "near the ridge"
    assert at_intensity(H100, 10, BIG) == "memory-bound"
    assert at_intensity(H100, 1000, BIG) == "compute-bound"


@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
def test_phase_never_decides(phase: str) -> None:
    """A decode of MLA, 128 heads and two query tokens, does 457 FLOP/byte; a prefill of 128 tokens does 124."""
    pairs = 64 * (8191 + 8192)
    decode = mla_decode_work(batch=64, q_heads=128, q_len=2, kv_tokens=64 * 8192, pairs=pairs, dtype="bfloat16")
    prefill = matmul_work(128, 8192, 8192, dtype="bfloat16")
    assert decode.flops / decode.bytes == pytest.approx(457, abs=1)
    assert prefill.flops / prefill.bytes == pytest.approx(124, abs=1)
    assert place(H100, flops=decode.flops, bytes=decode.bytes, time_us=500, phase=phase)["class"] == "compute-bound"
    assert place(H100, flops=prefill.flops, bytes=prefill.bytes, time_us=80, phase=phase)["class"] == "memory-bound"


@pytest.mark.parametrize(("flops", "num_bytes"), [(None, None), (None, BIG), (BIG, None)])
def test_undeclared_work_has_no_class(flops: float | None, num_bytes: float | None) -> None:
    point = place(H100, flops=flops, bytes=num_bytes, time_us=1000)
    assert point["class"] == "no roofs"
    assert "declares no FLOPs or no bytes" in point["reason"]


@pytest.mark.parametrize("device", [H100, SHEET_ONLY, CPU])
def test_no_work_at_all_is_overhead(device: Device) -> None:
    point = place(device, flops=0, bytes=0, time_us=3, dtype="float32")
    assert point["class"] == "overhead-bound"


# Attainable, fractions, and one set


def check_attainable() -> None:
    """T0 and the work add: a gigabyte needs 3.0 us + 1e9 / 2.75e12 s = 366.6 us; max alone would say 363.6."""
    point = place(H100, flops=BIG, bytes=BIG, time_us=400)
    assert point["attainable_us"] == pytest.approx(3.0 + 363.636, abs=1e-3)
    assert point["fraction_of_attainable"] == pytest.approx(366.636 / 400, abs=1e-5)


def check_fractions() -> None:
    """A14: 700 TFLOP/s is 70.7 % of 989.4 and 88.1 % of 794.5; 35.4 % would be of the sparse peak."""
    point = at_rate(H100, 700)
    assert point["fraction_of_datasheet"] == pytest.approx(0.7075, abs=1e-4)
    assert point["fraction_of_measured"] == pytest.approx(0.8811, abs=1e-4)
    memory = at_bandwidth(H100, 2000)
    assert memory["fraction_of_datasheet"] == pytest.approx(2000 / 3350, abs=1e-4)
    assert memory["fraction_of_measured"] == pytest.approx(2000 / 2750, abs=1e-4)


def check_one_set() -> None:
    """float32 was not measured, so all of its roofs are the datasheet's: 66.9 TFLOP/s, 3350 GB/s, no launch floor."""
    point = place(H100, flops=BIG, bytes=BIG, time_us=400, dtype="float32")
    assert (point["roof_tflops"], point["roof_gb_per_s"], point["launch_us"]) == (66.9, 3350, 0)
    assert point["attainable_us"] == pytest.approx(298.507, abs=1e-3)
    assert np.isnan(point["fraction_of_measured"])
    other = place(H100, flops=BIG, bytes=BIG, time_us=400)
    assert (other["roof_tflops"], other["roof_gb_per_s"], other["launch_us"]) == (794.5, 2750, 3.0)


CHECKS = [check_attainable, check_fractions, check_one_set]


@pytest.mark.parametrize("check", CHECKS)
def test_figures_worked_by_hand(check: Callable[[], None]) -> None:
    check()


def sparse(device: Device) -> Device:
    assert device.datasheet is not None
    doubled = {dtype: 2 * rate for dtype, rate in device.datasheet.tflops.items()}
    return replace(device, datasheet=replace(device.datasheet, tflops=doubled))


def mixed_sets(device: Device) -> Device:
    """Measured bandwidth and floor lent to dtypes that were not measured."""
    assert device.measured is not None
    return replace(device, measured=replace(device.measured, tflops={**SHEET.tflops, **device.measured.tflops}))


def no_floor(device: Device) -> Device:
    assert device.measured is not None
    return replace(device, measured=replace(device.measured, launch_us=0.0))


def gibibytes(device: Device) -> Device:
    assert device.datasheet is not None
    return replace(device, datasheet=replace(device.datasheet, dram_gb_per_s=3350 * 1e9 / 2**30))


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (sparse, check_fractions),
        (gibibytes, check_fractions),
        (mixed_sets, check_one_set),
        (no_floor, check_attainable),
    ],
)
def test_figures_catch_a_wrong_roof(
    fault: Callable[[Device], Device], check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = roofline.classify
    monkeypatch.setitem(globals(), "classify", lambda frame, device: right(frame, fault(device)))
    with pytest.raises(AssertionError):
        check()


def test_gain_is_told_in_one_sentence() -> None:
    assert "2.0x" in place(H100, flops=BIG, bytes=BIG, time_us=2 * 366.636 - 0.5)["reason"].replace("2.00x", "2.0x")
    assert at_rate(H100, 790)["reason"].endswith("at the roof")
    far = at_bandwidth(H100, 500)["reason"]
    assert "latency or too little parallelism" in far
    assert "up to 5.5x" in far


# CPU and unknown devices


def test_cpu_has_its_own_set_only() -> None:
    point = at_bandwidth(CPU, 100, dtype="float32")
    assert point["class"] == "memory-bound"
    assert np.isnan(point["fraction_of_datasheet"])
    assert point["fraction_of_measured"] == pytest.approx(0.5)
    assert at_bandwidth(CPU, 100, dtype="bfloat16")["class"] == "no roofs"


def test_cpu_above_its_own_roof_is_suspect_and_not_invalid() -> None:
    for point in (at_bandwidth(CPU, 230, dtype="float32"), at_rate(CPU, 2.3, dtype="float32")):
        assert point["class"] in ("memory-bound", "compute-bound")
        assert "suspect" in point["reason"]
        assert "stale" in point["reason"]
    assert "suspect" not in at_bandwidth(CPU, 202, dtype="float32")["reason"]


def test_cpu_within_its_last_level_cache_is_cache_resident() -> None:
    assert at_bandwidth(CPU, 900, 100e6, cache="hot", dtype="float32")["class"] == "cache-resident"


def test_unknown_gpu_has_no_percentages() -> None:
    """A21: never another card's peak."""
    point = at_rate(UNKNOWN, 5000)
    assert point["class"] == "no roofs"
    assert point.filter(like="fraction").isna().all()
    assert "%" not in point["reason"]
    assert point["tflops_per_s"] == pytest.approx(5000)


def test_unknown_gpu_that_measured_its_own_roofs_has_those_alone() -> None:
    own = replace(UNKNOWN, measured=PUBLISHED)
    point = at_bandwidth(own, 2000)
    assert (point["class"], point["fraction_of_measured"]) == ("memory-bound", pytest.approx(2000 / 2750))
    assert np.isnan(point["fraction_of_datasheet"])
    assert at_intensity(own, 240) == "near the ridge", "288.9 x 0.8 = 231.1"


# From records


def case(op: str, dtype: str = "bfloat16", n: int = 1) -> dict[str, Any]:
    return {"id": f"{op}/torch/{dtype}/N={n}", "op": op, "provider": "torch", "phase": "mixed", "dtype": dtype}


def measured(op: str, time_us: float, flops: float = 0, num_bytes: float = 0, **changes: Any) -> Record:
    usual = {
        "run": "r1",
        "case": case(op),
        "status": Status.OK,
        "times_us": (time_us,),
        "work": {"flops": int(flops), "bytes": int(num_bytes)},
        "timer": "cuda_graph",
        "cache": "cold",
    }
    return Record(**{**usual, **changes})


def peak_records(tflops: float, gb_per_s: float, launch_us: float, run: str = "r1") -> list[Record]:
    """What `bench peaks` writes: the best matmul, a read of 4 GB, an empty launch; and slower ones beside them."""
    return [
        measured("peak_matmul", 1e12 / tflops / 1e6, 1e12, 1e9, run=run),
        measured("peak_matmul", 2e12 / tflops / 1e6, 1e12, 1e9, run=run, case=case("peak_matmul", n=2)),
        measured("peak_read", 4e9 / gb_per_s / 1e3, 1e9, 4e9, run=run),
        measured("peak_read", 8e9 / gb_per_s / 1e3, 1e9, 4e9, run=run, case=case("peak_read", n=2)),
        measured("peak_copy", 1.0, 0, 1e12, run=run),
        measured("empty_launch", launch_us, 0, 4, run=run),
        measured("empty_launch", 2 * launch_us, 0, 4, run=run, case=case("empty_launch", n=2)),
    ]


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Loaded]:
    """Loads runs given as (environment, records), the records' run being r1, r2, ... in order."""

    def load_runs(*runs: tuple[Environment, Sequence[Record]]) -> Loaded:
        path = tmp_path / "records.jsonl"
        path.unlink(missing_ok=True)
        for number, (environment, records) in enumerate(runs, start=1):
            with RecordWriter(path, f"r{number}", environment) as writer:
                for record in records:
                    writer.append(replace(record, run=f"r{number}"))
        return load([path])

    return load_runs


ONE_GIGABYTE = measured("matmul", 400, BIG, BIG)
LoadRuns = Callable[..., Loaded]


def test_published_h100_rows_are_under_the_published_measured_set(loaded: LoadRuns) -> None:
    environment = Environment(device_type="cuda", device_name="NVIDIA H100 80GB HBM3")
    frame, (device,) = points(loaded((environment, [replace(ONE_GIGABYTE, timer="published")])))
    assert (frame["launch_us"][0], frame["roof_tflops"][0], frame["roof_gb_per_s"][0]) == (3.0, 794.5, 2750)
    assert device.measured is not None
    assert "ml-engineering" in device.measured.source


def test_own_rows_are_not_under_the_published_set(loaded: LoadRuns) -> None:
    frame, (device,) = points(loaded((H100_ENVIRONMENT, [ONE_GIGABYTE])))
    assert device.measured is None
    assert (frame["launch_us"][0], frame["roof_tflops"][0], frame["roof_gb_per_s"][0]) == (0, 989.4, 3350)


def test_own_roofs_are_the_best_of_what_was_measured(loaded: LoadRuns) -> None:
    records = [*peak_records(700, 3000, 2.0), ONE_GIGABYTE]
    frame, (device,) = points(loaded((H100_ENVIRONMENT, records)))
    assert device.measured is not None
    assert device.measured.tflops == {"bfloat16": pytest.approx(700)}
    assert device.measured.dram_gb_per_s == pytest.approx(3000)
    assert device.measured.launch_us == 2.0
    assert frame["op"].tolist() == ["matmul"], "the roofs' own records are no points"
    assert frame["attainable_us"][0] == pytest.approx(2.0 + 1e9 / 3e6)


def test_own_roofs_come_before_published_ones(loaded: LoadRuns) -> None:
    records = [*peak_records(700, 3000, 2.0), replace(ONE_GIGABYTE, timer="published")]
    _, (device,) = points(loaded((H100_ENVIRONMENT, records)))
    assert device.measured is not None
    assert device.measured.dram_gb_per_s == pytest.approx(3000)


def test_own_roofs_are_of_one_run_the_last_complete_one(loaded: LoadRuns) -> None:
    """One run's compute with another's bandwidth would be a set that no machine ever had."""
    runs = [
        (H100_ENVIRONMENT, peak_records(800, 2500, 4.0)),
        (H100_ENVIRONMENT, peak_records(700, 3000, 2.0)),
        (H100_ENVIRONMENT, [measured("peak_read", 1.0, 1, 10e6), ONE_GIGABYTE]),
    ]
    _, (device,) = points(loaded(*runs))
    assert device.measured is not None
    assert device.measured.tflops == {"bfloat16": pytest.approx(700)}
    assert device.measured.dram_gb_per_s == pytest.approx(3000)
    assert device.measured.launch_us == 2.0
    assert device.measured.source.endswith("run r2")


@pytest.mark.parametrize("missing", ["peak_matmul", "peak_read", "empty_launch"])
@pytest.mark.parametrize("fault", ["absent", "failed", "zero"])
def test_incomplete_own_roofs_are_none(missing: str, fault: str, loaded: LoadRuns) -> None:
    broken = {"failed": {"status": Status.FAILED, "times_us": (), "detail": "x"}, "zero": {"times_us": (0.0,)}}
    records = [
        replace(r, **broken[fault]) if r.case["op"] == missing else r  # type: ignore[arg-type]
        for r in peak_records(700, 3000, 2.0)
        if r.case["op"] != missing or fault != "absent"
    ]
    frame, (device,) = points(loaded((H100_ENVIRONMENT, [*records, ONE_GIGABYTE])))
    assert device.measured is None
    assert frame["roof_gb_per_s"].tolist() == [3350]


def test_roofs_alone_and_failures_alone_give_no_points_and_no_error(loaded: LoadRuns) -> None:
    failed = replace(ONE_GIGABYTE, status=Status.FAILED, times_us=(), detail="x")
    for records in (peak_records(700, 3000, 2.0), [failed]):
        frame, seen = points(loaded((H100_ENVIRONMENT, records)))
        assert (len(frame), len(seen)) == (0, 1)
        assert {"class", "reason"} <= set(frame.columns)


def test_devices_of_one_frame_are_kept_apart(loaded: LoadRuns) -> None:
    """The same bytes and time: each under its own roofs, whatever was loaded beside it."""
    published = replace(ONE_GIGABYTE, timer="published")
    both = loaded(
        (replace(H100_ENVIRONMENT, sm_count=None), [published]),
        (H200_ENVIRONMENT, [published]),
        (UNKNOWN_ENVIRONMENT, [ONE_GIGABYTE]),
        (CPU_ENVIRONMENT, [ONE_GIGABYTE, *peak_records(2, 200, 5.0)]),
    )
    frame, seen = points(both)
    assert [d.name for d in seen] == ["NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H800", "AMD EPYC 9654"]
    by_device = frame.set_index("device")["roof_gb_per_s"]
    assert by_device[["NVIDIA H100 80GB HBM3", "NVIDIA H200"]].tolist() == [2750, 3950]
    assert np.isnan(by_device["NVIDIA H800"])
    assert by_device["AMD EPYC 9654"] == pytest.approx(200)


def test_records_without_a_device_are_drawn_against_the_h100_and_say_so(loaded: LoadRuns) -> None:
    frame, (device,) = points(loaded((Environment(device_type="cuda"), [ONE_GIGABYTE])))
    assert frame["roof_gb_per_s"].tolist() == [3350]
    assert "name no device: drawn against H100 SXM5 80GB" in device.recognised
    assert device_of(None, frame).datasheet == device.datasheet


def test_nameless_cpu_is_no_nameless_gpu(loaded: LoadRuns) -> None:
    frame, seen = points(
        loaded((Environment(device_type="cpu"), [ONE_GIGABYTE]), (Environment(device_type="cuda"), [ONE_GIGABYTE]))
    )
    assert [d.is_cpu for d in seen] == [True, False]
    assert dict(zip(frame["device"], frame["class"], strict=True)) == {"CPU": "no roofs", "": "memory-bound"}


def test_device_tells_part_and_source(loaded: LoadRuns) -> None:
    """A21: which variant a peak belongs to, and where it is from."""
    _, (device,) = points(loaded((H100_ENVIRONMENT, [ONE_GIGABYTE])))
    for part in ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB", "NVIDIA H100 datasheet"):
        assert part in device.recognised


def test_mig_slice_is_not_judged_by_the_whole_card(loaded: LoadRuns) -> None:
    sliced = replace(H100_ENVIRONMENT, device_name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", sm_count=16, mig=True)
    frame, (device,) = points(loaded((sliced, [ONE_GIGABYTE])))
    assert frame["class"].tolist() == ["no roofs"]
    assert "MIG slice" in device.recognised


def test_published_set_needs_a_source() -> None:
    made = published_roofs(MeasuredSet(tflops={"bfloat16": 1.0}, dram_gb_per_s=1.0, launch_us=1.0, source="paper"))
    assert (made.kind, made.source) == ("measured", "paper")


# Speed


@pytest.mark.speed
def test_hundred_thousand_rows_are_classified_in_two_seconds() -> None:
    count, chance = 100_000, np.random.default_rng(0)
    num_bytes = 10 ** chance.uniform(4, 10, count)
    intensity = 10 ** chance.uniform(-1, 4, count)
    frame = pd.DataFrame(
        {
            "op": "matmul",
            "phase": "decode",
            "dtype": chance.choice(["bfloat16", "float8_e4m3fn", "float32", "int4"], count),
            "cache": chance.choice(["cold", "hot"], count),
            "flags": "",
            "drift": 0.0,
            "timer": "cuda_graph",
            "flops": num_bytes * intensity,
            "bytes": num_bytes,
            "time_us": num_bytes / 10 ** chance.uniform(5, 6.6, count),
        }
    )
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        done = classify(frame, H100)
        taken.append(time.perf_counter() - start)
    assert set(done["class"]) == set(CLASSES), "every class is among them"
    assert min(taken) < 2.0
