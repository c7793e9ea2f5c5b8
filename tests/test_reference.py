"""Published measurements as records: agreement with the reference CSVs, classes, records and ids, and its speed.

Expected figures come from the CSVs (derived elsewhere from the same package) or are worked out by hand.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import reference, reference_tables
from analysis.frame import load
from analysis.roofline import points
from bench.record import read_records
from kernels.spec import Workload

DATA = Path(__file__).parent / "data"
DEVICES = ("h100", "h200")
KEYS = [
    "op", "phase", "dtype", "model", "tp", "proj", "m", "n", "k", "batch", "q_len", "kv_len", "q_heads", "kv_heads",
    "head_dim",
]  # fmt: skip
MIB = 1 << 20
L2 = {"h100": 50 * MIB, "h200": 60 * MIB}

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="needs the extra `reference`"
)


def published_csv(device: str) -> pd.DataFrame:
    csv = pd.read_csv(DATA / f"reference_{device}.csv")
    return csv[csv["op"] != "all_reduce"]


class Standard:
    """A device's rows at the standard shapes, classified, read once for this file."""

    def __init__(self, device: str) -> None:
        self.published = reference.standard(device)
        self.points, self.devices = points(self.published.loaded)


@pytest.fixture(scope="module")
def standards() -> dict[str, Standard]:
    pytest.importorskip("aiconfigurator_core")
    return {device: Standard(device) for device in DEVICES}


def keyed(rows: pd.DataFrame) -> pd.DataFrame:
    """Our rows with the CSV's key."""
    gemm, mla_decode = rows["op"].str.startswith("matmul"), rows["op"] == "mla_decode"
    fp8 = np.where(gemm & (rows["scale"] == "block128"), "fp8_block", "fp8")
    dtype = np.where(rows["dtype"] == "bfloat16", "bfloat16", fp8)
    kv = np.where(rows["kv_dtype"] == "", "kv_bfloat16", "kv_fp8")
    names = {"M": "m", "N": "n", "K": "k"}
    return rows.rename(columns=names).assign(
        op=np.where(gemm, "gemm", rows["op"].str.split("_").str[0]),
        dtype=np.where(gemm | (rows["op"] == "attention_prefill"), dtype, kv),
        kv_heads=rows["kv_heads"].mask(mla_decode, 1),
        head_dim=rows["head_dim"].mask(mla_decode, 576),
        our_op=rows["op"],
    )


def beside_csv(rows: pd.DataFrame, device: str) -> pd.DataFrame:
    """Exact rows of the CSV, each with ours (`_ours` where a name is in both)."""
    csv = published_csv(device)
    csv = csv[csv["source"] == "exact"]
    key = [k for k in KEYS if k not in ("model", "tp", "proj")]
    sizes = dict.fromkeys(key[3:], "Int64")
    return csv.astype(sizes).merge(keyed(rows).astype(sizes), on=key, how="left", suffixes=("", "_ours"))


