"""Tables and lines: who is compared with whom, what is said once, what becomes a column, how figures are printed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import synthetic
from synthetic import Classified, classified

from analysis import tables
from analysis.families import families
from analysis.frame import load
from analysis.outputs import POINT_COLUMNS, points_csv
from analysis.providers import geomeans, provider_table
from bench.record import Environment, Record, Status


def of_runs(directory: Path, records: Sequence[Record], environment: Environment = synthetic.H100) -> Classified:
    """The points of records of one or more runs on one device."""
    runs = dict.fromkeys(r.run for r in records)
    return classified(directory, *((environment, [r for r in records if r.run == run]) for run in runs))


def two_providers(m: int, torch_us: float, triton_us: float, run: str = "r", **how: Any) -> list[Record]:
    """One workload by torch and by triton."""
    return [
        synthetic.matmul(run, m, provider="torch", times_us=(torch_us,), **how),
        synthetic.matmul(run, m, provider="triton", times_us=(triton_us,), **how),
    ]


def test_one_row_a_workload_one_column_a_provider_and_the_ratio(tmp_path: Path) -> None:
    records = [*two_providers(2, 30.0, 60.0), *two_providers(16, 40.0, 20.0), synthetic.matmul("r", 8)]
    compared = provider_table(of_runs(tmp_path, records)[0])
    table = tables.providers_table(compared)
    assert table.columns == ("op", "workload", "torch us", "triton us", "torch/triton")
    # in the order of the records, not M=16 before M=2 by text; M=8 has nobody to be compared with
    assert table.rows == [
        ("matmul", "bfloat16/M=2,N=4096,K=4096", "30", "60", "0.50x"),
        ("matmul", "bfloat16/M=16,N=4096,K=4096", "40", "20", "2.00x"),
    ]
    assert table.note == "median us; ratio = time of torch / time of the provider: above 1 the provider is faster"


def test_geometric_mean_is_over_the_workloads_of_both(tmp_path: Path) -> None:
    records = [*two_providers(1, 80.0, 20.0), *two_providers(2, 30.0, 30.0), synthetic.matmul("r", 4)]
    records += [synthetic.matmul("r", 1, provider="flash", times_us=(40.0,))]
    means = geomeans(provider_table(of_runs(tmp_path, records)[0])).set_index("provider")
    assert means.loc["triton", "geomean"] == pytest.approx(2.0) and means.loc["triton", "count"] == 2
    assert means.loc["flash", "geomean"] == pytest.approx(2.0) and means.loc["flash", "count"] == 1


def test_invalid_times_are_compared_with_nothing(tmp_path: Path) -> None:
    frame, _ = of_runs(tmp_path, [*two_providers(4096, 200.0, 1.0), *two_providers(1, 40.0, 20.0)])
    assert list(provider_table(frame).times["workload"]) == ["bfloat16/M=1,N=4096,K=4096"]


def test_times_measured_differently_are_compared_with_nothing(tmp_path: Path) -> None:
    hot = synthetic.matmul("r", 1, provider="torch", times_us=(40.0,), cache="hot")
    cold = synthetic.matmul("r", 1, provider="triton", times_us=(20.0,))
    compared = provider_table(of_runs(tmp_path, [hot, cold])[0])
    assert compared.baseline == "" and compared.note == "torch, triton share no workload: nothing to compare"


def test_of_a_case_measured_twice_the_later_run_counts(tmp_path: Path) -> None:
    frame, _ = of_runs(tmp_path, [*two_providers(1, 40.0, 20.0), *two_providers(1, 44.0, 11.0, run="second")])
    assert tables.providers_table(provider_table(frame)).rows[0][-3:] == ("44", "11", "4.00x")


def test_one_provider_is_said_in_one_line(tmp_path: Path) -> None:
    frame, devices = of_runs(tmp_path, [synthetic.matmul("r", 1)])
    compared = provider_table(frame)
    assert compared.note == "only one provider (triton): no provider to compare with"
    assert compared.note in tables.report_markdown(frame, devices, "title")


def test_without_torch_the_ratio_is_to_the_commonest_and_says_so(tmp_path: Path) -> None:
    records = [synthetic.matmul("r", m, provider=p) for p, ms in (("a", (1, 2)), ("b", (1, 2, 4))) for m in ms]
    compared = provider_table(of_runs(tmp_path, records)[0])
    assert "time of a (torch is not among them)" in compared.note  # both ran the two that are compared


def test_a_family_is_one_sentence(tmp_path: Path) -> None:
    roof = (989.4, 3350.0, 0.0)
    records = [synthetic.matmul("r", m, provider="torch", share=s, device=roof) for m, s in ((1, 0.61), (8, 0.88))]
    frame, _ = of_runs(tmp_path, records)
    assert tables.family_lines(frame) == [
        "matmul decode bfloat16 (torch): 2 cases, all memory-bound, 0.61 to 0.88 of attainable (median 0.74); "
        "most to gain: bfloat16/M=1,N=4096,K=4096, up to 1.64x."
    ]


def test_classes_to_which_no_roof_applies_stay_out_of_the_range(tmp_path: Path) -> None:
    cached = synthetic.matmul("r", 1, 256, 256, cache="hot", times_us=(0.02,))
    frame, _ = of_runs(tmp_path, [cached, synthetic.matmul("r", 1, share=0.5, device=(989.4, 3350.0, 0.0))])
    frame.loc[0, "cache"] = "cold"  # classified as hot, and now in the family of the other
    family = families(frame).iloc[0]
    assert family["classes"] == {"cache-resident": 1, "memory-bound": 1}
    assert family["low"] == family["high"] == pytest.approx(0.5)


def test_a_time_under_the_attainable_one_and_a_tiny_share_are_told(tmp_path: Path) -> None:
    roof = (989.4, 3350.0, 0.0)
    frame, _ = of_runs(
        tmp_path, [synthetic.matmul("r", m, share=s, device=roof) for m, s in ((1024, 1.05), (8, 0.0042))]
    )
    assert tables.family_lines(frame) == [
        "matmul decode bfloat16 (triton): 1 case, memory-bound, 0.0042 of attainable.",
        "matmul prefill bfloat16 (triton): 1 case, compute-bound, 1.05 of attainable, 1 above the roof (stale?).",
    ]


def test_storage_and_devices_make_families_of_their_own(tmp_path: Path) -> None:
    frame, _ = of_runs(tmp_path, [synthetic.matmul("r", 1), synthetic.matmul("r", 2)])
    frame.loc[0, "weight_dtype"] = "int4"
    assert list(families(frame)["storage"]) == ["bfloat16", "bfloat16.w_int4"]
    frame.loc[0, "device"] = ""
    assert [line.split(":")[0] for line in tables.family_lines(frame)] == ["no device named", "NVIDIA H100 80GB HBM3"]


def test_what_differs_is_a_column_and_what_does_not_is_said_once(tmp_path: Path) -> None:
    same, devices = of_runs(tmp_path / "same", [synthetic.matmul("r", 1), synthetic.matmul("r", 2)])
    assert not {"timer", "cache", "regime", "launch", "device"} & set(tables.points_table(same).columns)
    how = "measured with: timer cuda_graph, cache cold, regime burst, launch graph, inputs normal(0, 1)"
    assert how in tables.provenance(same, devices)
    differ, devices = of_runs(
        tmp_path / "differ", [synthetic.matmul("r", 1), synthetic.matmul("r", 2, cache="hot", regime="sustained")]
    )
    assert {"cache", "regime"} < set(tables.points_table(differ).columns)
    assert "measured with: timer cuda_graph, launch graph, inputs normal(0, 1)" in tables.provenance(differ, devices)


def test_fractions_are_percent_in_text_and_fractions_in_data(tmp_path: Path) -> None:
    frame, _ = of_runs(tmp_path, [synthetic.matmul("r", 1, share=0.5, device=(989.4, 3350.0, 0.0))])
    table = tables.points_table(frame)
    assert table.rows[0][table.columns.index("of datasheet")] == "50 %"
    assert pd.read_csv(io.StringIO(points_csv(frame)))["fraction_of_datasheet"][0] == pytest.approx(0.5)
    assert [tables.percent(f) for f in (0.0042, 0.0996, 1.0, float("nan"))] == ["0.4 %", "10 %", "100 %", "-"]
    assert [tables.number(n) for n in (0.012345, 12345.6, 999.96, float("nan"))] == ["0.01235", "12346", "1000", "-"]


def test_provenance_names_device_peak_density_source_and_counting(tmp_path: Path) -> None:
    """A21."""
    records = [synthetic.matmul("r", 1), *synthetic.roofs("r", {"bfloat16": 790.0}, 2800, 2.5)]
    lines = "\n".join(tables.provenance(*of_runs(tmp_path, records)))
    assert "NVIDIA H100 80GB HBM3: recognised as H100 SXM5 80GB by its reported properties; NVIDIA H100 data" in lines
    assert "datasheet roofs of H100 SXM5 80GB, dense: bfloat16 989.4 TFLOP/s (float32 accumulate), DRAM 3350" in lines
    assert "measured roofs: bfloat16 790 TFLOP/s (float32 accumulate), DRAM 2800 GB/s; launch floor 2.5 us" in lines
    assert "counting version 1: useful FLOPs" in lines


def test_an_unknown_gpu_has_no_percentages_and_a_line_how_to_add_it(tmp_path: Path) -> None:
    """A21: never another device's peak."""
    frame, devices = of_runs(tmp_path, [synthetic.matmul("r", m) for m in (1, 512)], synthetic.UNKNOWN)
    page = tables.report_markdown(frame, devices, "title")
    assert " %" not in page
    assert "NVIDIA Z900 Ultra: no peaks for this device, so no percentages: add an entry to" in page
    assert "2 cases" not in page and "1 case, without roofs; no fraction of attainable applies." in page


