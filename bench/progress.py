"""Which case runs now, told before it starts: a bar with the time left on a terminal, else plain lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.selection import stderr

Name = Callable[[str], None]
WHOLE_RUN_S = 24 * 3600.0
"""The time left is reckoned from all cases so far: a few seconds of them say little."""


@contextmanager
def progress(total: int) -> Iterator[Name]:
    """Gives a function that is called with the id of each case before it starts."""
    begun = 0

    def line(case_id: str) -> None:
        nonlocal begun
        begun += 1
        stderr.print(f"[{begun}/{total}] {case_id}", markup=False)

    if not stderr.is_terminal:
        yield line
        return
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    named = TextColumn("{task.description}", markup=False)
    # One refresh a second: the bar shares the processor with what is measured on it.
    with Progress(
        *columns, named, console=stderr, refresh_per_second=1, speed_estimate_period=WHOLE_RUN_S, transient=True
    ) as bar:
        task = bar.add_task("", total=total)

        def show(case_id: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=case_id, refresh=True)
            begun += 1

        yield show
        bar.update(task, completed=begun)
