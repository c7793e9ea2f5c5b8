"""`python -m analysis compare`: whether kernels got slower, with an exit code that a CI can trust.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.record import write_atomically

if TYPE_CHECKING:
    from analysis.compare import Comparison
    from analysis.verdicts import Rules

USAGE, NOTHING, PARTLY = 2, 3, 4
ROWS = 40
"""Rows of the table on the terminal unless told otherwise."""
MoreOption = Annotated[list[Path] | None, typer.Option(help="Another process of this side; may be repeated.")]
ThresholdForOption = Annotated[
    list[str] | None, typer.Option(help="PATTERN=FRACTION for case ids; the last that matches counts.")
]
NoiseOption = Annotated[
    list[Path] | None, typer.Option(help="Runs of one code in several processes, for the A/A floor of each case.")
]
RerunOption = Annotated[
    Path | None,
    typer.Option(help="Directory with baseline/ and candidate/: fresh runs of what is flagged (97 % intervals)."),
]


def compare(
    baseline: Annotated[Path, typer.Argument(help="records.jsonl, or a directory: of one run, or of one a process.")],
    candidate: Annotated[Path, typer.Argument(help="The same, of what may have got slower.")],
    more_baseline: MoreOption = None,
    more_candidate: MoreOption = None,
    threshold: Annotated[float, typer.Option(help="Fraction that a change must pass: 0.05 is 5 %.")] = 0.05,
    threshold_for: ThresholdForOption = None,
    min_abs_us: Annotated[float, typer.Option(help="A change of fewer microseconds is none.")] = 0.0,
    noise: NoiseOption = None,
    allow: Annotated[list[str] | None, typer.Option(help="A FIELD that may differ, with a warning.")] = None,
    rerun: RerunOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="A missing case is exit code 3.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write Markdown for a pull request to this file.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Rows of the table on the terminal; 0 prints all.")] = ROWS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of a table.")] = False,
) -> None:
    """Says of each case whether it got slower.

    One or two processes a side: a change past the threshold (and 3 x the A/A floor) is SLOW or FAST, anything else
    AMBIGUOUS. Three or more: the interval of the ratio must exclude 1 too. Nothing is run: `bench ab` reruns what is
    flagged, and --rerun has what it found. Exit code 1: any SLOW; else 4: any INVALID, or an output that could not be
    written; else 3: nothing comparable; 2: records that cannot be used.
    """
    from analysis.compare import compare as compared
    from analysis.compare import side_of

    try:
        rules = _rules(threshold, threshold_for or [], min_abs_us)
        _known(allow or [])
        sides = [side_of([baseline, *(more_baseline or [])]), side_of([candidate, *(more_candidate or [])])]
        again = (side_of([rerun / "baseline"]), side_of([rerun / "candidate"])) if rerun else None
        aa = side_of(noise) if noise else None
        found = compared(sides[0], sides[1], rules, allowed=allow or [], noise=aa, rerun=again, strict=strict)
    except ValueError as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE) from error
    for line in found.warnings:
        typer.echo(f"warning: {line}", err=True)
    written = _write(found, junit, markdown, strict=strict)
    _tell(found, rows or sys.maxsize, as_json=as_json)
    code = found.code if written or found.code == 1 else PARTLY
    if code:
        raise typer.Exit(code)


def _rules(threshold: float, of_cases: list[str], min_abs_us: float) -> Rules:
    from analysis.verdicts import Rules

    pairs = [text.rpartition("=") for text in of_cases]
    named = [(pattern, _fraction("--threshold-for", number)) for pattern, _, number in pairs]
    if any(not pattern for pattern, _ in named):
        raise ValueError(f"--threshold-for {' '.join(of_cases)}: wanted PATTERN=FRACTION, as 'matmul/*=0.1'")
    return Rules(
        threshold=_fraction("--threshold", threshold), of_cases=named, min_abs_us=_fraction("--min-abs-us", min_abs_us)
    )


def _fraction(option: str, value: float | str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{option} {value}: wanted a number of at least 0")
    return number


def _known(allow: list[str]) -> None:
    from analysis.comparable import FIELDS

    if unknown := [name for name in allow if name not in FIELDS]:
        raise ValueError(f"--allow {' '.join(unknown)}: wanted one of {', '.join(FIELDS)}")


def _write(found: Comparison, junit: Path | None, markdown: Path | None, *, strict: bool) -> bool:
    """Whether all files that were asked for could be written."""
    from analysis import compare_output

    texts = [(junit, compare_output.junit(found, strict=strict)), (markdown, compare_output.markdown_page(found))]
    written = True
    for path, text in texts:
        try:
            if path is not None:
                write_atomically(path, text)
        except OSError as error:
            typer.echo(f"warning: {path}: not written: {error}", err=True)
            written = False
    return written


def _tell(found: Comparison, rows: int, *, as_json: bool) -> None:
    from rich.console import Console

    from analysis.compare_output import document, summary, table
    from analysis.tables import for_terminal

    if found.code == NOTHING:
        typer.echo(f"nothing compared, or a case is missing: {summary(found)}", err=True)
    if as_json:
        typer.echo(json.dumps(document(found), ensure_ascii=False, allow_nan=False))
        return
    console = Console(width=None if sys.stdout.isatty() else 240, markup=False, highlight=False, emoji=False)
    console.print(for_terminal(table(found.cases, "Baseline and candidate"), rows))
    for case_id, reason in found.cases[["case_id", "reason"]].head(rows).itertuples(index=False):
        console.print(f"{case_id}: {reason}", soft_wrap=True)
    if len(found.cases) > rows:
        console.print(f"{len(found.cases) - rows} more rows: --rows 0 prints all")
    console.print(summary(found))
