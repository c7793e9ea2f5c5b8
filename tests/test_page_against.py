"""Provider against provider: the interval of a ratio, who may be paired with whom, and the means of a family."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import synthetic
from synthetic import classified

from analysis.page.against import FAMILY, against, geomeans
from analysis.stats import ratio_interval
from bench.record import Record
from bench.stopping import median_interval


def samples(middle: float, low: float, high: float) -> tuple[float, ...]:
    """Six times with this median; of six the 95 % interval is the extremes."""
    return (low, middle, middle, middle, middle, high)


def of(m: int, provider: str, *times_us: float, run: str = "r", **how: Any) -> Record:
    return synthetic.matmul(run, m, provider=provider, times_us=times_us, **how)


def points_of(directory: Path, *records: Record) -> pd.DataFrame:
    return classified(directory, (synthetic.H100, records))[0]


def test_the_ends_add_as_squares() -> None:
    # 20 [18, 22] over 10 [9.5, 10.4]: down sqrt(ln(20/18)^2 + ln(10.4/10)^2) = sqrt(.011101 + .001538) = .112424
    # up sqrt(ln(22/20)^2 + ln(10/9.5)^2) = sqrt(.009084 + .002631) = .108236
    ratio, low, high = ratio_interval(np.array([[20.0], [18.0], [22.0]]), np.array([[10.0], [9.5], [10.4]]))
    assert ratio[0] == pytest.approx(2.0)
    assert low[0] == pytest.approx(2 * math.exp(-0.112424), rel=1e-5)
    assert high[0] == pytest.approx(2 * math.exp(0.108236), rel=1e-5)


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    draws = np.random.default_rng(7).lognormal(0, 0.05, size=(2, 1500, 31))
    a, b = (np.array([median_interval(row.tolist()) for row in side]).T for side in draws)
    _, low, high = ratio_interval(a, b)
    # 95 % of each side, and sides of order statistics say rather more: nowhere near a sure thing, nor below
    assert 0.94 < np.mean((low <= 1) & (high >= 1)) < 0.99


def test_a_case_of_two_providers_is_one_pair(tmp_path: Path) -> None:
    found = against(
        points_of(
            tmp_path, of(1, "triton", *samples(20, 19, 22)), of(1, "torch", *samples(40, 38, 41)), of(2, "triton", 20)
        )
    )
    assert len(found) == 1
    row = found.iloc[0]
    assert (row["case"], row["device"]) == ("matmul/bfloat16/M=1,N=4096,K=4096", "NVIDIA H100 80GB HBM3")
    # torch is the yardstick, though triton has more cases: 40 / 20
    assert (row["provider_a"], row["provider_b"], row["ratio"]) == ("torch", "triton", 2.0)
    assert row["low"] < 2 < row["high"] and row["family"] == "matmul decode bfloat16"


def test_every_pair_of_three_stands_once(tmp_path: Path) -> None:
    found = against(points_of(tmp_path, *(of(1, name, us) for name, us in (("a", 40.0), ("b", 20.0), ("c", 80.0)))))
    assert list(zip(found["provider_a"], found["provider_b"], strict=True)) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert found["ratio"].tolist() == pytest.approx([2.0, 0.5, 0.25])


def test_fewer_than_six_samples_give_no_interval(tmp_path: Path) -> None:
    found = against(points_of(tmp_path, of(1, "torch", *samples(40, 38, 41)), of(1, "triton", 20, 20, 20, 20, 20)))
    assert found["ratio"].tolist() == [2.0] and found[["low", "high"]].isna().all(axis=None)


def test_what_was_measured_otherwise_is_no_pair(tmp_path: Path) -> None:
    """P08 and F13: two devices, two ways and two storages share no row."""
    cold, hot = of(1, "torch", 40.0), of(1, "triton", 20.0, cache="hot")
    other = of(1, "triton", 20.0, run="s")
    frame, _ = classified(tmp_path, (synthetic.H100, [cold, hot]), (synthetic.H200, [other]))
    assert against(frame).empty and geomeans(against(frame)).empty
    wide, narrow = (synthetic.attention("t", 1, 1, 4096, provider=p, kv_dtype=s) for p, s in (("a", ""), ("b", "int8")))
    assert against(points_of(tmp_path / "kv", wide, narrow)).empty


def test_invalid_times_and_older_runs_are_left_out(tmp_path: Path) -> None:
    impossible = of(4096, "triton", 1.0)  # 137 GFLOP in a microsecond
    old, new, peer = of(1, "triton", 80.0), of(1, "triton", 20.0, run="s"), of(1, "torch", 40.0)
    frame, _ = classified(
        tmp_path, (synthetic.H100, [impossible, of(4096, "torch", 300.0), old, peer]), (synthetic.H100, [new])
    )
    assert against(frame)["ratio"].tolist() == [2.0]


def test_the_mean_of_a_family_is_over_the_cases_of_both(tmp_path: Path) -> None:
    records = [of(m, "torch", *samples(us, us, us)) for m, us in ((1, 80.0), (2, 40.0), (4, 40.0), (128, 40.0))]
    # 80/20 = 4 and 40/40 = 1: the geometric mean is 2; M = 4 has no triton, M = 128 is prefill
    records += [of(m, "triton", *samples(us, us, us)) for m, us in ((1, 20.0), (2, 40.0), (128, 80.0))]
    means = geomeans(against(points_of(tmp_path, *records))).set_index("family")
    decode, prefill = (means.loc[f"matmul {phase} bfloat16"] for phase in ("decode", "prefill"))
    assert decode["geomean"] == pytest.approx(2.0)
    assert (decode["count"], decode["faster"], decode["slower"]) == (2, 1, 0)
    assert prefill["geomean"] == pytest.approx(0.5)
    assert (prefill["count"], prefill["faster"], prefill["slower"]) == (1, 0, 1)


def test_times_of_different_work_have_a_mean_of_their_own(tmp_path: Path) -> None:
    records = [of(1, "a", 40.0), of(1, "b", 20.0), of(2, "a", 40.0, includes=("RoPE",)), of(2, "b", 40.0)]
    pairs = against(points_of(tmp_path, *records))
    assert pairs["same_work"].tolist() == [True, False]
    assert geomeans(pairs).set_index("same_work")["geomean"].to_dict() == pytest.approx({True: 2.0, False: 1.0})


def test_a_suspect_side_is_told(tmp_path: Path) -> None:
    published: dict[str, Any] = {"timer": "published", "flags": ("suspect",)}
    found = against(points_of(tmp_path, of(1, "a", 40.0, **published), of(1, "b", 20.0, timer="published")))
    assert found["suspect"].tolist() == [True]


def test_no_point_gives_no_row(tmp_path: Path) -> None:
    frame = points_of(tmp_path, of(4096, "triton", 1.0))
    assert against(frame).empty and list(geomeans(against(frame)).columns[: len(FAMILY)]) == list(FAMILY)


@pytest.mark.speed
def test_a_hundred_thousand_points_take_seconds(tmp_path: Path) -> None:
    one = points_of(tmp_path, of(1, "torch", 40.0), of(1, "triton", 20.0))
    many = one.iloc[[0, 1] * 50_000].reset_index(drop=True)
    ids = np.repeat(np.arange(50_000), 2).astype(str)
    many["case_id"] = ["matmul/" + p + "/bfloat16/M=" + i for p, i in zip(many["provider"], ids, strict=True)]
    start = time.perf_counter()
    found = geomeans(against(many))
    assert time.perf_counter() - start < 5 and found["count"].tolist() == [50_000]
