"""`analysis compare` as a command: verdicts worked by hand, what refuses, what is written, and every exit code.

Ids like R05 in docstrings name the known mistake with regressions, files or timing that a test guards against.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import synthetic
from typer.testing import CliRunner

from analysis.__main__ import app
from bench.record import Environment, Record, Status

ROOT = Path(__file__).parents[1]


def invoke(*arguments: str | Path) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON document ({} where there is none) and stderr."""
    result = CliRunner().invoke(app, ["compare", *map(str, arguments), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout) if result.stdout else {}, result.stderr


def side(path: Path, *times: dict[int, float], env: Environment = synthetic.H100, start: int = 0, **how: Any) -> Path:
    """A directory of one process for each mapping M -> microseconds."""
    for i, of_cases in enumerate(times):
        run = f"{path.name}{i}"
        made = [synthetic.matmul(run, m, times_us=(t,), **how) for m, t in of_cases.items()]
        taken = dataclasses.replace(env, taken_at=f"2026-03-01T10:{start + i:02d}:00+00:00")
        synthetic.write(path / str(i), run, taken, made)
    return path


def verdicts(document: dict[str, Any]) -> dict[int, str]:
    """M -> verdict."""
    return {int(c["case_id"].split("M=")[1].split(",")[0]): c["verdict"] for c in document["cases"]}


def test_one_process_a_side_is_threshold_only(tmp_path: Path) -> None:
    """R18: a longer time is slower; R05: what one side lacks is listed; exactly the threshold has not passed it."""
    a = side(tmp_path / "a", {1: 100.0, 2: 100.0, 4: 100.0, 8: 100.0, 16: 100.0})
    b = side(tmp_path / "b", {1: 120.0, 2: 80.0, 4: 105.0, 8: 99.0, 32: 1.0})
    code, document, _ = invoke(a, b)
    assert code == document["exit"] == 1
    assert verdicts(document) == {
        1: "SLOW", 2: "FAST", 4: "AMBIGUOUS", 8: "AMBIGUOUS", 16: "MISSING", 32: "NEW",
    }  # fmt: skip
    slow = document["cases"][0]
    assert set(document) == {"verdicts", "cases", "exit"}
    assert list(slow) == ["case_id", "baseline_us", "candidate_us", "ratio", "low", "high", "verdict", "reason"]
    assert (slow["ratio"], slow["low"], slow["high"]) == (pytest.approx(1.2), None, None)
    assert slow["reason"] == "one process a side: +20.00 %, past 5 %; unconfirmed: not rerun"


def test_three_processes_need_an_interval_that_excludes_1(tmp_path: Path) -> None:
    """By hand: 100 and 100 x 1.1^(-1, 0, 1): standard error 0.0953 / sqrt(3), so +10 % is within t times that."""
    wide = [100 / 1.1, 100.0, 110.0]
    a = side(tmp_path / "a", *({1: 100.0, 2: 100.0, 4: 100.0} for _ in wide))
    b = side(tmp_path / "b", *({1: t * 1.1, 2: 110.0, 4: 100.0} for t in wide), start=10)
    code, document, warned = invoke(a, b)
    assert (code, verdicts(document)) == (1, {1: "AMBIGUOUS", 2: "SLOW", 4: "SAME"})
    unsure = next(c for c in document["cases"] if "M=1," in c["case_id"])
    # t(0.975, 2 degrees of freedom) = 4.3027; exp(0.09531 -+ 4.3027 x 0.09531 / sqrt(3))
    assert (unsure["low"], unsure["high"]) == (pytest.approx(0.8681, abs=2e-4), pytest.approx(1.3939, abs=2e-4))
    assert "alternate them" in warned


def test_pairs_that_alternate_cancel_a_drift(tmp_path: Path) -> None:
    """Each pair is +10 % while the machine slows down by 60 %; unpaired that is no verdict."""
    drift = [100.0, 130.0, 160.0]
    for i, t in enumerate(drift):
        side(tmp_path / f"a{i}", {1: t}, start=10 * i)
        side(tmp_path / f"b{i}", {1: t * 1.1}, start=10 * i + 1)
    more = [x for i in (1, 2) for x in ("--more-baseline", tmp_path / f"a{i}", "--more-candidate", tmp_path / f"b{i}")]
    code, document, _ = invoke(tmp_path / "a0", tmp_path / "b0", *more)
    assert (code, verdicts(document)) == (1, {1: "SLOW"})
    assert "3 pairs" in document["cases"][0]["reason"]


def test_noise_raises_the_bar(tmp_path: Path) -> None:
    """One A/A pair 4 % apart: s = ln 1.04, floor = 2 s, three times that is 23.5 %: +20 % is not past it."""
    a, b = side(tmp_path / "a", {1: 100.0}), side(tmp_path / "b", {1: 120.0})
    noise = side(tmp_path / "n", {1: 100.0}, {1: 104.0})
    assert verdicts(invoke(a, b, "--noise", noise)[1]) == {1: "AMBIGUOUS"}
    assert verdicts(invoke(a, side(tmp_path / "c", {1: 124.0}), "--noise", noise)[1]) == {1: "SLOW"}


def test_thresholds_of_cases_and_small_changes(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", {1: 1.0, 2: 100.0}), side(tmp_path / "b", {1: 1.2, 2: 120.0})
    assert verdicts(invoke(a, b, "--min-abs-us", "0.5")[1]) == {1: "AMBIGUOUS", 2: "SLOW"}
    code, document, warned = invoke(a, b, "--threshold-for", "*M=2,*=0.3", "--threshold-for", "nothing=0.1")
    assert verdicts(document) == {1: "SLOW", 2: "AMBIGUOUS"} and code == 1
    assert "'nothing'" in warned


def test_zero_and_failed_times_are_invalid(tmp_path: Path) -> None:
    """R01, R20: 0 against 1, 1 against 0, 0 against 0, and a candidate that crashed: never a ratio, exit code 4."""
    a = side(tmp_path / "a", {1: 0.0, 2: 1.0, 4: 0.0, 8: 1.0})
    made = [synthetic.matmul("b", m, times_us=(t,)) for m, t in {1: 1.0, 2: 0.0, 4: 0.0}.items()]
    made.append(synthetic.matmul("b", 8, status=Status.CRASHED, detail="signal 11"))
    b = synthetic.write(tmp_path / "b", "b", synthetic.H100, made)
    code, document, _ = invoke(a, b)
    assert code == 4 and set(verdicts(document).values()) == {"INVALID"}
    assert {c["ratio"] for c in document["cases"]} == {None}
    reasons = {c["reason"] for c in document["cases"]}
    assert reasons == {
        "baseline: time of 0.0 us", "candidate: time of 0.0 us", "candidate: CRASHED: signal 11",
    }  # fmt: skip


@pytest.mark.parametrize("value", ["NaN", "-0.3"])
def test_no_number_and_less_than_nothing_end_the_command(tmp_path: Path, value: str) -> None:
    """R02, R20: such a file is refused whole, with its line."""
    a, b = side(tmp_path / "a", {1: 2.5}), side(tmp_path / "b", {1: 2.5})
    file = b / "0" / "records.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("[2.5]", f"[{value}]"), encoding="utf-8")
    code, document, warned = invoke(a, b)
    assert (code, document) == (2, {}) and "records.jsonl:2" in warned


def test_another_gpu_is_refused_field_by_field(tmp_path: Path) -> None:
    """R13: with the flags that let it through; R15: a clock that differs by 0.03 % does not."""
    pcie = dataclasses.replace(synthetic.H100, device_name="NVIDIA H100 PCIe", sm_count=114)
    a = side(tmp_path / "a", {1: 100.0})
    code, document, warned = invoke(a, side(tmp_path / "b", {1: 100.0}, env=pcie))
    assert (code, verdicts(document)) == (3, {1: "NOT_COMPARABLE"})
    assert document["cases"][0]["reason"] == (
        "device_name: NVIDIA H100 80GB HBM3 -> NVIDIA H100 PCIe; sm_count: 132 -> 114"
    )
    assert "--allow device lets" in warned and "--allow sm_count lets" in warned
    code, document, warned = invoke(a, tmp_path / "b", "--allow", "device", "--allow", "sm_count")
    assert (code, verdicts(document)) == (0, {1: "AMBIGUOUS"}) and warned.count("let through by") == 2
    near = dataclasses.replace(synthetic.H100, max_sm_clock_mhz=1981, uuid="GPU-2")
    same = dataclasses.replace(synthetic.H100, uuid="GPU-1")
    code, _, warned = invoke(side(tmp_path / "u", {1: 1.0}, env=same), side(tmp_path / "c", {1: 1.0}, env=near))
    assert code == 0 and "UUID GPU-1 -> GPU-2" in warned


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"timer": "cuda_event"}, "timer"), ({"cache": "hot"}, "cache"), ({"regime": "sustained"}, "regime"),
        ({"launch": "stream"}, "launch"), ({"asked": {"inputs": "zeros"}}, "inputs"),
        ({"data": {"distribution": "zeros", "seed": 0}}, "inputs"), ({"data": {"seed": 1}}, "inputs"),
    ],
)  # fmt: skip
def test_another_way_to_measure_is_refused(tmp_path: Path, how: dict[str, Any], field: str) -> None:
    """T18, T24: never mixed silently."""
    a = side(tmp_path / "a", {1: 100.0}, asked={"inputs": "random"})
    b = side(tmp_path / "b", {1: 150.0}, **{"asked": {"inputs": "random"}, **how})
    code, document, warned = invoke(a, b)
    assert (code, verdicts(document)) == (3, {1: "NOT_COMPARABLE"}) and f"--allow {field} lets" in warned
    assert invoke(a, b, "--allow", field)[0] == 1