@pytest.mark.parametrize("device", DEVICES)
def test_standard_shapes_are_the_keys_of_the_reference(device: str) -> None:
    ours = pd.read_csv(reference.SHAPES)
    pd.testing.assert_frame_equal(ours[KEYS], published_csv(device)[KEYS].reset_index(drop=True), check_dtype=False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("framework", ["trtllm", "vllm", "sglang"])
def test_each_frameworks_latency_is_the_references(standards: dict[str, Standard], device: str, framework: str) -> None:
    rows = standards[device].points
    both = beside_csv(rows[(rows["provider"] == framework) & (rows["launch"] == "graph")], device)
    assert len(both) == 2888
    assert (both["time_us"].notna() == both[f"latency_us_{framework}"].notna()).all()
    pd.testing.assert_series_equal(both["time_us"], both[f"latency_us_{framework}"], rtol=0.01, check_names=False)


@pytest.mark.parametrize("device", DEVICES)
def test_best_latency_and_its_rates_are_the_references(standards: dict[str, Standard], device: str) -> None:
    both = beside_csv(reference.best_of(standards[device].points), device)
    pd.testing.assert_series_equal(both["time_us"], both["latency_us"], rtol=0.01, check_names=False)
    assert (both["provider"] == both["framework"]).all()
    counted = both[(both["op"] != "gemm") | (both["dtype"] == "bfloat16")]
    assert counted.groupby("op").size().to_dict() == {"attention": 1294, "gemm": 286, "mla": 736}
    pd.testing.assert_series_equal(counted["gb_per_s"], counted["gbps"], rtol=0.01, check_names=False)
    fractions = counted["fraction_of_datasheet"]
    pd.testing.assert_series_equal(fractions, counted["frac_of_roofline"], rtol=0.01, check_names=False)


@pytest.mark.parametrize("device", DEVICES)
def test_cache_agrees_with_the_reference_but_for_its_round_megabytes(
    standards: dict[str, Standard], device: str
) -> None:
    """The CSV compares with 50e6 bytes on both devices, we with each device's own L2 (50 and 60 MiB)."""
    both = beside_csv(reference.best_of(standards[device].points), device)
    warm, is_gemm = both["l2_warm"] == 1, both["op"] == "gemm"
    assert (warm == (both["bytes"] < 50e6))[~is_gemm].all()
    assert (both["cache"][~is_gemm] == "hot").all()
    differing = both[is_gemm & (warm != (both["cache"] == "hot"))]
    weight_bytes = differing["n"] * differing["k"] * np.where(differing["dtype"] == "bfloat16", 2, 1)
    copies = np.where(differing["provider"] == "trtllm", 5, 6)
    assert (differing["cache"] == "hot").all() and len(differing)
    assert ((copies * weight_bytes > 50e6) & (copies * weight_bytes < L2[device])).all()


@needs_package
def test_shapes_without_a_measurement_are_absent_and_counted(standards: dict[str, Standard]) -> None:
    published = standards["h100"].published
    assert (published.asked, published.absent) == (3805 - 69, 354 + 312 + 156 + 26)  # the CSV's rows by source
    assert published.repeats == 1760 + 2896
    assert published.unknown == 0


@needs_package
def test_ids_are_those_of_workloads_and_unique(standards: dict[str, Standard], tmp_path: Path) -> None:
    loaded = standards["h100"].published.loaded
    path = tmp_path / "records.jsonl"
    path.write_text(reference.records_text(loaded), encoding="utf-8")
    records = read_records(path)
    for record in records:
        storage = {name: record.case[name] for name in ("weight_dtype", "kv_dtype", "scale")}
        sizes: Mapping[str, int] = record.case["axes"]
        workload = Workload(
            axes=sizes, dtype=record.case["dtype"], phase=record.case["phase"], technique=record.case["technique"],
            **storage,
        )  # fmt: skip
        assert record.case["id"] == f"{record.case['op']}/{record.case['provider']}/{workload.key}"
    assert len({r.case["id"] for r in records}) == len(records) == len(loaded.frame)


@pytest.mark.parametrize("device", DEVICES)
def test_records_read_back_give_the_same_points(standards: dict[str, Standard], device: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(reference.records_text(standards[device].published.loaded), encoding="utf-8")
    again = load([path])
    assert again.environments == standards[device].published.loaded.environments
    pd.testing.assert_frame_equal(points(again)[0], standards[device].points, check_dtype=False)


@pytest.mark.parametrize(("device", "part"), [("h100", "H100 SXM5 80GB"), ("h200", "H200 SXM 141GB")])
def test_the_device_is_recognised(standards: dict[str, Standard], device: str, part: str) -> None:
    (found,) = standards[device].devices
    assert found.peaks is not None and found.peaks.device == part
    assert found.measured is not None


# The first row of each class, by hand: bytes 2 (MK + MN) + weights (+ 4 N of scales), time as published.
FIRST = {
    # 50,352,128 B in 24.519 us are 2,054 GB/s; 3 us + 50,352,128 B / 2,750 GB/s = 21.31 us; 24.519 / 21.31 = 1.15.
    ("h100", "memory-bound"): ("DRAM: 2054 of 2750 GB/s; up to 1.15x faster", "M=1,N=6144,K=4096"),
    # 25.77 GFLOP in 37.686 us; 3 us + 25.77 GFLOP / 794.5 TFLOP/s = 35.43 us.
    ("h100", "compute-bound"): ("arithmetic: 683.8 of 794.5 TFLOP/s; up to 1.06x faster", "M=512,N=6144,K=4096"),
    # 12,884,901,888 FLOP over 30,433,280 B; 1,402.6 TFLOP/s / 3,350 GB/s = 419, 1,978.9 / 2,750 = 720.
    ("h100", "near the ridge"): ("423 FLOP/byte lies in the band 419 to 720 where", "M=256,N=6144,K=4096"),
    # 6 copies of 8 MiB are 48 MiB: less than L2. 8,417,280 B of 52,428,800.
    ("h100", "cache-resident"): ("measured hot, and its 8.42 MB are 0.16 of L2:", "M=1,N=4096,K=2048"),
    # 8,388,608 + 2 x 2048 x 6144 + 4 x 4096 = 33,570,816 B.
    ("h100", "mixed-cache"): ("measured hot, and its 33.6 MB are 0.64 of L2:", "M=2048,N=4096,K=2048"),
    # 12,609,536 B / 3,950 GB/s = 3.19 us, under T0 = 4.2 us; (4.2 + 3.19) us of 9.262 us.
    ("h200", "overhead-bound"): ("the launch floor of 4.2 us is at least the 3.2 us", "M=1,N=3072,K=4096"),
}


@pytest.mark.parametrize(("device", "name"), FIRST)
def test_the_first_row_of_each_class_says_why(standards: dict[str, Standard], device: str, name: str) -> None:
    rows = standards[device].points
    first = rows[rows["class"] == name].iloc[0]
    reason, sizes = FIRST[device, name]
    assert reason in first["reason"]
    assert first["case_id"].endswith(sizes)


def test_no_other_class_occurs(standards: dict[str, Standard]) -> None:
    occurring = {(d, name) for d in DEVICES for name in standards[d].points["class"].unique()}
    assert {name for _, name in occurring} == {name for _, name in FIRST}


@needs_package
def test_frameworks_and_versions_are_selected() -> None:
    assert reference_tables.chosen("h100") == {"sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"}
    assert reference_tables.chosen("h100", ["vllm"]) == {"vllm": "0.24.0"}
    assert reference_tables.chosen("h100", (), "0.5.6.post2") == {"sglang": "0.5.6.post2"}


@needs_package
@pytest.mark.speed
def test_a_gemm_table_loads_counts_and_classifies_in_3_s() -> None:
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        (table,) = (t for t in reference_tables.read_tables("h100", "trtllm", "1.3.0rc20") if t.name == "gemm")
        rows, _devices = points(reference.table_rows(table, "h100"))
        taken.append(time.perf_counter() - start)
        assert len(rows) == 100_668
    assert min(taken) < 3


@needs_package
@pytest.mark.speed
def test_two_versions_of_a_framework_are_compared_in_10_s(tmp_path: Path) -> None:
    """24,800 gemms that both hold, out of 127,050, from the start of the command to its end; the better of two."""

    def analysis(*arguments: str) -> str:
        command = [sys.executable, "-m", "analysis", *arguments]
        return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=120).stdout

    chosen = ("--device", "h100", "--framework", "sglang", "--table", "gemm")
    for version in ("0.5.6.post2", "0.5.14"):
        analysis("reference", *chosen, "--version", version, "-o", str(tmp_path / version))
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        sides = [str(tmp_path / version) for version in ("0.5.6.post2", "0.5.14")]
        told = json.loads(analysis("compare", *sides, "--allow", "packages", "--json"))
        taken.append(time.perf_counter() - start)
    assert sum(case["ratio"] is not None for case in told["cases"]) == 24_800
    assert min(taken) < 10
