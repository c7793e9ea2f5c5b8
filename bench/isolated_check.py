"""Checks in a worker process: one that crashes or hangs ends in a status, and the next one has a fresh process.

`python -m bench.isolated_check` is the worker. Leaves the processes to `bench.worker`, and the rule to `bench.check`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import interpret, l2
from bench.case import Case
from bench.check import check_case
from bench.record import Status
from bench.run import HEADROOM, Session, ending, free_bytes, not_to_run
from bench.worker import begin, in_worker


@dataclass(frozen=True, slots=True)
class Checked:
    """How the check of a case ended; `error` holds the figures of the error rule."""

    case_id: str
    status: Status
    detail: str = ""
    error: dict[str, float] = field(default_factory=dict)


Checker = Callable[[Case], Checked]
"""Checks a case and tells how it ended; never raises for what the case itself does."""


@contextmanager
def isolated_checks(
    session: Session, timeout_s: float, op_files: Sequence[Path], tell: Callable[[str], None]
) -> Iterator[Checker]:
    """A checker of cases in a worker process; arguments as of `bench.worker.in_worker`."""

    def read(reply: str) -> Checked:
        fields = json.loads(reply)
        return Checked(**fields | {"status": Status(fields["status"])})

    def gone(case: Case, session: Session, status: Status, detail: str) -> Checked:
        return Checked(case.id, status, detail)

    with in_worker("bench.isolated_check", read, gone, session, timeout_s, op_files, tell) as run:
        yield run


def check_one(case: Case, device: str, seed: int) -> Checked:
    """Checks one case; never raises for what the case itself does."""
    try:
        # What has nothing to measure on a CPU is what the interpreter is there to check.
        refused = None if interpret.is_on() else not_to_run(case, device)
        if refused:
            return Checked(case.id, *refused)
        needed = l2.plan(case.op.make_inputs(case.workload, "meta", seed), case.op.roles, 0).needed_bytes
        free = free_bytes(device)
        if free is not None and needed > HEADROOM * free:
            return Checked(case.id, Status.SKIPPED, f"needs {needed:,} bytes, {free:,} are free on this device")
        inputs = case.op.make_inputs(case.workload, device, seed)
        verdict = check_case(case.op, case.op.providers[case.provider], inputs)
    except Exception as error:
        return Checked(case.id, *ending(error))
    return Checked(case.id, Status.INCORRECT if verdict.problem else Status.OK, verdict.problem, verdict.figures)


if __name__ == "__main__":
    begin(lambda case, session: json.dumps(asdict(check_one(case, session.device, session.seed)), ensure_ascii=False))
