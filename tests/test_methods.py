"""What was measured in different ways shares no row, no table, no mean, no sentence and no line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import synthetic
from synthetic import classified

from analysis import tables
from analysis.families import families
from analysis.frame import load
from analysis.methods import METHOD, by_method
from analysis.providers import geomeans, provider_table
from analysis.trajectories import trajectories
from bench.record import Record

OTHERS: dict[str, dict[str, Any]] = {
    "cache hot": {"cache": "hot"},
    "cache resident": {"cache": "resident"},
    "regime sustained": {"regime": "sustained"},
    "timer cuda_event": {"timer": "cuda_event"},
    "launch pdl": {"launch": "pdl"},
    "inputs zeros": {"data": {"distribution": "zeros", "seed": 0}},
}
"""What a heading says of records measured with these changes."""


def of_both(m: int, torch_us: float, triton_us: float, **how: Any) -> list[Record]:
    return [
        synthetic.matmul("r", m, provider=provider, times_us=(us,), **how)
        for provider, us in (("torch", torch_us), ("triton", triton_us))
    ]


def points_of(directory: Path, records: Sequence[Record]) -> pd.DataFrame:
    return classified(directory, (synthetic.H100, records))[0]


@pytest.mark.parametrize(("heading", "how"), OTHERS.items())
def test_each_way_of_measuring_has_tables_of_its_own(tmp_path: Path, heading: str, how: dict[str, Any]) -> None:
    """T15, T18, T24: 1.5x and 2x in one way, 4x in the other: no mean of all three, and no row of both."""
    records = [*of_both(1, 60.0, 40.0), *of_both(2, 60.0, 30.0), *of_both(1, 80.0, 20.0, **how)]
    frame = points_of(tmp_path, records)
    name = heading.split(" ")[0]
    usual = {"cache": "cold", "regime": "burst", "timer": "cuda_graph", "launch": "graph", "inputs": "normal(0, 1)"}
    first = f"{name} {usual[name]}"
    made = {table.title: table for table in tables.compared_tables(frame)}
    assert list(made) == [f"{title} ({way})" for way in (first, heading) for title in (
        "Provider against provider", "Geometric mean of the ratio",
    )]  # fmt: skip
    assert [row[-1] for row in made[f"Provider against provider ({first})"].rows] == ["1.50x", "2.00x"]
    assert [row[-1] for row in made[f"Provider against provider ({heading})"].rows] == ["4.00x"]
    assert [row[-2:] for row in made[f"Geometric mean of the ratio ({first})"].rows] == [("1.73x", "2")]
    assert [row[-2:] for row in made[f"Geometric mean of the ratio ({heading})"].rows] == [("4.00x", "1")]
    assert [len(table.rows) for table in tables.points_tables(frame)] == [4, 2]
    page = tables.report_markdown(frame, [], "title")
    assert page.count("## Points (") == 2 and f"## Points ({heading})" in page


@pytest.mark.parametrize(("heading", "how"), OTHERS.items())
def test_means_families_and_lines_are_of_one_way(tmp_path: Path, heading: str, how: dict[str, Any]) -> None:
    records = [*of_both(1, 60.0, 40.0), *of_both(2, 60.0, 30.0), *of_both(1, 80.0, 20.0, **how)]
    records += of_both(4, 80.0, 40.0, **how)
    frame = points_of(tmp_path, records)
    means = geomeans(provider_table(frame))
    assert sorted(means["geomean"]) == pytest.approx([3**0.5, 8**0.5])
    assert sorted(families(frame)["cases"]) == [2, 2, 2, 2]
    assert sum(f"; {heading}): " in sentence for sentence in tables.family_lines(frame)) == 2
    assert sorted(tuple(line.sizes) for line in trajectories(frame)) == [(1, 2), (1, 2), (1, 4), (1, 4)]


def test_flushed_is_cold_by_other_means_and_says_so(tmp_path: Path) -> None:
    frame = points_of(tmp_path, [*of_both(1, 60.0, 40.0), *of_both(2, 60.0, 30.0, cache="flush")])
    [table, means] = tables.compared_tables(frame)
    assert table.title == "Provider against provider"
    assert [row[table.columns.index("cache")] for row in table.rows] == ["cold", "flush"]
    assert means.rows[0][-1] == "2"
    mixed = points_of(tmp_path / "2", [of_both(1, 60.0, 40.0)[0], of_both(1, 60.0, 40.0, cache="flush")[1]])
    assert provider_table(mixed).times.empty


def test_one_way_has_no_heading_and_nothing_is_one_table(tmp_path: Path) -> None:
    frame = points_of(tmp_path, of_both(1, 60.0, 40.0))
    assert [heading for heading, _ in by_method(frame)] == [""]
    assert [heading for heading, _ in by_method(frame.iloc[:0])] == [""]
    assert tables.family_lines(frame)[0].startswith("matmul decode bfloat16 (torch): ")


def test_where_no_way_can_be_compared_that_is_one_line(tmp_path: Path) -> None:
    alone = [synthetic.matmul("r", 1, provider="torch"), synthetic.matmul("r", 1, provider="torch", cache="hot")]
    [table] = tables.compared_tables(points_of(tmp_path / "1", alone))
    assert (table.title, table.rows) == ("Provider against provider", [])
    assert table.note == "only one provider (torch): no provider to compare with"
    apart = [synthetic.matmul("r", 1, provider="torch"), synthetic.matmul("r", 1, cache="hot")]
    [table] = tables.compared_tables(points_of(tmp_path / "2", apart))
    assert table.note == "torch, triton share no workload: nothing to compare"


def test_the_commonest_way_comes_first_and_names_all_that_differs(tmp_path: Path) -> None:
    records = of_both(1, 60.0, 40.0, cache="hot", regime="sustained")
    records += [r for m in (1, 2) for r in of_both(m, 60.0, 40.0)]
    headings = [heading for heading, _ in by_method(points_of(tmp_path, records))]
    assert headings == ["cache cold, regime burst", "cache hot, regime sustained"]


def test_hot_and_cold_of_one_case_in_one_run_are_both_loaded(tmp_path: Path) -> None:
    """And zeros beside normal values: the last record of a case is the last measured in the same way."""
    zeros = {"data": {"distribution": "zeros", "seed": 0}}
    ways: tuple[dict[str, Any], ...] = ({}, {"cache": "hot"}, zeros, {})
    records = [synthetic.matmul("r", 1, times_us=(us,), **how) for us, how in zip((40, 30, 20, 41), ways, strict=True)]
    frame = load([synthetic.write(tmp_path, "r", synthetic.H100, records)]).frame
    assert sorted(frame["time_us"]) == [20, 30, 41]
    assert set(METHOD) <= set(frame.columns)