def test_versions_one_by_one_and_what_an_older_record_lacks(tmp_path: Path) -> None:
    """R11: a field that the baseline has not is named, the times are compared."""
    newer = dataclasses.replace(synthetic.H100, triton="3.8.0", driver="580.1")
    a, b = side(tmp_path / "a", {1: 100.0}), side(tmp_path / "b", {1: 100.0}, env=newer)
    code, document, warned = invoke(a, b)
    assert code == 3 and document["cases"][0]["reason"] == "packages.triton: 3.7.1 -> 3.8.0"
    assert "driver: not told -> 580.1 (1 cases): told by one side alone" in warned
    assert invoke(a, b, "--allow", "packages")[0] == 0
    assert invoke(a, b, "--allow", "nonsense")[0] == 2


def test_an_older_file_without_schema_or_a_metric_is_compared_and_what_it_lacks_is_named(tmp_path: Path) -> None:
    """R11: the baseline tells neither its schema nor what was counted; another schema is refused all the same."""
    a, b = side(tmp_path / "a", {1: 100.0}), side(tmp_path / "b", {1: 120.0})
    file = a / "0" / "records.jsonl"
    text = file.read_text(encoding="utf-8")
    counting = synthetic.matmul("a0", 1).work["counting"]
    assert text.count('"schema": 1') == 2 and f', "counting": {counting}' in text
    older = text.replace('"schema": 1, ', "").replace(', "schema": 1', "").replace(f', "counting": {counting}', "")
    file.write_text(older, encoding="utf-8")
    code, document, warned = invoke(a, b)
    assert (code, verdicts(document)) == (1, {1: "SLOW"})
    assert "schema: not told -> 1 (1 cases): told by one side alone" in warned
    assert f"counting: not told -> {counting} (1 cases): told by one side alone" in warned
    for schema in ("2", "null"):
        file.write_text(text.replace('"schema": 1', f'"schema": {schema}', 1), encoding="utf-8")
        refused = invoke(a, b)
        assert (refused[0], refused[1]) == ((2, {}) if schema == "2" else (1, document)), schema


