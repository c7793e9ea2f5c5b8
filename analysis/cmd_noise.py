"""`python -m analysis noise`: the A/A floor of each case, from processes of one code.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pandas as pd

    from analysis.tables import Table

USAGE, NOTHING = 2, 3
PAIR = 2
"""Processes that a spread needs at least."""
COLUMNS = ("case_id", "processes", "time_us", "spread", "floor")


def noise(
    runs: Annotated[list[Path], typer.Argument(help="Directories of `bench noise`, or of several runs of one code.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of a table.")] = False,
) -> None:
    """Says of each case what change is within the noise: 2 s / sqrt(pairs) of processes of one code.

    Processes pair up in the order taken. `compare --noise` takes the same runs and reckons the floor for as many pairs
    as are compared. Exit code 3: no case has two processes; 2: records that cannot be used.
    """
    from analysis.processes import of_noise
    from analysis.sides import KEY, side_of
    from analysis.stats import noise_floor

    try:
        found = of_noise(side_of(runs).frame, KEY)
    except ValueError as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE) from error
    rows = found.assign(floor=noise_floor(found["spread"], (found["processes"] // PAIR).clip(lower=1)))
    code = 0 if rows["floor"].notna().any() else NOTHING
    if as_json:
        cases = rows[list(COLUMNS)].astype("object")
        cases = cases.where(cases.notna(), None)
        document = {"cases": cases.to_dict("records"), "exit": code}
        typer.echo(json.dumps(document, ensure_ascii=False, allow_nan=False))
    else:
        _print(rows)
    if code:
        typer.echo("no case was timed by two processes: nothing tells the noise", err=True)
        raise typer.Exit(code)


def _print(rows: pd.DataFrame) -> None:
    from rich.console import Console

    from analysis.tables import for_terminal

    console = Console(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False, emoji=False)
    console.print(for_terminal(_table(rows), max(1, len(rows))))


def _table(rows: pd.DataFrame) -> Table:
    from analysis.tables import Table, number, percent

    texts = {
        "case": rows["case_id"],
        "processes": rows["processes"].map(str),
        "median us": rows["time_us"].map(number),
        "spread of a pair": rows["spread"].map(percent),
        "floor of as many pairs": rows["floor"].map(percent),
    }
    lines = list(zip(*(column.tolist() for column in texts.values()), strict=True))
    return Table(title="A/A noise", columns=tuple(texts), rows=lines, numeric=frozenset(list(texts)[1:]))
