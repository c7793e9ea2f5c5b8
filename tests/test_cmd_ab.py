"""`bench ab` and `bench noise` on trees whose speeds are known; `test_ab_real` has real ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ab_trees import Repository
from typer.testing import CliRunner, Result

from analysis.__main__ import app as analysis_app
from bench import ab, cmd_ab, cmd_noise, ending
from bench.__main__ import app
from bench.environment import environment
from bench.lock import device_lock
from bench.record import read_records

SIZES = ("matmul", "--set", "M=1,2,4", "--set", "N=8", "--set", "K=8", "--device", "cpu")
A, B = "first baseline", "first candidate"


def analysed(arguments: Sequence[str], tell: Callable[[str], None]) -> tuple[int, list[str]]:
    """Stands for a process of `python -m analysis`: the same command in this one."""
    result = CliRunner().invoke(analysis_app, list(arguments))
    for line in result.stderr.splitlines():
        tell(line)
    if result.exit_code == 2:
        raise ValueError(result.stderr)
    return result.exit_code, result.stdout.splitlines()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    made = Repository(tmp_path)
    for module in (cmd_ab, cmd_noise):
        monkeypatch.setattr(module, "ROOT", made.root)
        monkeypatch.setattr(module, "analysed", analysed)
    monkeypatch.setattr(ab, "analysed", analysed)
    monkeypatch.setattr(cmd_ab, "end_on_signals", lambda: None)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return made


def bench(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def verdicts(result: Result) -> dict[int, str]:
    """M -> verdict, of --json."""
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["exit"] == result.exit_code
    return {int(c["case_id"].split("M=")[1].split(",")[0]): c["verdict"] for c in document["cases"]}


def reason(result: Result, m: int) -> str:
    cases = json.loads(result.stdout)["cases"]
    return str(next(c["reason"] for c in cases if f"M={m}," in c["case_id"]))


def test_slower_code_is_slow_once_fresh_pairs_say_so_too(repository: Repository, tmp_path: Path) -> None:
    """ABBA by the runs' own log; the rerun is of the flagged cases alone; every process has records of its own."""
    repository.speeds({1: {"us": 100.0}, 2: {"us": 50.0}, 4: {"us": 9.0}})
    repository.commit("fast")
    repository.speeds({1: {"us": 103.0}, 2: {"us": 50.0}, 4: {"us": 8.0}})
    out, xml, page = tmp_path / "out", tmp_path / "junit.xml", tmp_path / "page.md"
    options = ("--pairs", "3", "--rerun-pairs", "4", "--junit", xml, "--markdown", page, "--json", "-o", out)
    result = bench("ab", "--baseline", "HEAD", *SIZES, *options)
    assert (result.exit_code, verdicts(result)) == (1, {1: "SLOW", 2: "SAME", 4: "FAST"})
    again = ["rerun baseline", "rerun candidate", "rerun candidate", "rerun baseline"]
    assert repository.order() == [A, B, B, A, A, B, *again, *again]
    reran = [run for run in repository.runs() if "/rerun/" in run["output"]]
    assert {run["told"][run["told"].index("--match") + 1] for run in reran} == {
        r"^(?:matmul/torch/bfloat16/M=1,N=8,K=8|matmul/torch/bfloat16/M=4,N=8,K=8)$"
    }
    assert reason(result, 1).startswith("confirmed by a rerun: +3.00 %, past 1 %, 97 % interval ")
    assert "of 4 pairs" in reason(result, 1) and "at first: +3.00 %" in reason(result, 1)
    files = sorted(str(file.relative_to(out)) for file in out.rglob("records.jsonl"))
    first = [f"{side}/pair-{n:02d}/records.jsonl" for side in ("baseline", "candidate") for n in (1, 2, 3)]
    rerun = [f"rerun/{side}/pair-{n:02d}/records.jsonl" for side in ("baseline", "candidate") for n in (1, 2, 3, 4)]
    assert files == first + rerun
    assert ElementTree.fromstring(xml.read_text(encoding="utf-8")).get("failures") == "1"
    assert "**1 SLOW, 1 FAST, 1 SAME** (exit code 1)" in page.read_text(encoding="utf-8")
    assert "WITH UNCOMMITTED CHANGES: speeds.json" in result.stderr and "fast" in result.stderr