@pytest.mark.parametrize(
    ("baseline", "candidate", "field", "told"),
    [
        ({"work": {"flops": 1, "bytes": 1, "overhead_bytes": 0, "counting": 1}},
         {"work": {"flops": 1, "bytes": 1, "overhead_bytes": 0, "counting": 2}}, "counting", "counting: 1 -> 2"),
        ({"includes": ("rope",)}, {"includes": ("rope", "norm")}, "includes", "includes: rope -> rope; norm"),
    ],
)  # fmt: skip
def test_what_was_counted_and_what_is_in_the_time_must_agree(
    tmp_path: Path, baseline: dict[str, Any], candidate: dict[str, Any], field: str, told: str
) -> None:
    made = []
    for name, how in (("a", baseline), ("b", candidate)):
        record = dataclasses.replace(synthetic.matmul(name, 1, times_us=(100.0,)), **how)
        made.append(synthetic.write(tmp_path / name, name, synthetic.H100, [record]))
    code, document, warned = invoke(*made)
    assert (code, document["cases"][0]["verdict"], document["cases"][0]["reason"]) == (3, "NOT_COMPARABLE", told)
    assert f"--allow {field} lets" in warned and invoke(*made, "--allow", field)[0] == 0


def test_a_dtype_that_a_file_tells_otherwise_and_another_power_limit_are_refused(tmp_path: Path) -> None:
    """A case of one id whose dtypes differ cannot be of one version of the suite; 350 W is not 700 W."""
    a = side(tmp_path / "a", {1: 100.0}, env=dataclasses.replace(synthetic.H100, power_limit_w=700.0))
    b = side(tmp_path / "b", {1: 150.0}, env=dataclasses.replace(synthetic.H100, power_limit_w=350.0))
    file = b / "0" / "records.jsonl"
    file.write_text(file.read_text("utf-8").replace('"dtype": "bfloat16"', '"dtype": "float16"'), encoding="utf-8")
    code, document, warned = invoke(a, b)
    assert code == 3 and document["cases"][0]["reason"] == "power_limit_w: 700.0 -> 350.0; dtype: bfloat16 -> float16"
    assert "--allow power lets" in warned and "--allow dtype lets" in warned
    assert invoke(a, b, "--allow", "power")[0] == 3
    assert invoke(a, b, "--allow", "power", "--allow", "dtype")[0] == 1


