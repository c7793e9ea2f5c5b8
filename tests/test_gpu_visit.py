"""The steps of a visit by fakes: one that fails, hangs, or is interrupted costs no other what it has."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from small_cases import session

from bench import gpu
from bench.gpu import StepError, Visit, visit_steps
from bench.gpu_plan import Step

Did = list[tuple[str, float]]


def a_step(name: str, expected_s: float) -> Step:
    return Step(name=name, what="does it", expected_s=expected_s)


def visited(
    tmp_path: Path, seconds: float, steps: list[Step], **works: Callable[[Visit], str]
) -> tuple[Visit, Did, list[list[str]]]:
    """Visits; steps without a work of their own do nothing. (visit, seconds given by step, endings after each)."""
    visit = Visit(directory=tmp_path, session=session(), end_s=time.monotonic() + seconds)
    did: Did = []
    seen: list[list[str]] = []

    def work(visit: Visit, step: Step, given_s: float) -> str:
        did.append((step.name, given_s))
        return works[step.name](visit) if step.name in works else "all well"

    def after(visit: Visit) -> None:
        seen.append([one["ended"] for one in state(tmp_path)["steps"]])

    visit_steps(visit, steps, {step.name: work for step in steps}, after)
    return visit, did, seen


def state(directory: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((directory / "gpu.json").read_text(encoding="utf-8"))
    return read


def raises(error: BaseException) -> Callable[[Visit], str]:
    def work(visit: Visit) -> str:
        raise error

    return work


def test_a_step_that_fails_costs_no_other(tmp_path: Path) -> None:
    steps = [a_step(name, 10) for name in ("one", "two", "three", "four")]
    visit, did, seen = visited(
        tmp_path, 100, steps, one=raises(StepError("no such command")), three=raises(ZeroDivisionError("by zero"))
    )
    assert [(e.name, e.ended) for e in visit.endings] == [
        ("one", "failed"), ("two", "done"), ("three", "failed"), ("four", "done"),
    ]  # fmt: skip
    assert [e.detail for e in visit.endings][:3] == ["no such command", "all well", "ZeroDivisionError('by zero')"]
    assert [name for name, _ in did] == ["one", "two", "three", "four"]
    assert seen == [["failed"], ["failed", "done"], ["failed", "done", "failed"], ["failed", "done", "failed", "done"]]


def test_standard_gets_what_the_others_leave_and_each_other_its_own(tmp_path: Path) -> None:
    """100 s, 20 of them for the step after: standard has the 80 that the quick step before it has left over."""
    steps = [a_step("before", 30), a_step("standard", 40), a_step("after", 20)]
    _, did, _ = visited(tmp_path, 100, steps)
    assert dict(did) == pytest.approx({"before": 30, "standard": 80, "after": 20}, abs=2)


def test_a_step_without_time_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LEAST_S", 0.2)

    def sleeps(visit: Visit) -> str:
        time.sleep(0.4)
        return "slept"

    steps = [a_step("slow", 0.2), a_step("late", 10)]
    visit, did, _ = visited(tmp_path, 0.4, steps, slow=sleeps)
    assert [(e.name, e.ended) for e in visit.endings] == [("slow", "done"), ("late", "left out")]
    assert [name for name, _ in did] == ["slow"]


def test_a_step_is_cut_off_at_its_overrun_or_at_the_end_of_the_visit(tmp_path: Path) -> None:
    """20 s may become 30, 2 s may become 7, and nothing passes the end."""
    cuts: dict[str, float] = {}

    def noting(name: str) -> Callable[[Visit], str]:
        def work(visit: Visit) -> str:
            cuts[name] = visit.cut_s - time.monotonic()
            return ""

        return work

    steps = [a_step("long", 20), a_step("short", 2), a_step("last", 40)]
    visited(tmp_path, 50, steps, **{step.name: noting(step.name) for step in steps})
    assert cuts == pytest.approx({"long": 30, "short": 7, "last": 50}, abs=2)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Exit(130)])
def test_an_interruption_ends_the_visit_with_its_state_on_disk(tmp_path: Path, error: BaseException) -> None:
    steps = [a_step(name, 10) for name in ("one", "two", "three")]
    with pytest.raises(typer.Exit) as ended:
        visited(tmp_path, 100, steps, two=raises(error))
    assert ended.value.exit_code == 130
    assert [(s["name"], s["ended"]) for s in state(tmp_path)["steps"]] == [("one", "done"), ("two", "interrupted")]
