"""Planning by a budget: the order, the estimate and its correction, what is left out and taken up again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_cases import in_process, session
from typer.testing import CliRunner

from bench import cmd_run, timing
from bench.__main__ import app
from bench.case import Case
from bench.method import Method
from bench.peaks import roof_cases
from bench.plan import Budget, guessed_s, left_out_lines, seconds_of, telling_first
from bench.record import Environment, Record, Status, read_records
from bench.run import record_of
from bench.stopping import StopRule
from bench.suites import suite_cases
from bench.sweep import sweep
from kernels import matmul
from kernels.registry import OPS
from kernels.spec import Op, Workload
from kernels.work import Work

RULE = StopRule(min_s=0.1, budget_s=0.3)


def power_op(name: str = "power") -> Op:
    """2^M FLOPs a byte, 2^N bytes: intensity and size are what a test says."""

    def work(workload: Workload) -> Work:
        return Work(flops=2 ** (workload.axes["M"] + workload.axes["N"]), bytes=2 ** workload.axes["N"])

    providers = {"triton": matmul.matmul_torch, "torch": matmul.matmul_torch}
    return replace(matmul.OP, name=name, work=work, providers=providers)


def cases_of(op: Op, *sizes: tuple[int, int], dtype: str = "float32") -> list[Case]:
    workloads = [matmul.describe_axes({"M": m, "N": n, "K": 1}, dtype, ("test",)) for m, n in sizes]
    return [Case(op, provider, workload) for workload in workloads for provider in op.providers]


def sizes_of(cases: list[Case]) -> list[tuple[int, int]]:
    return [(case.workload.axes["M"], case.workload.axes["N"]) for case in cases if case.provider == "torch"]


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("text", "seconds"), [("480", 480), ("480s", 480), ("8m", 480), ("1.5h", 5400), (" 90 s", 90)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5", "8 minutes", "nan", "inf", "m", "1e3"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="wanted a time such as 480, 480s or 8m"):
        seconds_of(text)


def test_extremes_come_first_and_then_the_middles_of_the_gaps() -> None:
    """Intensities 2^0 to 2^8 at one size: 8 is the highest, 0 farthest from it, 4 from both; then gaps of 2, of 1."""
    order = telling_first(cases_of(power_op(), *((m, 20) for m in range(9))))
    assert [m for m, _ in sizes_of(order)] == [8, 0, 4, 2, 6, 1, 3, 5, 7]


def test_size_spreads_as_intensity_does() -> None:
    """The corners of a square before its middle: the highest intensity's larger corner, its opposite, the others."""
    order = telling_first(cases_of(power_op(), (2, 22), (0, 20), (4, 20), (0, 24), (4, 24)))
    assert sizes_of(order) == [(4, 24), (0, 20), (4, 20), (0, 24), (2, 22)]


def test_groups_take_turns_and_providers_of_one_workload_stay_together() -> None:
    many = cases_of(power_op("many"), (0, 20), (1, 20), (2, 20))
    few = cases_of(power_op("few"), (5, 20), dtype="bfloat16")
    order = telling_first([*many, *few])
    assert [(c.op.name, c.workload.axes["M"], c.provider) for c in order] == [
        ("many", 2, "triton"), ("many", 2, "torch"), ("few", 5, "triton"), ("few", 5, "torch"),
        ("many", 0, "triton"), ("many", 0, "torch"), ("many", 1, "triton"), ("many", 1, "torch"),
    ]  # fmt: skip


def test_a_suite_begins_with_a_workload_of_every_group_behind_the_roofs() -> None:
    roofs, cases = roof_cases("cuda", 50 * 2**20), suite_cases("full", OPS)
    order = telling_first([*cases, *roofs])
    assert order[: len(roofs)] == roofs
    assert sorted(c.id for c in order[len(roofs) :]) == sorted(c.id for c in cases)
    groups = {(c.op.name, c.workload.phase, c.workload.dtype) for c in cases}
    first = dict.fromkeys((c.op.name, c.workload.key) for c in order[len(roofs) :])
    begun = list(first)[: len(groups)]
    by_workload = {(c.op.name, c.workload.key): (c.op.name, c.workload.phase, c.workload.dtype) for c in cases}
    assert {by_workload[key] for key in begun} == groups


def test_a_gpu_has_a_roof_of_fp8_with_the_scales_that_cost_least() -> None:
    for device, scales in (("cuda", {"tensor"}), ("cpu", set())):
        of_fp8 = [c.workload for c in roof_cases(device, 50 * 2**20) if c.workload.dtype == "float8_e4m3fn"]
        assert {w.scale for w in of_fp8} == scales


def test_an_op_that_cannot_count_its_work_has_a_place() -> None:
    def refuse(workload: Workload) -> Work:
        raise RuntimeError("no rule")

    cases = cases_of(replace(power_op(), work=refuse), (1, 2), (3, 4))
    assert telling_first(cases) == cases


def test_a_first_guess_by_hand() -> None:
    """2^30 FLOPs and 2^20 bytes on a CPU: 0.1 + 2^20 / 5e8 + 2^30 / 2e10 + 0.25 of warming + (0.1 + 0.3) / 2."""
    case = cases_of(power_op(), (10, 20))[0]
    burst = 0.1 + 2**20 / 5e8 + 2**30 / 2e10 + 0.25 + 0.2
    assert guessed_s(case, "cpu", RULE, Method()) == pytest.approx(burst, rel=1e-12)
    assert guessed_s(case, "cpu", RULE, Method(regime="sustained")) == pytest.approx(burst + 3.25, rel=1e-12)


def ran(case: Case, seconds: float) -> Record:
    phases = {"inputs": seconds / 4, "measure": seconds * 3 / 4}
    return record_of(case, session(), Status.OK, "", times_us=(1.0,), phases_s=phases)


