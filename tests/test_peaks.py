"""Peaks: every figure against SMs x rate x clock, and devices recognised by what they report, never another's peak.

Ids like A14 in docstrings name the known accounting mistake that a test guards against.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from analysis import peaks
from analysis.peaks import MEASURED, TABLE, Peaks, match
from bench.record import Environment

ENTRIES: dict[str, dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
CUDA_CORES = ("fp64", "fp64_tc", "fp32")
FIGURES = [(device, dtype) for device, entry in ENTRIES.items() for dtype in entry["ds"]]
NOT_ARITHMETIC = {
    ("H20 96GB", "fp32"): "published 44 against 78 x 256 x 1980 MHz = 39.5",
    ("L40S 48GB", "bf16"): "published 362.05 is the L40's; 142 x 1024 x 2520 MHz = 366.4, half of the sparse 733",
    ("L40S 48GB", "fp16"): "as bf16",
    ("B300 (HGX, 288GB)", "fp4"): "published 14,000 is rounded; 148 x 49152 x 1856 MHz = 13,502",
    ("H20 96GB", "fp64"): "no rate published",
    ("B300 (HGX, 288GB)", "fp64"): "no rate published",
    ("B300 (HGX, 288GB)", "int8"): "no rate published",
}
BANDWIDTH_ROUNDED = {"GB200 (per GPU)": 8000, "B300 (HGX, 288GB)": 7750}
"""Datasheets round these down from 8192 bit x 3996 MHz = 8184 GB/s."""


# Arithmetic


def check_arithmetic(device: str, dtype: str) -> None:
    """The datasheet's figure is SMs x FLOP/clock/SM x clock within 1 %: `vclk` on CUDA cores, `clk` on tensor cores."""
    entry = ENTRIES[device]
    clock_mhz = entry["vclk"] if dtype in CUDA_CORES else entry["clk"]
    reached = entry["sm"] * (entry["rate"].get(dtype) or 0) * clock_mhz / 1e6
    assert reached == pytest.approx(entry["ds"][dtype], rel=0.01)


@pytest.mark.parametrize(("device", "dtype"), [f for f in FIGURES if f not in NOT_ARITHMETIC])
def test_figure_is_sms_times_rate_times_clock(device: str, dtype: str) -> None:
    check_arithmetic(device, dtype)


@pytest.mark.parametrize(("device", "dtype"), NOT_ARITHMETIC)
def test_exception_is_still_needed(device: str, dtype: str) -> None:
    with pytest.raises(AssertionError):
        check_arithmetic(device, dtype)


def check_bandwidth(device: str) -> None:
    entry = ENTRIES[device]
    assert entry["bus"] * entry["mclk"] * 2 / 8 / 1e3 == pytest.approx(entry["bw"], rel=0.01)


@pytest.mark.parametrize("device", [d for d in ENTRIES if d not in BANDWIDTH_ROUNDED])
def test_bandwidth_is_bus_times_twice_the_memory_clock(device: str) -> None:
    check_bandwidth(device)


@pytest.mark.parametrize("device", BANDWIDTH_ROUNDED)
def test_rounded_bandwidth_is_below_its_arithmetic(device: str) -> None:
    entry = ENTRIES[device]
    assert entry["bw"] == BANDWIDTH_ROUNDED[device] < entry["bus"] * entry["mclk"] * 2 / 8 / 1e3
    with pytest.raises(AssertionError):
        check_bandwidth(device)


def test_table_holds_what_the_file_holds() -> None:
    assert list(peaks.table()) == list(ENTRIES)
    for device, entry in ENTRIES.items():
        ours = peaks.table()[device]
        assert (ours.sm_count, ours.dram_gb_per_s, ours.l2_bytes) == (entry["sm"], entry["bw"], entry["l2"] * 2**20)
        assert ours.source
        assert ours.names
        assert ours.tflops["bfloat16", "float32"] == entry["ds"]["bf16"]


