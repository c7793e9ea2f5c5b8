"""What the steps of `bench gpu` ask for and make of the answers, with children and workers that a test plays."""

from __future__ import annotations

import importlib.util
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_cases import matmul_case, session

from bench import gpu
from bench.case import Case
from bench.gpu import CUT_OFF, StepError, Visit
from bench.gpu_plan import METHODS, Step
from bench.gpu_steps import WORKS
from bench.method import Method
from bench.record import Record, Status, read_records
from bench.run import record_of
from kernels.registry import OPS

CUT = f"{CUT_OFF}: its time was up"


def a_step(name: str, *cases: Case) -> Step:
    return Step(name=name, what="", expected_s=10, cases=cases)


def a_visit(tmp_path: Path) -> Visit:
    end_s = time.monotonic() + 100
    return Visit(directory=tmp_path, session=session(), end_s=end_s, cut_s=end_s)


def play_children(
    monkeypatch: pytest.MonkeyPatch, play: Callable[[tuple[str, ...]], tuple[list[str], str]]
) -> list[tuple[str, ...]]:
    """Children print and end as `play` says of their arguments; returns those."""
    asked: list[tuple[str, ...]] = []

    @contextmanager
    def child(self: Visit, *arguments: str) -> Iterator[Any]:
        asked.append(arguments)
        lines, ended = play(arguments)
        yield SimpleNamespace(lines=lines, wait=lambda until_s: ended)

    monkeypatch.setattr(Visit, "child", child)
    return asked


def play_worker(monkeypatch: pytest.MonkeyPatch, takes_s: float = 0.0) -> list[tuple[str, str, Method | None, float]]:
    """A worker whose cases are all OK; returns (run, case, method, limit) of each."""
    asked: list[tuple[str, str, Method | None, float]] = []

    @contextmanager
    def isolated(session: Any, timeout_s: float, op_files: Any, tell: Any) -> Iterator[Any]:
        def run(case: Case, method: Method | None = None, limit_s: float = math.inf) -> Record:
            asked.append((session.run, case.id, method, limit_s))
            time.sleep(takes_s)
            return record_of(case, session, Status.OK, "", times_us=(1.0,), phases_s={"measure": 1000.0})

        yield run

    monkeypatch.setattr(gpu, "isolated", isolated)
    monkeypatch.setattr(gpu, "device_lock", lambda *given, **named: nullcontext())
    return asked


def do(visit: Visit, step: Step, seconds: float = 10.0) -> str:
    return WORKS[step.name](visit, step, seconds)


def test_an_op_whose_check_dies_costs_no_other_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(arguments: tuple[str, ...]) -> tuple[list[str], str]:
        line = json.dumps({"case_id": f"{arguments[-1]}/x", "status": "OK", "detail": ""})
        return ([line, '{"case_id": "cut'], "exit code -11") if arguments[-1] == "matmul" else ([line], "")

    asked = play_children(monkeypatch, play)
    visit = a_visit(tmp_path)
    with pytest.raises(StepError, match=rf"^matmul exit code -11 \({len(OPS)} OK\)$"):
        do(visit, a_step("correctness"))
    assert asked == [("bench.gpu_check", "cpu", "0", op.name) for op in OPS]
    assert [one["case_id"] for one in visit.facts["correctness"]] == [f"{op.name}/x" for op in OPS]


def test_one_that_is_cut_off_hides_no_crash_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_children(monkeypatch, lambda arguments: ([], "exit code 1" if arguments[-1] == "matmul" else CUT))
    with pytest.raises(StepError, match="matmul exit code 1"):
        do(a_visit(tmp_path), a_step("correctness"))
    play_children(monkeypatch, lambda arguments: ([], CUT))
    assert CUT_OFF in do(a_visit(tmp_path), a_step("correctness"))


def test_tuning_gets_its_time_and_what_it_prints_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """98 s are 8 of starting and the 90 of its budget; of 10 s it still gets half."""
    asked = play_children(monkeypatch, lambda arguments: (["CONFIGS = {}"], ""))
    visit = a_visit(tmp_path)
    do(visit, a_step("tune"), 98)
    do(visit, a_step("tune"), 10)
    output = ("-o", str(tmp_path / "tune"))
    assert asked == [("bench", "tune", "--budget", seconds, *output) for seconds in ("90", "5")]
    assert visit.facts["tune"] == {"printed": ["CONFIGS = {}"]}


def test_the_pool_is_told_the_limits_of_this_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = {"op": "matmul", "cases": 12, "kernels": 3, "failed": ["no room"], "seconds": 1.0}
    asked = play_children(monkeypatch, lambda arguments: ([json.dumps(group)] * 2, ""))
    h100_pcie = SimpleNamespace(major=9, minor=0, shared_memory_per_block_optin=232_448, multi_processor_count=114)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: h100_pcie)
    visit = a_visit(tmp_path)
    assert do(visit, a_step("compile")) == "6 kernels of 24 launches, 1 failed"
    assert asked == [("bench.gpu_compile", "90", "232448", "114")]
    assert visit.facts["compile"] == {"failed": ["no room"]}
    del h100_pcie.shared_memory_per_block_optin
    with pytest.raises(StepError, match="first launch"):
        do(visit, a_step("compile"))


def test_without_pandas_or_matplotlib_the_analysis_is_a_line_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = play_children(monkeypatch, lambda arguments: ([], ""))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    told = do(a_visit(tmp_path), a_step("analysis"))
    assert told == f"for figure and tables: pip install pandas matplotlib && python -m analysis roofline {tmp_path}"
    assert asked == []


@pytest.mark.parametrize("name", ["hot", "sustained", "zeros"])
def test_a_variant_is_measured_by_its_method_in_a_file_of_its_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = play_worker(monkeypatch)
    assert do(a_visit(tmp_path), a_step(name, matmul_case())) == "1 OK"
    assert [method for _, _, method, _ in asked] == [METHODS[name]] != [Method()]
    assert [path.name for path in tmp_path.iterdir()] == ["variants.jsonl"]


def test_noise_is_two_runs_in_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = play_worker(monkeypatch)
    visit = a_visit(tmp_path)
    assert do(visit, a_step("noise", matmul_case())) == "1 OK; 1 OK"
    assert [run for run, _, _, _ in asked] == ["r1-noise-1", "r1-noise-2"]
    assert visit.session.run == "r1"


def test_cases_end_where_the_step_is_cut_off_and_those_without_time_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first case takes 1,000 s by its own phases: the second's estimate is out of any budget."""
    asked = play_worker(monkeypatch)
    visit = a_visit(tmp_path)
    visit.cut_s = time.monotonic() + 7
    one, other = (matmul_case(axes={"M": 1, "N": n, "K": 1}) for n in (8, 9))
    do(visit, a_step("standard", one, other), 10.0)
    [(_, ran, _, limit_s)] = asked
    assert limit_s == pytest.approx(7, abs=1)
    assert [r.case["id"] for r in read_records(tmp_path / "records.jsonl")] == [ran]
    assert [case.id for case in visit.left_out["standard"]] == [case.id for case in (one, other) if case.id != ran]


def test_a_second_visit_to_a_directory_goes_on_with_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = play_worker(monkeypatch)
    for _ in range(2):
        do(a_visit(tmp_path), a_step("standard", matmul_case()))
    assert len(asked) == 1
