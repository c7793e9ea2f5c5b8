"""`python -m analysis roofline`: which run it takes, whose roofs, what it writes, and how it ends.

Ids like F07 in docstrings name the known mistake with files, plots or the environment that a test guards against.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import synthetic
from typer.testing import CliRunner

from analysis import panels
from analysis.__main__ import app
from analysis.runs import newest_run, runs_under
from bench.record import Environment, Record, Status

ROOT = Path(__file__).parents[1]
FILES = ["points.csv", "roofline.png", "roofline.svg", "table.md"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a `reports/`, so that nobody's real runs are found."""
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `python -m analysis roofline ...`."""
    result = CliRunner().invoke(app, ["roofline", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def some(name: str = "r") -> list[Record]:
    """Two cases by two providers."""
    return [synthetic.matmul(name, m, provider=p) for m in (1, 512) for p in ("torch", "triton")]


def at(environment: Environment, taken_at: str | None) -> Environment:
    """The same machine at another time."""
    return dataclasses.replace(environment, taken_at=taken_at)


def test_a_run_gives_four_files_and_the_tables(tmp_path: Path) -> None:
    records = [*some(), *synthetic.roofs("r", {"bfloat16": 790.0}, 2800, 2.5)]
    file = synthetic.write(tmp_path / "run", "r", synthetic.H100, records)
    code, out, err = run(file, "-o", tmp_path / "out")
    assert (code, err) == (0, "")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == FILES
    assert out.index("torch/triton") < out.index("of attainable") < out.index("matmul decode bfloat16 (torch): 1 case")
    assert "4 OK" in out and "recognised as H100 SXM5 80GB" in out
    assert len(pd.read_csv(tmp_path / "out" / "points.csv")) == 4


def test_without_output_the_files_stand_beside_the_records(tmp_path: Path) -> None:
    synthetic.write(tmp_path / "run", "r", synthetic.H100, some())
    assert run(tmp_path / "run")[0] == 0
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == sorted([*FILES, "records.jsonl"])


def test_json_is_one_document_and_nothing_else(tmp_path: Path) -> None:
    records = [*some(), synthetic.matmul("r", 3, status=Status.SKIPPED, detail="no time left")]
    synthetic.write(tmp_path, "r", synthetic.UNKNOWN, records)
    code, out, err = run(tmp_path, "--json")
    document = json.loads(out)
    assert code == 0 and "python -m bench peaks" in err
    assert document["statuses"] == ["4 OK, 1 SKIPPED", "1 SKIPPED: no time left"]
    point = document["points"][0]
    assert point["M"] == 1 and point["batch"] is None and point["fraction_of_datasheet"] is None
    assert document["providers"]["baseline"] == "torch" and document["providers"]["geomeans"][0]["count"] == 2
    assert document["families"][0]["sentence"].startswith("matmul decode bfloat16 (torch): 1 case")


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("", r"records\.jsonl: empty"),
        ("   \n", r"records\.jsonl: empty"),
        ('{"run": "r", "sch', r"records\.jsonl:1: the line is cut off"),
        ("name,time\na,1\n", r"records\.jsonl:1: not JSON"),
        ('{"a": 1}\n', r"records\.jsonl:1: not a Roofmark record"),
        ('{"run": "r", "schema": 99, "environment": {}}\n', r"records\.jsonl:1: schema 99, this version reads 1"),
    ],
)
def test_records_that_cannot_be_used_end_in_two_and_leave_nothing(tmp_path: Path, content: str, wanted: str) -> None:
    """F07: file, line and what is wrong, in one line."""
    file = tmp_path / "run" / "records.jsonl"
    file.parent.mkdir()
    file.write_text(content, encoding="utf-8")
    code, out, err = run(file, "-o", tmp_path / "out")
    assert code == 2 and out == ""
    assert re.search(wanted, err) and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_good_file_beside_a_broken_one_is_not_used(tmp_path: Path) -> None:
    good = synthetic.write(tmp_path / "good", "r", synthetic.H100, some())
    torn = synthetic.write(tmp_path / "torn", "t", synthetic.H100, some("t"))
    torn.write_bytes(torn.read_bytes()[:-20])
    code, _, err = run(good, torn, "-o", tmp_path / "out")
    assert code == 2 and f"{torn}:5: the line is cut off" in err
    assert not (tmp_path / "out").exists()


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    """F07."""
    file = synthetic.write(tmp_path, "r", synthetic.H100, some())
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert run(file)[0] == 0


def test_missing_file_and_unknown_option_end_in_two(tmp_path: Path) -> None:
    code, _, err = run(tmp_path / "nowhere")
    assert code == 2 and "cannot be read" in err
    assert run("--no-such-option")[0] == 2


def test_no_case_that_worked_ends_in_three(tmp_path: Path) -> None:
    """R22: all cases failed."""
    failed = [synthetic.matmul("r", m, status=Status.FAILED, detail="boom") for m in (1, 2)]
    synthetic.write(tmp_path, "r", synthetic.H100, failed)
    code, out, err = run(tmp_path, "-o", tmp_path / "out")
    assert code == 3 and "0 OK, 2 FAILED" in out and "2 FAILED: boom" in out
    assert "no case was measured" in err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == FILES


def test_a_failed_plot_costs_neither_tables_nor_the_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10."""

    def broken(figure: object) -> bytes:
        raise ValueError("bad colour")

    monkeypatch.setattr(panels, "svg", broken)
    synthetic.write(tmp_path, "r", synthetic.H100, some())
    code, out, err = run(tmp_path, "-o", tmp_path / "out")
    assert code == 4 and "torch/triton" in out
    assert "roofline.svg: not written: ValueError: bad colour" in err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["points.csv", "roofline.png", "table.md"]


