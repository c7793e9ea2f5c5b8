"""`bench gpu`: all that a rented GPU is wanted for, in one command of fixed length; `--dry-run` tells the plan."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import selection as options
from bench.cmd_run import BAD, REPORTS, new_session
from bench.device import choose_device
from bench.ending import end_on_signals
from bench.gpu import FAILED, Visit, tell, visit_steps
from bench.gpu_plan import CASE_SECONDS, Step, plan, stop_rule
from bench.gpu_steps import WORKS
from bench.gpu_summary import every_record, write_summary
from bench.lock import device_lock
from bench.plan import seconds_of
from bench.record import Environment, Status
from bench.run import Session
from bench.selection import exit_codes

BudgetOption = Annotated[str, typer.Option("--budget", help="Time for all of it, such as 480s or 8m.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Directory for the results; reports/run-TIME when not given.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the steps and the seconds expected of each; needs no GPU.")
]


def gpu(
    budget: BudgetOption = "480s",
    output: OutputOption = None,
    dry_run: DryRunOption = False,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    as_json: options.JsonOption = False,
) -> None:
    """All that a rented GPU is wanted for, step by step within a time: results are usable wherever it is cut off.

    Exit code 0: all well; 4: a case or a step failed; 3: nothing measured, or no usable GPU; 2: usage;
    130: interrupted.
    """
    began_s = time.monotonic() - time.process_time()  # importing torch has taken seconds of the budget already
    with exit_codes():
        seconds = seconds_of(budget)
        if dry_run:
            _print_plan(plan(seconds), seconds, as_json=as_json)
            return
        if choose_device(None) != "cuda":
            choose_device("cuda")  # says who was asked for a GPU, and where this runs
        session = new_session("cuda", CASE_SECONDS, seed)
        steps = plan(seconds, session.cache_bytes)
    session = replace(session, rule=stop_rule(steps))
    with exit_codes(), _alone(session.environment):
        visit = _visit(session, output, began_s + seconds)
        code = _go(visit, steps)
    _tell(visit, code, as_json=as_json)
    raise typer.Exit(code)


@contextmanager
def _alone(environment: Environment) -> Iterator[None]:
    """One visit to a GPU at a time, and none while another run is on it. Raises DeviceError.

    Between steps the GPU's own lock is free, so that a command of a step can take it: a visit has one beside it.
    """
    visits = replace(environment, uuid=f"visit-{environment.uuid or platform.node()}")
    with device_lock(visits, wait=False, tell=tell):
        with device_lock(environment, wait=False, tell=tell):
            pass
        yield


def _go(visit: Visit, steps: Sequence[Step]) -> int:
    """Does the steps; the exit code."""
    end_on_signals()
    try:
        visit_steps(visit, steps, WORKS, _summarise)
    except typer.Exit as ended:
        _summarise(visit)
        return ended.exit_code
    return _exit_code(visit)


def _visit(session: Session, output: Path | None, end_s: float) -> Visit:
    """A visit whose directory exists."""
    directory = (output or REPORTS / f"run-{session.run}").resolve()
    directory.mkdir(parents=True, exist_ok=True)
    return Visit(directory=directory, session=session, end_s=end_s)


def _summarise(visit: Visit) -> None:
    """A summary that cannot be written costs no step."""
    try:
        write_summary(visit)
    except (OSError, ValueError) as error:
        tell(f"no summary: {error}")


def _exit_code(visit: Visit) -> int:
    records = every_record(visit.directory)
    if not any(record.status is Status.OK for record in records):
        return 3
    wrong = any(record.status in BAD for record in records)
    wrong |= any(one["status"] in map(str, BAD) for one in visit.facts.get("correctness", ()))
    return 4 if wrong or any(ending.ended == FAILED for ending in visit.endings) else 0


def _tell(visit: Visit, code: int, *, as_json: bool) -> None:
    if as_json:
        steps = {ending.name: ending.ended for ending in visit.endings}
        typer.echo(json.dumps({"directory": str(visit.directory), "steps": steps, "exit": code}, ensure_ascii=False))
        return
    typer.echo((visit.directory / "summary.md").read_text(encoding="utf-8"))
    typer.echo(f"files: {visit.directory}")


def _print_plan(steps: Sequence[Step], budget_s: float, *, as_json: bool) -> None:
    total_s = sum(step.expected_s for step in steps)
    if as_json:
        told: list[dict[str, Any]] = [
            {"step": s.name, "what": s.what, "expected_s": s.expected_s, "cases": [c.id for c in s.cases]}
            for s in steps
        ]
        typer.echo(json.dumps({"budget_s": budget_s, "expected_s": total_s, "steps": told}, ensure_ascii=False))
        return
    for step in steps:
        typer.echo(f"{step.expected_s:6.0f} s  {step.name:<12} {step.what}")
    typer.echo(f"{total_s:6.0f} s  in all, of {budget_s:g} s")
