"""The report of a comparison: counts by dtype and shape class, the arrows of the two-run picture, and its files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import synthetic
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from typer.testing import CliRunner

from analysis.__main__ import app
from analysis.compare import Comparison, compare
from analysis.compare_report import groups, write_comparison
from analysis.roofline import Device, devices
from analysis.sides import side_of
from analysis.two_runs import LOOKS, two_runs_figure, unmatched
from analysis.verdicts import Rules, Verdict
from bench.record import write_atomically

OLD = {1: 100.0, 16: 100.0, 17: 100.0, 4096: 400.0, 8192: 900.0, 5: 70.0}
NEW = {1: 120.0, 16: 101.0, 17: 50.0, 4096: 500.0, 8192: 1125.0, 6: 70.0}
"""M -> microseconds: slower at 1, 4096 and 8192, faster at 17, 5 and 6 on one side alone."""


def paths(directory: Path) -> tuple[Path, Path]:
    made = []
    for name, times, minute in (("old", OLD, 0), ("new", NEW, 1)):
        taken = dataclasses.replace(synthetic.H100, taken_at=f"2026-03-01T10:{minute:02d}:00+00:00")
        records = [synthetic.matmul(name, m, times_us=(t,)) for m, t in times.items()]
        made.append(synthetic.write(directory / name, name, taken, records))
    return made[0], made[1]


@pytest.fixture
def compared(tmp_path: Path) -> tuple[Comparison, list[Device]]:
    old, new = (side_of([path]) for path in paths(tmp_path))
    return compare(old.frame, new.frame, Rules()), devices(new)


def test_counts_by_dtype_and_shape_class(compared: tuple[Comparison, list[Device]]) -> None:
    """Geometric means by hand: sqrt(1.2 x 1.01) for M up to 16, where one of two is slower."""
    found = groups(compared[0].cases)
    assert found["shape"].tolist() == ["M <= 16", "M 17 to 64", "M 513 to 4096", "M > 4096"]
    assert set(found["op"]) == {"matmul"} and set(found["dtype"]) == {"bfloat16"}
    assert found["cases"].tolist() == [2, 1, 1, 1]
    assert found["SLOW"].tolist() == [1, 0, 1, 1]
    assert found["FAST"].tolist() == [0, 1, 0, 0]
    assert found["AMBIGUOUS"].tolist() == [1, 0, 0, 0]
    assert found["geomean"].tolist() == pytest.approx([(1.2 * 1.01) ** 0.5, 0.5, 1.25, 1.25])


def test_an_op_without_m_is_one_class(compared: tuple[Comparison, list[Device]]) -> None:
    cases = compared[0].cases.assign(M=pd.array([pd.NA] * len(compared[0].cases), dtype="Int64"))
    assert groups(cases)["shape"].tolist() == ["all"]


def test_arrows_go_from_the_old_rate_to_the_new(compared: tuple[Comparison, list[Device]]) -> None:
    """2MNK / time: at M = 4096 from 343.6 to 274.9 TFLOP/s, the head at the new rate, pointing down for slower."""
    figure = two_runs_figure(compared[0].cases, compared[1], "two runs")
    [axes] = figure.axes
    segments: dict[str, list[Any]] = {}
    for collection in axes.collections:
        if isinstance(collection, LineCollection):
            colours: Any = collection.get_colors()
            segments[to_hex(colours[0]).upper()] = [s.tolist() for s in collection.get_segments()]
    slow, fast = segments[LOOKS[Verdict.SLOW][0]], segments[LOOKS[Verdict.FAST][0]]
    assert len(slow) == 3
    assert all(old > new for (_, old), (_, new) in slow)
    [(old, new)] = [(old, new) for (_, old), (_, new) in slow if 340 < old < 350]
    assert (old, new) == (pytest.approx(2 * 4096**3 / 400e6), pytest.approx(2 * 4096**3 / 500e6))
    [((_, old), (_, new))] = fast
    assert new == pytest.approx(2 * old)
    heads = [c for c in axes.collections if isinstance(c, PathCollection)]
    assert sorted(len(np.asarray(c.get_offsets())) for c in heads) == [1, 1, 3]
    legend = axes.get_legend()
    assert legend is not None
    words = [text.get_text() for text in legend.get_texts()]
    assert words[:3] == ["within the threshold, or not sure (1)", "faster (1)", "slower (3)"]


def test_every_verdict_that_is_drawn_has_its_own_colour_and_head() -> None:
    assert len({colour for colour, _, _ in LOOKS.values()}) == len({head for _, head, _ in LOOKS.values()}) == 3


def test_cases_of_one_side_alone_are_listed(compared: tuple[Comparison, list[Device]]) -> None:
    lines = unmatched(compared[0].cases)
    assert [line.split(":")[0] for line in lines] == ["MISSING, not drawn (1)", "NEW, not drawn (1)"]
    assert "M=5," in lines[0] and "M=6," in lines[1]
    many = pd.concat([compared[0].cases] * 7)
    assert unmatched(many)[0].endswith("and 1 more")


def test_nothing_in_common_still_makes_a_picture(compared: tuple[Comparison, list[Device]]) -> None:
    cases = compared[0].cases
    alone = cases[cases["verdict"].isin([Verdict.MISSING, Verdict.NEW])]
    figure = two_runs_figure(alone, compared[1], "two runs")
    assert any(text.get_gid() == "placeholder" for text in figure.axes[0].texts)


def test_the_command_writes_four_files(tmp_path: Path) -> None:
    old, new = paths(tmp_path)
    output = tmp_path / "out"
    result = CliRunner().invoke(app, ["compare", str(old), str(new), "-o", str(output)])
    assert result.exit_code == 1, result.output
    names = {path.name for path in output.iterdir()}
    assert names == {"comparison.csv", "comparison.md", "comparison.png", "comparison.svg"}
    assert len(pd.read_csv(output / "comparison.csv")) == 7
    text = (output / "comparison.md").read_text(encoding="utf-8")
    assert "**3 SLOW, 1 FAST, 1 AMBIGUOUS, 1 MISSING, 1 NEW** (exit code 1)" in text
    assert "run old, taken 2026-03-01T10:00:00+00:00" in text
    assert "| NVIDIA H100 80GB HBM3 | matmul | bfloat16 | M > 4096 | 1 | 1 | 0 | 0 | 0 | +25.0 % |" in text


def test_one_file_that_cannot_be_written_does_not_stop_the_others(
    compared: tuple[Comparison, list[Device]], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    write_atomically(output / "comparison.csv" / "in the way", "")
    problems = write_comparison(*compared, output, [])
    assert len(problems) == 1 and "comparison.csv: not written" in problems[0]
    assert (output / "comparison.md").exists() and (output / "comparison.png").exists()