def test_records_without_a_device_say_what_they_are_drawn_against(tmp_path: Path) -> None:
    page = tables.report_markdown(*of_runs(tmp_path, [synthetic.matmul("r", 1)], synthetic.NAMELESS), "title")
    assert "the records name no device: drawn against H100 SXM5 80GB" in page


def test_statuses_are_counted_and_each_reason_is_told_once(tmp_path: Path) -> None:
    skipped = [synthetic.matmul("r", m, status=Status.SKIPPED, detail="no time left") for m in (3, 5, 7)]
    failed = [synthetic.matmul("r", 9, status=Status.FAILED, detail="RuntimeError: boom")]
    records = [synthetic.matmul("r", 1), *skipped, *failed, *synthetic.roofs("r", {"bfloat16": 790.0}, 2800, 2.5)]
    frame = load([synthetic.write(tmp_path, "r", synthetic.H100, records)]).frame
    assert tables.status_lines(frame) == [
        "1 OK, 3 SKIPPED, 1 FAILED (and 3 roof records)",
        "3 SKIPPED: no time left",
        "1 FAILED: RuntimeError: boom",
    ]
    assert tables.status_lines(frame[frame["status"] == "FAILED"])[0] == "0 OK, 1 FAILED"


def test_markdown_escapes_bars_and_says_what_it_leaves_out() -> None:
    table = tables.Table(title="T", columns=("a", "b"), rows=[("x|y", "1"), ("z", "2")], numeric=frozenset({"b"}))
    assert tables.markdown(table, most=1) == (
        "## T\n\n| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n\n1 more rows are in points.csv.\n"
    )