def test_ops_of_the_same_sizes_are_compared_each_with_its_own(tmp_path: Path) -> None:
    """R04: matmul and matmul_decode at M=1; one is twice as slow, and one that only the baseline has is listed."""
    sides = []
    for name, times in (("a", {"matmul": 100.0, "matmul_decode": 10.0, "other": 1.0}),
                        ("b", {"matmul": 100.0, "matmul_decode": 20.0})):  # fmt: skip
        made = []
        for op, time_us in times.items():
            record = synthetic.matmul(name, 1, times_us=(time_us,))
            case = {**record.case, "op": op, "id": str(record.case["id"]).replace("matmul/", f"{op}/")}
            made.append(dataclasses.replace(record, case=case))
        sides.append(synthetic.write(tmp_path / name, name, synthetic.H100, made))
    code, document, _ = invoke(*sides)
    told = {c["case_id"].split("/")[0]: (c["verdict"], c["ratio"]) for c in document["cases"]}
    assert (code, told) == (1, {
        "matmul_decode": ("SLOW", pytest.approx(2.0)), "other": ("MISSING", None),
        "matmul": ("AMBIGUOUS", pytest.approx(1.0)),
    })  # fmt: skip


def test_a_rate_is_read_as_what_it_is(tmp_path: Path) -> None:
    """R18: 100 -> 120 TFLOP/s is FAST, 100 -> 80 SLOW; a file of rates instead of times is refused, not compared."""
    flops = 2 * 128 * 4096 * 4096
    a = side(tmp_path / "a", {128: flops / 100e6})
    code, document, _ = invoke(a, side(tmp_path / "b", {128: flops / 120e6}))
    assert (code, verdicts(document)) == (0, {128: "FAST"})
    code, document, _ = invoke(a, side(tmp_path / "c", {128: flops / 80e6}))
    assert (code, verdicts(document)) == (1, {128: "SLOW"})
    file = a / "0" / "records.jsonl"
    file.write_text(file.read_text("utf-8").replace('"times_us": [', '"tflops_per_s": ['), encoding="utf-8")
    code, document, warned = invoke(a, a)
    assert (code, document) == (2, {}) and "unknown field(s) tflops_per_s" in warned


