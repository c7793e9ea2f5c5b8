"""Drift and suspect: which words stand beside a point, and what the run's own doubt does to it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import synthetic
from synthetic import classified

from analysis import tables
from analysis.flags import drift_of
from analysis.outputs import points_csv
from kernels.spec import Workload
from kernels.work import Work

ROOFS = synthetic.roofs("r", {"bfloat16": 790.0}, 2800.0, 2.0)
TRUE_ROOF = (790.0, 2800.0, 2.0)


def test_drift_is_the_last_tenth_over_the_first_in_the_order_taken() -> None:
    """T14: the last iterations 15 % slower than the first."""
    assert drift_of([100.0] * 90 + [115.0] * 10) == pytest.approx(0.15)
    assert drift_of([115.0] * 10 + [100.0] * 90) == pytest.approx(100 / 115 - 1)
    assert drift_of([115.0] + [100.0] * 99) == 0.0, "one slow sample is no trend"
    assert drift_of([10.0] * 20) == 0.0
    assert math.isnan(drift_of([10.0] * 19)) and math.isnan(drift_of([]))
    assert math.isnan(drift_of([0.0] * 30))


def one_point(directory: Path, **how: Any) -> dict[str, Any]:
    frame, devices = classified(directory, (synthetic.H100, [*ROOFS, synthetic.matmul("r", 1, **how)]))
    [row] = frame.to_dict("records")
    page = tables.report_markdown(frame, devices, "t")
    return {**{str(k): v for k, v in row.items()}, "page": page, "csv": points_csv(frame)}


def test_a_drift_above_5_percent_is_flagged_and_counted(tmp_path: Path) -> None:
    """T14."""
    up = one_point(tmp_path / "up", times_us=[100.0] * 90 + [106.0] * 10)
    assert (up["flags"], up["drift"]) == ("drift", pytest.approx(0.06))
    assert "| +6.0 % | drift |" in up["page"]
    assert "* flagged drift: the last tenth of the samples lies over 5% from the first at 1 of 1 points\n" in up["page"]
    assert up["csv"].splitlines()[1].endswith(",drift")
    down = one_point(tmp_path / "down", times_us=[106.1] * 10 + [100.0] * 90)
    assert down["flags"] == "drift"
    little = one_point(tmp_path / "little", times_us=[100.0] * 90 + [104.0] * 10)
    assert little["flags"] == "" and "flagged drift" not in little["page"] and "| flags |" not in little["page"]


def test_a_time_below_the_attainable_one_is_suspect_and_keeps_its_class(tmp_path: Path) -> None:
    fast = one_point(tmp_path / "1", share=1.03, device=TRUE_ROOF)
    assert (fast["flags"], fast["class"]) == ("suspect", "memory-bound")
    assert one_point(tmp_path / "2", share=1.01, device=TRUE_ROOF)["flags"] == ""
    both = one_point(tmp_path / "3", times_us=[13.5] * 90 + [12.5] * 10, flags=("throttled",))
    assert both["flags"] == "throttled; drift; suspect"


def test_a_hot_or_published_time_is_not_suspect_for_being_fast(tmp_path: Path) -> None:
    assert one_point(tmp_path / "1", share=1.5, device=TRUE_ROOF, cache="hot")["flags"] == ""
    published = one_point(tmp_path / "2", share=1.03, device=TRUE_ROOF, timer="published")
    assert (published["flags"], published["class"]) == ("", "memory-bound")


def test_a_time_that_the_run_doubts_is_invalid_and_a_doubted_roof_is_no_roof(tmp_path: Path) -> None:
    """T06, T07: the kernel ran where the clock did not look."""
    doubted = one_point(tmp_path / "1", share=0.5, flags=("suspect",))
    assert (doubted["class"], doubted["flags"]) == ("invalid", "suspect")
    assert doubted["reason"] == "the run flagged this time suspect, not all of the kernel: its record says why"
    [*others, floor] = ROOFS
    slow = synthetic.roofs("r", {}, 2800.0, 2.0)[0]
    wrong = synthetic.record(
        "r", "empty_launch", Workload(axes={"M": 1}, dtype="float32", phase="prefill"),
        Work(0, 0), times_us=(0.001,), flags=("suspect",),
    )  # fmt: skip
    frame, devices = classified(
        tmp_path / "2", (synthetic.H100, [*others, floor, slow, wrong, synthetic.matmul("r", 1)])
    )
    assert devices[0].measured is not None and devices[0].measured.launch_us == 2.0
    assert len(frame) == 1