def test_without_arguments_the_newest_run_by_its_header(elsewhere: Path) -> None:
    reports = elsewhere / "reports"
    new = synthetic.write(reports / "a", "new", at(synthetic.H100, "2026-05-02T00:00:00+02:00"), some("new"))
    old = synthetic.write(reports / "b", "old", at(synthetic.H100, "2026-05-01T21:00:00Z"), some("old"))
    os.utime(new, (1e9, 1e9))
    assert [f.path.parent.name for f in runs_under(reports)] == ["a", "b"]
    assert newest_run() == Path("reports", "a", "records.jsonl")
    code, out, _ = run()
    assert code == 0 and "Roofline of run new" in out
    assert (reports / "a" / "roofline.png").exists() and not (old.parent / "roofline.png").exists()


def test_a_run_without_a_date_counts_by_its_files_time(elsewhere: Path) -> None:
    dated = synthetic.write(elsewhere / "reports" / "dated", "d", at(synthetic.H100, "2026-05-01T00:00:00Z"), some("d"))
    undated = synthetic.write(elsewhere / "reports" / "undated", "u", at(synthetic.H100, None), some("u"))
    os.utime(undated, (1e9, 1e9))
    assert newest_run() == dated.relative_to(elsewhere)
    os.utime(undated, (4e9, 4e9))
    assert newest_run() == undated.relative_to(elsewhere)


def test_roofs_alone_and_published_rows_are_not_the_newest_run(elsewhere: Path) -> None:
    reports = elsewhere / "reports"
    synthetic.write(reports / "peaks", "p", at(synthetic.CPU, "2026-09-01"), synthetic.roofs("p", {"float32": 1}, 9, 1))
    published = [synthetic.matmul("x", 1, timer="published")]
    synthetic.write(reports / "reference", "x", at(synthetic.H100, "2026-08-01"), published)
    assert newest_run() == Path("reports", "reference", "records.jsonl")
    synthetic.write(reports / "run", "r", at(synthetic.CPU, "2026-07-01"), some())
    assert newest_run() == Path("reports", "run", "records.jsonl")


def test_a_broken_newest_run_is_told_not_replaced_by_an_older(elsewhere: Path) -> None:
    synthetic.write(elsewhere / "reports" / "old", "o", at(synthetic.H100, "2026-01-01"), some("o"))
    torn = synthetic.write(elsewhere / "reports" / "torn", "t", at(synthetic.H100, "2026-02-01"), some("t"))
    torn.write_bytes(torn.read_bytes()[:-20])
    code, _, err = run()
    assert code == 2 and "the line is cut off" in err


def test_no_run_at_all_says_how_to_make_one() -> None:
    code, _, err = run()
    assert code == 2 and "python -m bench run" in err