@pytest.mark.parametrize("device", [d for d, entry in ENTRIES.items() if "fp8" in entry["ds"]])
def test_fp8_is_twice_bf16_on_every_card(device: str) -> None:
    """A17: no entry is sparse where another is dense; datasheets round (L40S 2.025)."""
    ours = peaks.table()[device]
    assert ours.tflops["float8_e4m3fn", "float32"] == pytest.approx(2 * ours.tflops["bfloat16", "float32"], rel=0.03)
    assert ours.tflops["float8_e5m2", "float32"] == ours.tflops["float8_e4m3fn", "float32"]


@pytest.mark.parametrize(
    ("device", "dtype", "ridge"),
    [
        ("H100 SXM5 80GB", "bfloat16", 295),
        ("H100 SXM5 80GB", "float8_e4m3fn", 591),
        ("H100 PCIe 80GB", "bfloat16", 371),
        ("H100 NVL 94GB", "bfloat16", 212),
        ("H200 SXM 141GB", "bfloat16", 206),
        ("H20 96GB", "bfloat16", 37),
        ("A100 80GB SXM4", "bfloat16", 153),
    ],
)
def test_ridge(device: str, dtype: str, ridge: int) -> None:
    """A16: form factors of one chip have ridges of their own."""
    assert peaks.table()[device].ridge(dtype) == pytest.approx(ridge, abs=0.6)


def check_dense_bf16() -> None:
    """A14, A16: dense bf16 and bandwidth of the four Hopper cards; 1979 for SXM would be the sparse figure."""
    ours = {d: (p.tflops["bfloat16", "float32"], p.dram_gb_per_s) for d, p in peaks.table().items()}
    assert ours["H100 SXM5 80GB"] == (989.4, 3350)
    assert ours["H100 PCIe 80GB"] == (756.5, 2039)
    assert ours["H100 NVL 94GB"] == (835.5, 3938)
    assert ours["H200 SXM 141GB"] == (989.4, 4800)
    assert 700 / ours["H100 SXM5 80GB"][0] == pytest.approx(0.707, abs=1e-3)


def check_clock_bound() -> None:
    """No figure is above what all SMs do at their highest clock (2 % for rounding): a sparse one would be, by 2 x."""
    for device, ours in peaks.table().items():
        for (dtype, accumulate), figure in ours.tflops.items():
            rate = ours.rates.get((dtype, accumulate))
            if rate and (device, peaks.SHORT.get(dtype)) not in NOT_ARITHMETIC:
                assert figure <= 1.02 * ours.sm_count * rate * ours.max_clock_mhz / 1e6, (device, dtype)


