"""A sweep: cases in order, each ending in a record that is on disk before the next one starts.

Leaves running a case to its runner, which the caller brings, and what the records say to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from bench.case import Case
from bench.plan import Budget
from bench.progress import progress
from bench.record import Record, RecordWriter
from bench.resume import Wanted, cut_torn_line, done_before
from bench.run import Session, case_sha256
from bench.selection import stderr
from bench.worker import Runner

INTERRUPTED = 130


def sweep(
    cases: Sequence[Case],
    session: Session,
    path: Path,
    runner: Runner,
    *,
    resume: bool = False,
    budget: Budget | None = None,
) -> list[Record]:
    """Runs the cases and writes each record at once; the records of all that ran, in the cases' order.

    Args:
        cases: no two of one id.
        session: whose run and environment the file's header names.
        path: the records file; appended to.
        runner: runs one case.
        resume: leave out the cases that the file has records of already, as `bench.resume` counts them.
        budget: time for it, which decides order and which cases are run at all; all of them in order without one.

    Raises:
        RecordError: a file that cannot be gone on with.
        typer.Exit: 130 when interrupted; what was recorded stays.
    """
    records = _already(cases, session, path) if resume else {}
    left = [case for case in cases if case.id not in records]
    if budget:
        left = budget.order(left)
    try:
        if left:
            with RecordWriter(path, session.run, session.environment) as writer, progress(len(left)) as name:
                for case in left:
                    if budget and not budget.allows(case):
                        continue
                    name(case.id)
                    record = runner(case)
                    writer.append(record)
                    records[case.id] = record
                    if budget:
                        budget.learn(case, record)
    except KeyboardInterrupt:
        told = f"interrupted: {len(records)} of {len(cases)} records are safe in {path}"
        stderr.print(f"{told}; go on with: -o {path.parent} --resume", markup=False)
        raise typer.Exit(INTERRUPTED) from None
    return [records[case.id] for case in cases if case.id in records]


def _already(cases: Sequence[Case], session: Session, path: Path) -> dict[str, Record]:
    cut = cut_torn_line(path)
    if cut:
        stderr.print(f"{path}: the last line was cut off in the middle: {cut} bytes of it removed", markup=False)
    wanted = {case.id: Wanted(case_sha256(case), asdict(session.method_of(case))) for case in cases}
    records = done_before(path, session.environment, wanted)
    stderr.print(f"{len(records)} of {len(cases)} already there", markup=False)
    return records