def test_sizes_stay_whole_numbers_where_a_side_lacks_them(tmp_path: Path) -> None:
    """F09: M=1,2 and M=1,3: no 1.0 anywhere, and 1 meets 1, also when what was printed is joined again."""
    a, b = side(tmp_path / "a", {1: 1.0, 2: 1.0}), side(tmp_path / "b", {1: 1.0, 3: 1.0})
    page, xml = tmp_path / "page.md", tmp_path / "junit.xml"
    code, document, _ = invoke(a, b, "--markdown", page, "--junit", xml)
    assert (code, verdicts(document)) == (0, {1: "AMBIGUOUS", 2: "MISSING", 3: "NEW"})
    printed = CliRunner().invoke(app, ["compare", str(a), str(b)]).stdout
    for text in (printed, page.read_text(encoding="utf-8"), xml.read_text(encoding="utf-8")):
        assert not re.search(r"M=\d+\.", text) and "M=3,N=4096" in text
    assert verdicts(invoke(a, b)[1]) == verdicts(document)


def test_no_case_in_common_is_an_error(tmp_path: Path) -> None:
    """R06, R07: no data is exit code 3, a baseline without rows or an empty file 2 (F07), a regression 1."""
    a, b = side(tmp_path / "a", {1: 1.0}), side(tmp_path / "b", {2: 1.0})
    code, document, warned = invoke(a, b)
    assert (code, verdicts(document)) == (3, {1: "MISSING", 2: "NEW"}) and "nothing compared" in warned
    empty = tmp_path / "empty.jsonl"
    for text in ("", "  \n"):
        empty.write_text(text, encoding="utf-8")
        assert invoke(empty, b)[0] == 2
    file = b / "0" / "records.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert invoke(b, side(tmp_path / "c", {2: 1.0}))[0] == 0


def test_strict_makes_a_missing_case_3(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", {1: 1.0, 2: 1.0}), side(tmp_path / "b", {1: 1.0})
    assert [invoke(a, b)[0], invoke(a, b, "--strict")[0]] == [0, 3]


def test_rows_that_are_there_twice_and_a_failure_that_was_repeated(tmp_path: Path) -> None:
    """F12: the last of a run counts, nothing is multiplied; F13: dtypes are cases apart."""
    records: list[Record] = [synthetic.matmul("r", 1, times_us=(t,)) for t in (50.0, 100.0)]
    records += [synthetic.matmul("r", 1, dtype="float16", times_us=(7.0,))]
    file = synthetic.write(tmp_path / "a", "r", synthetic.H100, records)
    synthetic.write(file, "failed", synthetic.H100, [synthetic.matmul("failed", 4, status=Status.TIMEOUT, detail="t")])
    synthetic.write(file, "again", synthetic.H100, [synthetic.matmul("again", 4, times_us=(9.0,))])
    code, document, _ = invoke(file, side(tmp_path / "b", {1: 100.0, 4: 9.0}))
    told = {
        c["case_id"].split("matmul/triton/")[1].split(",")[0]: (c["verdict"], c["ratio"]) for c in document["cases"]
    }
    one = pytest.approx(1.0)
    assert (code, told) == (0, {
        "bfloat16/M=1": ("AMBIGUOUS", one), "float16/M=1": ("MISSING", None), "bfloat16/M=4": ("AMBIGUOUS", one),
    })  # fmt: skip


def test_reports_for_a_ci(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a", {1: 1.0, 2: 1.0, 4: 1.0}), side(tmp_path / "b", {1: 2.0, 2: 0.0})
    page, xml = tmp_path / "page.md", tmp_path / "junit.xml"
    assert invoke(a, b, "--junit", xml, "--markdown", page)[0] == 1
    suite = ElementTree.fromstring(xml.read_text(encoding="utf-8"))
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    assert "**1 SLOW, 1 INVALID, 1 MISSING** (exit code 1)" in page.read_text(encoding="utf-8")
    assert invoke(a, a, "--junit", tmp_path / "a")[0] == 4


def test_the_real_process_ends_with_the_code(tmp_path: Path) -> None:
    """The code of the process itself, as a CI sees it."""
    a, b = side(tmp_path / "a", {1: 1.0}), side(tmp_path / "b", {1: 2.0})
    for pair, code in (((a, b), 1), ((b, a), 0)):
        command = [sys.executable, "-m", "analysis", "compare", *map(str, pair)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