def test_each_side_runs_its_own_tree_and_the_baseline_is_gone_at_the_end(
    repository: Repository, tmp_path: Path
) -> None:
    """The same code is no verdict, exit code 0, and nothing is rerun; only what was asked for is passed on."""
    repository.speeds({1: {"us": 5.0}})
    repository.commit("one")
    result = bench("ab", "--baseline", "HEAD", *SIZES, "--seed", "3", "--pairs", "3", "--json", "-o", tmp_path / "out")
    assert (result.exit_code, verdicts(result), repository.order()) == (0, {1: "SAME"}, [A, B, B, A, A, B])
    trees = {A: set(), B: set()}  # type: dict[str, set[str]]
    for kind, run in zip(repository.order(), repository.runs(), strict=True):
        trees[kind].add(run["tree"])
    assert trees[B] == {str(repository.root)} and len(trees[A]) == 1
    assert not Path(next(iter(trees[A]))).exists() and repository.worktrees() == 0
    told = repository.runs()[0]["told"]
    assert told[: told.index("-o")] == [
        "run", "matmul", "--set", "M=1,2,4", "--set", "N=8", "--set", "K=8", "--seed", "3", "--device", "cpu",
        "--no-peaks",
    ]  # fmt: skip
    assert "which is commit" in result.stderr


def test_what_the_rerun_does_not_find_is_no_verdict(repository: Repository, tmp_path: Path) -> None:
    """A case that was slower by chance (here in all runs but reruns) is AMBIGUOUS, with the fresh ratio."""
    repository.speeds({1: {"us": 10.0}, 2: {"us": 10.0}})
    repository.commit("one")
    repository.speeds({1: {"us": 10.0, "first": 1.3}, 2: {"us": 10.0, "first": 0.7}})
    result = bench("ab", "--baseline", "HEAD", *SIZES, "--pairs", "3", "--json", "-o", tmp_path / "out")
    assert (result.exit_code, verdicts(result)) == (0, {1: "AMBIGUOUS", 2: "AMBIGUOUS"})
    assert reason(result, 1).startswith("not confirmed by a rerun: +0.00 %, not past 1 %")
    assert "at first: +30.00 %" in reason(result, 1)
    assert {case["ratio"] for case in json.loads(result.stdout)["cases"]} == {1.0}


def test_the_other_sign_or_no_second_time_confirms_nothing(repository: Repository, tmp_path: Path) -> None:
    repository.speeds({1: {"us": 10.0}, 2: {"us": 10.0}})
    repository.commit("one")
    repository.speeds({1: {"us": 8.0, "first": 2.0}, 2: {"us": 20.0}})
    options = ("--pairs", "1", "--rerun-pairs", "3", "--json", "-o", tmp_path / "out")
    result = bench("ab", "--baseline", "HEAD", *SIZES, *options)
    assert verdicts(result) == {1: "AMBIGUOUS", 2: "SLOW"}
    assert "not confirmed by a rerun: -20.00 %" in reason(result, 1) and "at first: one process" in reason(result, 1)
    sides = (tmp_path / "out" / "baseline", tmp_path / "out" / "candidate")
    lost = tmp_path / "lost"
    for side in ("baseline", "candidate"):
        for pair in ("1", "2", "3"):
            kept = tmp_path / "out" / "rerun" / side / f"pair-0{pair}" / "records.jsonl"
            lines = [x for x in kept.read_text(encoding="utf-8").splitlines(True) if "M=2," not in x]
            (lost / side / pair).mkdir(parents=True)
            (lost / side / pair / "records.jsonl").write_text("".join(lines), encoding="utf-8")
    again = CliRunner().invoke(analysis_app, ["compare", *map(str, sides), "--rerun", str(lost), "--json"])
    assert verdicts(again) == {1: "AMBIGUOUS", 2: "INVALID"} and again.exit_code == 4
    assert "rerun: the case is not in it; at first: one process a side: +100.00 %" in reason(again, 2)