def test_estimates_follow_what_cases_of_the_op_have_taken() -> None:
    """A guess that was half of the truth is doubled; another op's borrows that until it has cases of its own."""
    one, other = cases_of(power_op("one"), (0, 20))[0], cases_of(power_op("other"), (0, 20))[0]
    budget = Budget(10, "cpu", RULE)
    guess = budget.estimate_s([one])
    assert guess == pytest.approx(guessed_s(one, "cpu", RULE, Method()))
    budget.learn(one, ran(one, 2 * guess))
    assert (budget.estimate_s([one]), budget.estimate_s([other])) == pytest.approx((2 * guess, 2 * guess))
    budget.learn(other, ran(other, 3 * guess))
    assert (budget.estimate_s([one]), budget.estimate_s([other])) == pytest.approx((2 * guess, 3 * guess))
    budget.learn(one, record_of(one, session(), Status.UNSUPPORTED, "took no time"))
    assert budget.estimate_s([one]) == pytest.approx(2 * guess)


def swept(
    path: Path, cases: list[Case], seconds: float, takes_s: Callable[[Case], float], *, resume: bool = False
) -> list[Case]:
    """Sweeps with a runner that only moves the clock; the cases that ran."""
    clock, begun = Clock(), []
    budget = Budget(seconds, "cpu", RULE, now=clock)

    def run(case: Case) -> Record:
        begun.append(case)
        clock.now_s += takes_s(case)
        return ran(case, takes_s(case))

    records = sweep(cases, session(), path, run, resume=resume, budget=budget)
    assert {r.case["id"] for r in records} >= {case.id for case in begun}
    return begun


def test_a_sweep_ends_within_its_budget_and_resumes_with_what_was_left_out(tmp_path: Path) -> None:
    """One second a case: of nine pairs, four fit into 9 s; the next sweep takes up the other five, in order."""
    cases = cases_of(power_op(), *((m, 20) for m in range(9)))
    first = swept(tmp_path / "r.jsonl", cases, 9, lambda case: 1.0)
    assert [m for m, _ in sizes_of(first)] == [8, 0, 4, 2]
    assert [case.provider for case in first] == ["triton", "torch"] * 4
    second = swept(tmp_path / "r.jsonl", cases, 100, lambda case: 1.0, resume=True)
    assert {case.id for case in first} | {case.id for case in second} == {case.id for case in cases}
    assert len(first) + len(second) == len(cases)


def test_a_long_workload_is_left_out_whole_and_a_shorter_one_behind_it_still_runs(tmp_path: Path) -> None:
    """At 2^36 FLOPs a guess is 3.4 s more than at 2^20: the pair does not fit into 4 s, the short one does."""
    cases = cases_of(power_op(), (16, 20), (0, 20))
    begun = swept(tmp_path / "r.jsonl", cases, 4, lambda case: 0.5)
    assert sizes_of(begun) == [(0, 20)]
    assert len(begun) == 2


def test_cases_that_take_longer_than_guessed_end_a_sweep_in_time(tmp_path: Path) -> None:
    """Five seconds a case against a guess of 0.6: after the first pair the sweep knows that no other fits into 18 s."""
    cases = cases_of(power_op(), *((m, 20) for m in range(4)))
    assert sizes_of(swept(tmp_path / "r.jsonl", cases, 18, lambda case: 5.0)) == [(3, 20)]


def test_left_out_cases_are_counted_by_group() -> None:
    cases = cases_of(power_op(), (0, 20), (1, 20)) + cases_of(power_op("other"), (0, 20), dtype="bfloat16")
    lines = left_out_lines(cases)
    assert lines[0].startswith("6 cases were left out")
    assert [line.split(",")[0].strip() for line in lines[1:]] == ["4 of power", "2 of other"]


def test_a_run_lists_what_its_budget_left_out_and_resume_takes_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R22: a budget for nothing measures nothing, and says so by exit code 3, a list and an empty result."""
    monkeypatch.setattr(cmd_run, "environment", lambda device: Environment(device_name="small", l2_bytes=2**20))
    monkeypatch.setattr(timing, "warm", lambda *given: 0)
    monkeypatch.setattr(cmd_run, "isolated", in_process)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    sizes = ("--provider", "torch", "--set", "M=1,16", "--set", "N=64", "--set", "K=64", "--dtype", "fp32")
    common = ("run", "matmul", *sizes, "--no-peaks", "--device", "cpu", "--case-seconds", "0.02", "-o", str(tmp_path))
    ids = [f"matmul/torch/float32/M={m},N=64,K=64" for m in (1, 16)]
    nothing = CliRunner().invoke(app, [*common, "--budget", "0.01s", "--json"])
    assert nothing.exit_code == 3
    assert json.loads(nothing.stdout)["left_out"] == ids
    assert (tmp_path / "left_out.txt").read_text(encoding="utf-8").split() == ids
    assert "2 cases were left out" in nothing.stderr
    assert "2 of matmul, decode, float32" in nothing.stderr
    rest = CliRunner().invoke(app, [*common, "--budget", "1m", "--resume", "--json"])
    assert (rest.exit_code, json.loads(rest.stdout)["left_out"]) == (0, [])
    assert sorted(r.case["id"] for r in read_records(tmp_path / "records.jsonl")) == sorted(ids)
    assert not (tmp_path / "left_out.txt").exists()


def test_a_budget_that_is_no_time_is_a_usage_error() -> None:
    result = CliRunner().invoke(app, ["run", "--budget", "soon", "--device", "cpu"])
    assert result.exit_code == 2
    assert "--budget 'soon'" in result.stderr
