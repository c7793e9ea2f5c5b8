"""One visit to a rented GPU: steps in order, each in its time, each result on disk before the next step starts.

Cases run in `bench.worker`, everything else in a process group of its own (`bench.child`), so what a step dies of is
told and costs no other step. A directory holds few files, since rented machines give back few:

* `records.jsonl`: the roofs and suite standard, cold, from idle, random inputs.
* `variants.jsonl`: sentinels hot, sustained, and with zeros.
* `noise-1.jsonl`, `noise-2.jsonl`: the same sentinels in two fresh processes.
* `gpu.json`: plan, how each step ended, correctness, what tuning printed, what was left out.
* `summary.md`, `roofline.png`, and what tuning writes in `tune/`.

Leaves what a step does to `bench.gpu_steps`, its seconds to `bench.gpu_plan`, and reading the results to
`bench.gpu_summary`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from bench.case import Case
from bench.child import Child
from bench.gpu_plan import Step
from bench.lock import device_lock
from bench.method import Method
from bench.plan import Budget
from bench.record import Record, write_atomically
from bench.run import Session
from bench.selection import stderr
from bench.sweep import sweep
from bench.worker import IsolatedRunner, isolated

CASE_TIMEOUT_S = 60.0
OVERRUN = 1.5
"""A step is cut off when it has taken so many times what it was given, or when the visit's time is up."""
LEAST_S = 2.0
"""Steps are not begun with less."""
RECORDS, VARIANTS, STATE = "records.jsonl", "variants.jsonl", "gpu.json"
NOISE = ("noise-1.jsonl", "noise-2.jsonl")
DONE, CUT_OFF, FAILED, LEFT_OUT, INTERRUPTED = "done", "cut off", "failed", "left out", "interrupted"


class StepError(RuntimeError):
    """A step that could not do its work; the message says why."""


@dataclass(slots=True)
class Ending:
    """How a step ended: done, cut off, failed, left out, interrupted or, while it runs, ''."""

    name: str
    what: str
    expected_s: float
    took_s: float = 0.0
    ended: str = ""
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class Visit:
    """What the steps share.

    Attributes:
        directory: for the files named above; absolute.
        session: of the cases.
        end_s: of the monotonic clock, when everything is over.
        cut_s: of the monotonic clock, when the step that runs is cut off.
        endings: of the steps so far.
        facts: what steps found beside records, by step.
        left_out: cases that no time was left for, by step.
    """

    directory: Path
    session: Session
    end_s: float
    cut_s: float = 0.0
    endings: list[Ending] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, list[Case]] = field(default_factory=dict)
    _open: ExitStack = field(default_factory=ExitStack)
    _runner: IsolatedRunner[Record] | None = None

    def runner(self) -> IsolatedRunner[Record]:
        """The worker that runs cases until `end_worker`; the device is locked as long."""
        if self._runner is None:
            self._open.enter_context(device_lock(self.session.environment, wait=False, tell=tell))
            self._runner = self._open.enter_context(isolated(self.session, CASE_TIMEOUT_S, (), tell))
        return self._runner

    def end_worker(self) -> None:
        """Frees the device: for another process of a step, which then is not disturbed."""
        self._open.close()
        self._runner = None

    def swept(
        self, step: Step, seconds: float, path: str, *, method: Method | None = None, resume: bool = False
    ) -> list[Record]:
        """Runs a step's cases as far as its seconds allow."""
        runner = self.runner()

        def run(case: Case) -> Record:
            return runner(case, method, max(1.0, self.cut_s - time.monotonic()))

        session = self.session if method is None else replace(self.session, method=method)
        budget = Budget(seconds, session.device, session.rule, session.method)
        records = sweep(step.cases, session, self.directory / path, run, resume=resume, budget=budget)
        ran = {record.case["id"] for record in records}
        self.left_out[step.name] = [case for case in step.cases if case.id not in ran]
        return records

    @contextmanager
    def child(self, *arguments: str) -> Iterator[Child]:
        """A command that is cut off with the step."""
        with Child(arguments, tell) as child:
            yield child

    def write(self) -> None:
        """Replaces `gpu.json`."""
        state = {
            "run": self.session.run,
            "steps": [asdict(ending) for ending in self.endings],
            "left_out": {name: [case.id for case in cases] for name, cases in self.left_out.items() if cases},
            **self.facts,
        }
        write_atomically(self.directory / STATE, json.dumps(state, indent=1, ensure_ascii=False) + "\n")


tell = partial(stderr.print, markup=False)

Work = Callable[[Visit, Step, float], str]
"""Does a step within its seconds; says in a few words what came of it. Raises StepError when it cannot."""


def visit_steps(
    visit: Visit, steps: Sequence[Step], works: Mapping[str, Work], after_each: Callable[[Visit], None]
) -> None:
    """Does the steps in order.

    `standard`, whose seconds are what the others leave, gets all that is left but the seconds of the steps after it.

    Args:
        steps: as `bench.gpu_plan.plan` gives them.
        works: a step's name -> what does it.
        after_each: called when a step's results are on disk.

    Raises:
        typer.Exit: 130 when interrupted.
    """
    try:
        for number, step in enumerate(steps):
            later_s = sum(other.expected_s for other in steps[number + 1 :])
            left_s = visit.end_s - time.monotonic()
            seconds = left_s - later_s if step.name == "standard" else min(step.expected_s, left_s)
            _do(visit, step, seconds, works[step.name])
            visit.write()
            after_each(visit)
    except (KeyboardInterrupt, typer.Exit):
        if visit.endings and not visit.endings[-1].ended:
            visit.endings[-1].ended = INTERRUPTED
        raise typer.Exit(130) from None
    finally:
        visit.end_worker()
        visit.write()


def _do(visit: Visit, step: Step, seconds: float, work: Work) -> None:
    """Does one step; whatever it raises is its ending, except an interruption."""
    ending = Ending(step.name, step.what, step.expected_s)
    visit.endings.append(ending)
    start = time.monotonic()
    if seconds < min(LEAST_S, step.expected_s):
        ending.ended, ending.detail = LEFT_OUT, "no time was left"
        tell(f"{step.name}: left out, no time was left")
        return
    visit.cut_s = min(visit.end_s, start + max(OVERRUN * seconds, seconds + 5))
    tell(f"{step.name}: {step.what} ({seconds:.0f} s)")
    try:
        ending.detail = work(visit, step, seconds)
        ending.ended = CUT_OFF if CUT_OFF in ending.detail else DONE
    except typer.Exit:
        raise
    except Exception as error:  # a step that fails must not cost the others
        ending.ended, ending.detail = FAILED, f"{error}" if isinstance(error, StepError) else f"{error!r}"
    finally:
        ending.took_s = time.monotonic() - start
    tell(f"{step.name}: {ending.ended} in {ending.took_s:.0f} s. {ending.detail}")