@pytest.mark.parametrize("time_identical", [False, True])
def test_the_same_binaries_are_the_same_code_after_one_pair(
    repository: Repository, tmp_path: Path, time_identical: bool
) -> None:
    """M=1: the same cubin. M=2: another. M=4: the same cubin, but slower, so the host's code is not: it is timed on."""
    repository.speeds({m: {"us": 10.0, "cubin": "old"} for m in (1, 2, 4)})
    repository.commit("one")
    repository.speeds({1: {"us": 10.0, "cubin": "old"}, 2: {"us": 10, "cubin": "new"}, 4: {"us": 12, "cubin": "old"}})
    options = ("--pairs", "3", "--rerun-pairs", "3", "--json", "-o", tmp_path / "out")
    extra = ("--time-identical",) if time_identical else ()
    result = bench("ab", "--baseline", "HEAD", *SIZES, *options, *extra)
    assert (result.exit_code, verdicts(result)) == (1, {1: "SAME", 2: "SAME", 4: "SLOW"})
    assert "same code (identical cubins and configuration): +0.00 %, not past 1 %" in reason(result, 1)
    assert "same code" not in reason(result, 2)
    assert "same code" in reason(result, 4) and "noise, or code on the host" in reason(result, 4)
    third = read_records(tmp_path / "out" / "baseline" / "pair-03" / "records.jsonl")
    timed = {record.case["id"].split("/")[-1] for record in third}
    assert timed == {"M=2,N=8,K=8", "M=4,N=8,K=8"} | ({"M=1,N=8,K=8"} if time_identical else set())


def test_all_cases_the_same_code_ends_after_one_pair(repository: Repository, tmp_path: Path) -> None:
    repository.speeds({1: {"us": 10.0, "cubin": "old"}})
    repository.commit("one")
    result = bench("ab", "--baseline", "HEAD", *SIZES, "--json", "-o", tmp_path / "out")
    assert (result.exit_code, verdicts(result), repository.order()) == (0, {1: "SAME"}, [A, B])


def test_a_baseline_that_cannot_be_had_or_run_is_told(repository: Repository, tmp_path: Path) -> None:
    """Exit code 2 with the reason, 3 for a device; a folder outside git, and one that has results already, too."""
    repository.speeds({1: {"us": 1.0}}, error="error: no such suite", code=2)
    repository.commit("cannot")
    repository.git("tag", "cannot")
    repository.speeds({1: {"us": 1.0}}, error="error: the GPU is on fire", code=3)
    repository.commit("no device")
    (repository.root / "bench" / "__main__.py").rename(tmp_path / "bench_main.py")
    repository.commit("no bench")
    repository.git("tag", "none")
    (tmp_path / "bench_main.py").rename(repository.root / "bench" / "__main__.py")
    repository.speeds({1: {"us": 1.0}})
    for revision, code, told in (
        ("nonsense", 2, "--baseline nonsense: wanted a commit, tag or branch"),
        ("--help", 2, "--baseline --help: wanted a commit"),
        ("none", 2, "that commit has no `bench` to run"),
        ("cannot", 2, "the baseline (cannot, commit "),
        ("HEAD~1", 3, "the GPU is on fire"),
    ):
        result = bench("ab", f"--baseline={revision}", *SIZES, "-o", tmp_path / revision)
        assert result.exit_code == code and told in result.stderr, (revision, result.stderr)
        assert repository.worktrees() == 0
    (tmp_path / "out" / "rerun").mkdir(parents=True)
    result = bench("ab", "--baseline", "HEAD~1", *SIZES, "-o", tmp_path / "out")
    assert result.exit_code == 2 and "has rerun of an earlier run" in result.stderr
    shutil.rmtree(repository.root / ".git")
    result = bench("ab", "--baseline", "HEAD", *SIZES, "-o", tmp_path / "new")
    assert result.exit_code == 2 and "bench ab takes its baseline from git: fatal: not a git" in result.stderr