@pytest.mark.parametrize("check", [check_dense_bf16, check_clock_bound])
def test_peaks_are_dense(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("check", [check_dense_bf16, check_clock_bound])
def test_dense_check_catches_a_sparse_table(check: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = {d: replace(p, tflops={k: 2 * v for k, v in p.tflops.items()}) for d, p in peaks.table().items()}
    monkeypatch.setattr(peaks, "table", lambda: sparse)
    with pytest.raises(AssertionError):
        check()


def test_geforce_keeps_both_accumulate_types() -> None:
    card = peaks.table()["RTX 4090"]
    assert card.tflops["float16", "float32"] == 165.2
    assert card.tflops["float16", "float16"] == 330.3


def test_clock_bound_takes_the_devices_own_clock_before_the_tables() -> None:
    """132 x 4096 x 1980 MHz = 1070.5 TFLOP/s, x 1755 MHz = 948.9."""
    card = peaks.table()["H100 SXM5 80GB"]
    assert card.clock_bound_tflops("bfloat16", None) == pytest.approx(1070.5, abs=0.1)
    assert card.clock_bound_tflops("bfloat16", 1755) == pytest.approx(948.9, abs=0.1)
    assert peaks.table()["A100 80GB SXM4"].clock_bound_tflops("float8_e4m3fn", None) is None


def test_measured_sets_are_the_published_ones_and_below_the_datasheet() -> None:
    h100, h200 = MEASURED["H100 SXM5 80GB"], MEASURED["H200 SXM 141GB"]
    assert (h100.tflops["bfloat16"], h100.tflops["float8_e4m3fn"]) == (794.5, 1402.6)
    assert (h100.dram_gb_per_s, h100.launch_us) == (2750, 3.0)
    assert (h200.tflops["bfloat16"], h200.tflops["float8_e4m3fn"]) == (794.5, 1453.4)
    assert (h200.dram_gb_per_s, h200.launch_us) == (3950, 4.2)
    for device, measured in MEASURED.items():
        sheet = peaks.table()[device]
        assert measured.dram_gb_per_s < sheet.dram_gb_per_s
        assert all(rate < sheet.tflops[dtype, "float32"] for dtype, rate in measured.tflops.items())
        assert measured.source


# Recognition

MIB = 2**20
REPORTED = {
    # What torch and CUDA report of real cards: name, capability, SMs, bytes, bus, memory clock, L2, highest clock.
    "H100 SXM5 80GB": ("NVIDIA H100 80GB HBM3", "9.0", 132, 85_045_477_376, 5120, 2619, 50, 1980),
    "H100 PCIe 80GB": ("NVIDIA H100 PCIe", "9.0", 114, 85_031_714_816, 5120, 1593, 50, 1755),
    "H100 NVL 94GB": ("NVIDIA H100 NVL", "9.0", 132, 99_456_909_312, 6016, 2619, 50, 1785),
    "H200 SXM 141GB": ("NVIDIA H200", "9.0", 132, 143_156 * MIB, 6144, 3201, 60, 1980),
    "H20 96GB": ("NVIDIA H20", "9.0", 78, 97_285 * MIB, 6144, 2619, 60, 1980),
    "GH200 96GB HBM3": ("NVIDIA GH200 480GB", "9.0", 132, 101_468_602_368, 6144, 2619, 60, 1980),
    "A100 40GB SXM4": ("NVIDIA A100-SXM4-40GB", "8.0", 108, 42_505_273_344, 5120, 1215, 40, 1410),
    "A100 80GB SXM4": ("NVIDIA A100-SXM4-80GB", "8.0", 108, 85_174_321_152, 5120, 1593, 40, 1410),
    "A100 40GB PCIe": ("NVIDIA A100-PCIE-40GB", "8.0", 108, 42_405_855_232, 5120, 1215, 40, 1410),
    "A100 80GB PCIe": ("NVIDIA A100 80GB PCIe", "8.0", 108, 84_974_239_744, 5120, 1512, 40, 1410),
    "L40S 48GB": ("NVIDIA L40S", "8.9", 142, 47_697_362_944, 384, 9001, 96, 2520),
    "RTX 4090": ("NVIDIA GeForce RTX 4090", "8.9", 128, 25_393_692_672, 384, 10501, 72, 2520),
    "B200 (HGX, 180GB)": ("NVIDIA B200", "10.0", 148, 182_631 * MIB, 7680, 3996, 126, 1965),
}


def reported(device: str, **changes: Any) -> Environment:
    name, capability, sms, memory, bus, memory_clock, l2_mib, clock = REPORTED[device]
    return replace(
        Environment(
            device_type="cuda",
            device_name=name,
            compute_capability=capability,
            sm_count=sms,
            memory_bytes=memory,
            memory_bus_bits=bus,
            memory_clock_mhz=memory_clock,
            l2_bytes=l2_mib * MIB,
            max_sm_clock_mhz=clock,
            mig=False,
        ),
        **changes,
    )


def matched(environment: Environment) -> Peaks:
    found, told = match(environment)
    assert found is not None, told
    return found


@pytest.mark.parametrize("device", REPORTED)
def test_real_card_is_recognised(device: str) -> None:
    """A16, A21: by its own properties, and the line says which part it is and where the peaks come from."""
    found, told = match(reported(device))
    assert found is peaks.table()[device]
    assert device in told
    assert found.source in told
    assert str(REPORTED[device][0]) in told


@pytest.mark.parametrize("device", REPORTED)
def test_name_alone_is_enough_where_nothing_else_is_reported(device: str) -> None:
    """Published records have a device's name and no properties."""
    assert matched(Environment(device_type="cuda", device_name=str(REPORTED[device][0]))).device == device


@pytest.mark.parametrize("device", REPORTED)
@pytest.mark.parametrize("missing", [f.name for f in fields(Environment) if f.name.startswith(("memory", "sm", "l2"))])
def test_unreported_property_decides_nothing(device: str, missing: str) -> None:
    assert matched(reported(device, **{missing: None})).device == device


@pytest.mark.parametrize(
    ("name_of", "properties_of"),
    [
        ("H100 SXM5 80GB", "H100 PCIe 80GB"),
        ("H100 PCIe 80GB", "H100 SXM5 80GB"),
        ("H100 SXM5 80GB", "H100 NVL 94GB"),
        ("H200 SXM 141GB", "H100 SXM5 80GB"),
        ("H20 96GB", "GH200 96GB HBM3"),
        ("A100 80GB SXM4", "A100 40GB SXM4"),
        ("A100 80GB PCIe", "A100 80GB SXM4"),
        ("H100 SXM5 80GB", "A100 80GB SXM4"),
    ],
)
def test_name_of_one_card_with_properties_of_another_is_refused(name_of: str, properties_of: str) -> None:
    found, told = match(reported(properties_of, device_name=REPORTED[name_of][0]))
    assert found is None
    assert f"the driver's name says {name_of}, its reported properties do not" in told
    assert "gpu_peaks.json" in told


@pytest.mark.parametrize(
    "changes",
    [
        {"sm_count": 114},
        {"compute_capability": "10.0"},
        {"memory_bytes": 94 * 2**30},
        {"memory_clock_mhz": 1593},
        {"memory_bus_bits": 6144},
    ],
)
def test_one_property_that_disagrees_is_enough_to_refuse(changes: dict[str, Any]) -> None:
    assert match(reported("H100 SXM5 80GB", **changes))[0] is None


SLICE = {
    "device_name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "sm_count": 16,
    "memory_bytes": 9_728 * MIB,
    "mig": True,
}


@pytest.mark.parametrize(
    "changes",
    [
        SLICE,
        SLICE | {"mig": None},
        SLICE | {"device_name": "NVIDIA H100 80GB HBM3"},
        {"mig": True, "sm_count": None, "memory_bytes": None},
    ],
)
def test_mig_slice_has_no_peaks_and_is_told_why(changes: dict[str, Any]) -> None:
    """A slice keeps the card's bus and clocks, and may keep its name; the card's peaks are up to 7 x its own."""
    found, told = match(reported("H100 SXM5 80GB", **changes))
    assert found is None
    assert "MIG slice" in told
    assert "gpu_peaks.json" in told


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GeForce RTX 3090", "NVIDIA H100", "NVIDIA H800", "NVIDIA GB200 NVL72", "nvidia h200", "", None],
)
def test_unknown_card_has_no_peaks_and_is_told_how_to_add_it(name: str | None) -> None:
    """A21: no percentages rather than H100's, and no matching by part of a name (GB200 holds B200)."""
    for environment in (
        Environment(device_type="cuda", device_name=name),
        reported("H100 SXM5 80GB", device_name=name),
    ):
        found, told = match(environment)
        assert found is None
        assert "no percentages: add an entry to analysis/data/gpu_peaks.json" in told


def test_cpu_has_no_datasheet_peaks() -> None:
    found, told = match(Environment(device_type="cpu", device_name="AMD EPYC 9654"))
    assert found is None
    assert "python -m bench peaks" in told


def test_no_two_entries_share_a_name_of_the_driver() -> None:
    names = [name for entry in ENTRIES.values() for name in entry["names"]]
    assert len(names) == len(set(names))
