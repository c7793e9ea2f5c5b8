"""Kept baselines: the newest comparable one is found, told with age and commit, and its absence explained."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import synthetic
from typer.testing import CliRunner

from analysis.__main__ import app
from analysis.baselines import NoBaselineError, newest_comparable
from analysis.compare import Comparison, compare
from analysis.frame import Loaded
from analysis.sides import side_of
from analysis.verdicts import Rules
from bench.record import Environment


def kept(root: Path, name: str, *, day: int, env: Environment = synthetic.H100, m: int = 16, us: float = 100.0) -> Path:
    taken = dataclasses.replace(env, taken_at=f"2026-03-{day:02d}T10:00:00+00:00", commit=f"{name:0<40}")
    return synthetic.write(root / name, name, taken, [synthetic.matmul(name, m, times_us=(us,))])


@pytest.fixture
def candidate(tmp_path: Path) -> Loaded:
    return side_of([kept(tmp_path / "new", "cafe", day=20, us=120.0)])


def found(candidate: Loaded, root: Path) -> tuple[str, Comparison]:
    chosen = newest_comparable(candidate, lambda side: compare(side.frame, candidate.frame, Rules()), root)
    return chosen.told, chosen.comparison


def test_the_newest_is_taken_and_told(tmp_path: Path, candidate: Loaded) -> None:
    root = tmp_path / "baselines"
    kept(root / "h100", "aaaa", day=3)
    kept(root / "h100", "bbbb", day=8, us=60.0)
    told, comparison = found(candidate, root)
    assert told.endswith("bbbb: taken 2026-03-08T10:00:00+00:00, 12 days before the candidate, commit bbbb00000000")
    assert comparison.cases["ratio"].tolist() == pytest.approx([2.0])


def test_a_newer_one_of_another_device_or_case_is_passed_over(tmp_path: Path, candidate: Loaded) -> None:
    root = tmp_path / "baselines"
    kept(root / "h100", "aaaa", day=3)
    kept(root / "h200", "bbbb", day=9, env=synthetic.H200)
    kept(root / "h100", "cccc", day=9, m=17)
    kept(root / "h100", "dddd", day=9, env=dataclasses.replace(synthetic.H100, triton="3.6.0"))
    assert "/aaaa: taken 2026-03-03" in found(candidate, root)[0]


def test_why_none_fits(tmp_path: Path, candidate: Loaded) -> None:
    root = tmp_path / "baselines"
    with pytest.raises(NoBaselineError, match=r"no baseline under .*baselines/: keep one with `python -m bench run"):
        found(candidate, root)
    kept(root / "h100", "aaaa", day=9, env=dataclasses.replace(synthetic.H100, triton="3.6.0"))
    kept(root / "h100", "bbbb", day=9, m=17)
    (root / "h100" / "empty").mkdir()
    with pytest.raises(NoBaselineError) as raised:
        found(candidate, root)
    text = str(raised.value)
    assert "aaaa: packages.triton: 3.6.0 -> 3.7.1" in text
    assert "bbbb: not in the candidate" in text and "empty: no records.jsonl" in text


def test_a_baseline_of_several_processes(tmp_path: Path, candidate: Loaded) -> None:
    root = tmp_path / "baselines"
    for i, us in enumerate((99.0, 101.0)):
        env = dataclasses.replace(synthetic.H100, taken_at=f"2026-03-01T10:0{i}:00+00:00")
        records = [synthetic.matmul(f"p{i}", 16, times_us=(us,))]
        synthetic.write(root / "h100" / "several" / str(i), f"p{i}", env, records)
    told, comparison = found(candidate, root)
    assert "several: taken 2026-03-01T10:01:00+00:00, 18 days before the candidate, commit unknown" in told
    assert comparison.cases["baseline_us"].tolist() == pytest.approx([(99.0 * 101.0) ** 0.5])


def test_the_command_finds_it_or_ends_with_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = kept(tmp_path / "new", "cafe", day=20, us=120.0)
    monkeypatch.chdir(tmp_path)
    arguments = ["compare", "--baseline", "auto", str(new), "--json"]
    nothing = CliRunner().invoke(app, arguments)
    assert (nothing.exit_code, nothing.stdout) == (3, "") and "no baseline under reports/baselines/" in nothing.stderr
    kept(tmp_path / "reports" / "baselines" / "h100", "aaaa", day=3)
    slow = CliRunner().invoke(app, arguments)
    assert slow.exit_code == 1 and json.loads(slow.stdout)["verdicts"]["SLOW"] == 1
    assert "17 days before the candidate, commit aaaa" in slow.stderr


@pytest.mark.parametrize(
    "arguments", [("--baseline", "auto", "a", "b"), ("a",), ("a", "b", "c"), ("--baseline", "a", "b")]
)
def test_other_counts_of_paths_are_wrong_use(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["compare", *arguments])
    assert result.exit_code == 2 and "wanted" in result.stderr