def test_the_device_is_held_once_for_all_runs(repository: Repository, tmp_path: Path) -> None:
    """A run beside it is refused; runs of its own have locks of their own, which even an old tree's take."""
    repository.speeds({1: {"us": 1.0}})
    repository.commit("one")
    with device_lock(environment("cpu"), wait=False, tell=print):
        result = bench("ab", "--baseline", "HEAD", *SIZES, "-o", tmp_path / "out")
    assert result.exit_code == 3 and "in use by another run" in result.stderr and repository.runs() == []


def test_ctrl_c_leaves_records_and_no_worktree(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real signal in the middle of the candidate's first run, which hangs."""
    repository.speeds({1: {"us": 1.0}})
    repository.commit("one")
    repository.speeds({1: {"us": 1.0}}, hang=True)
    monkeypatch.setattr(cmd_ab, "end_on_signals", ending.end_on_signals)
    before = {number: signal.getsignal(number) for number in ending.ENDING}

    def interrupt() -> None:
        while len(repository.runs()) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        result = bench("ab", "--baseline", "HEAD", *SIZES, "-o", tmp_path / "out")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        thread.join()
    assert result.exit_code == 130 and f"safe in {tmp_path / 'out'}" in result.stderr
    assert (tmp_path / "out" / "baseline" / "pair-01" / "records.jsonl").exists()
    assert repository.worktrees() == 0 and not Path(repository.runs()[0]["tree"]).exists()


def test_a_tree_edited_in_the_middle_is_told(repository: Repository, tmp_path: Path) -> None:
    """The candidate is the working tree as each run finds it: sources that change between its runs are warned of."""
    for number, source in (("1", "a"), ("2", "b")):
        repository.speeds({1: {"us": 1.0}}, source=source)
        repository.commit(source)
        assert bench("ab", "--baseline", "HEAD", *SIZES, "--pairs", "1", "-o", tmp_path / number).exit_code == 0
    sides = (str(tmp_path / "1" / "baseline"), str(tmp_path / "1" / "candidate"))
    more = ("--more-candidate", str(tmp_path / "2" / "candidate"))
    told = CliRunner().invoke(analysis_app, ["compare", *sides, *more]).stderr
    assert "processes of the candidate ran different kernel sources in 1 cases" in told
    assert "different" not in CliRunner().invoke(analysis_app, ["compare", *sides]).stderr


def test_noise_is_the_floor_of_this_very_code_and_compare_takes_it(repository: Repository, tmp_path: Path) -> None:
    """By hand: +-2 % by turns of two (+ - - +): pairs 4 % apart, s = ln(1.02 / 0.98), floor = 2 s / sqrt(2)."""
    repository.speeds({1: {"us": 100.0, "noise": 0.02}})
    result = bench("noise", *SIZES, "--processes", "4", "--json", "-o", tmp_path / "noise")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["exit"], len(repository.runs())) == (0, 0, 4)
    (case,) = told["cases"]
    assert (case["processes"], case["spread"]) == (4, pytest.approx(0.0400053))
    assert case["floor"] == pytest.approx(0.0565761)
    repository.speeds({1: {"us": 100.0}})
    repository.commit("one")
    repository.speeds({1: {"us": 104.0}})
    common = ("ab", "--baseline", "HEAD", *SIZES, "--pairs", "4", "--rerun-pairs", "4", "--json")
    within = bench(*common, "--noise", tmp_path / "noise" / "noise", "-o", tmp_path / "with")
    assert verdicts(within) == {1: "SAME"} and "+4.00 %, not past 4 %" in reason(within, 1)
    assert verdicts(bench(*common, "-o", tmp_path / "without")) == {1: "SLOW"}


def test_noise_without_two_times_is_nothing(repository: Repository, tmp_path: Path) -> None:
    repository.speeds({})
    result = bench("noise", *SIZES, "--processes", "2", "-o", tmp_path / "none")
    assert result.exit_code == 2 and "no records" in result.stderr


def test_ids_become_a_pattern_of_them_alone() -> None:
    ids = ["attention/torch/bfloat16/kv_lens=3+5", "a.b/M=1"]
    assert [bool(re.search(ab.pattern_of(ids), x)) for x in (*ids, "a.b/M=12", "aXb/M=1", ids[0] + ",x")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert ab.pattern_of([]) == "" and ab.pattern_of(["x" * 100_001]) == ""