def test_csv_has_exactly_these_columns_and_whole_sizes(tmp_path: Path) -> None:
    frame, _ = of_runs(tmp_path, [synthetic.matmul("r", 1), synthetic.attention("r", 4, 1, 4096)])
    text = points_csv(frame)
    assert text.splitlines()[0] == (
        "case_id,op,provider,phase,dtype,technique,M,N,K,batch,q_len,kv_len,q_heads,kv_heads,head_dim,time_us,flops,"
        "bytes,intensity_flops_per_byte,tflops_per_s,gb_per_s,attainable_us,fraction_of_datasheet,"
        "fraction_of_measured,fraction_of_attainable,class,reason,device,model,weight_dtype,kv_dtype,cache,timer,regime,launch,inputs,"
        "drift,flags"
    )
    rows = pd.read_csv(io.StringIO(text), dtype=str)
    assert tuple(rows.columns) == POINT_COLUMNS
    assert list(rows.loc[0, ["M", "N", "K", "flops", "bytes"]]) == ["1", "4096", "4096", "33554432", "33570816"]
    assert list(rows.loc[1, ["batch", "kv_len", "bytes"]]) == ["4", "4096", "67174400"]
    assert rows.loc[0, ["batch", "q_len", "weight_dtype", "fraction_of_measured"]].isna().all()
    assert "\r" not in text