def test_roofs_come_from_the_newest_other_run_of_the_device(elsewhere: Path) -> None:
    reports = elsewhere / "reports"
    for name, rate, taken in (("older", 0.10, "2026-01-01"), ("newer", 0.20, "2026-02-01")):
        records = synthetic.roofs(name, {"float32": rate}, 20, 1, timer="cpu_wall")
        synthetic.write(reports / name, name, at(synthetic.CPU, taken), records)
    other = dataclasses.replace(synthetic.CPU, device_name="Another CPU", taken_at="2026-03-01")
    synthetic.write(reports / "other", "other", other, synthetic.roofs("other", {"float32": 9.0}, 900, 1))
    fewer = dataclasses.replace(synthetic.CPU, threads=1, taken_at="2026-04-01")
    synthetic.write(reports / "fewer", "fewer", fewer, synthetic.roofs("fewer", {"float32": 0.05}, 10, 1))
    cases = [synthetic.matmul("r", m, dtype="float32", provider="torch", device=(0.2, 20, 1)) for m in (1, 512)]
    synthetic.write(elsewhere / "mine", "r", synthetic.CPU, cases)
    code, out, err = run("mine")
    assert (code, err) == (0, "")
    assert "roofs of Example CPU 9000 are those of run newer (reports/newer/records.jsonl)" in out
    assert out.startswith("Roofline of run r\n2 OK\n") and "float32 0.2 TFLOP/s" in out
    assert "run newer" in (elsewhere / "mine" / "table.md").read_text(encoding="utf-8")
    assert list(pd.read_csv("mine/points.csv")["fraction_of_measured"].round(2)) == [0.8, 0.8]


def test_roofs_of_its_own_are_not_replaced(elsewhere: Path) -> None:
    later = at(synthetic.CPU, "2026-09-01")
    synthetic.write(elsewhere / "reports" / "later", "l", later, synthetic.roofs("l", {"float32": 9.0}, 900, 1))
    synthetic.write(elsewhere / "mine", "r", synthetic.CPU, synthetic.cpu_run("r"))
    code, out, _ = run("mine")
    assert code == 0 and "roofs of" not in out.replace("datasheet roofs of", "") and "float32 0.15 TFLOP/s" in out


def test_without_roofs_a_line_says_how_to_make_them(elsewhere: Path) -> None:
    synthetic.write(elsewhere / "mine", "r", synthetic.CPU, [synthetic.matmul("r", 1, dtype="float32")])
    code, out, err = run("mine")
    assert code == 0 and "no roofs" in out
    assert "Example CPU 9000: no measured roofs in these records or under reports/: `python -m bench peaks`" in err


def test_records_without_a_device_are_drawn_against_h100(elsewhere: Path) -> None:
    synthetic.write(elsewhere / "mine", "r", synthetic.NAMELESS, some())
    code, out, err = run("mine")
    assert (code, err) == (0, "") and "the records name no device: drawn against H100 SXM5 80GB" in out


def test_names_beyond_ascii_and_an_ascii_terminal(tmp_path: Path) -> None:
    """F14, F16: directories with accents, spaces and CJK, a device name with signs, and a terminal without them."""
    directory = tmp_path / "mesures d'été 測定 µs"
    device = dataclasses.replace(synthetic.UNKNOWN, device_name="Größe → 測定 ✓ $x$")
    file = synthetic.write(directory / "records.jsonl", "läuft", device, some("läuft"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LC_")}
    environment |= {"LANG": "C", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "analysis", "roofline", str(file), "-o", str(directory / "ergebnis ü")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    output = directory / "ergebnis ü"
    assert sorted(p.name for p in output.iterdir()) == FILES
    assert "Größe → 測定 ✓ $x$" in (output / "table.md").read_text(encoding="utf-8")
    assert set(pd.read_csv(output / "points.csv", encoding="utf-8")["device"]) == {"Größe → 測定 ✓ $x$"}


def test_help_and_roofline_need_no_torch_and_help_nothing_heavy(tmp_path: Path) -> None:
    """E04: a machine with neither GPU nor torch."""
    synthetic.write(tmp_path, "r", synthetic.H100, some())
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in refused: raise ImportError(name)\n"
        "refused = sys.argv.pop(1).split(',')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from analysis.__main__ import run\n"
        "run()\n"
    )
    for refused, arguments in (
        ("torch,triton,pandas,numpy,matplotlib,scipy", ["--help"]),
        ("torch,triton,pandas,numpy,matplotlib,scipy", ["roofline", "--help"]),
        ("torch,triton", ["roofline", str(tmp_path)]),
    ):
        command = [sys.executable, "-c", code, refused, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "roofline.png").exists()


@pytest.mark.speed
def test_help_answers_in_under_0_7_seconds() -> None:
    import time

    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "analysis", "--help"], cwd=ROOT, capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.7
