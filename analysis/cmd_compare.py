"""`python -m analysis compare`: whether kernels got slower, with an exit code that a CI can trust.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from analysis import compare_options as options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from analysis.compare import Comparison
    from analysis.frame import Loaded
    from analysis.verdicts import Rules

USAGE, NOTHING, PARTLY = 2, 3, 4
AUTO = "auto"


def compare(
    ctx: typer.Context,
    records: options.RecordsArgument,
    baseline: options.BaselineOption = "",
    more_baseline: options.MoreOption = None,
    more_candidate: options.MoreOption = None,
    threshold: options.ThresholdOption = 0.05,
    threshold_for: options.ThresholdForOption = None,
    min_abs_us: options.MinAbsOption = 0.0,
    noise: options.NoiseOption = None,
    allow: options.AllowOption = None,
    rerun: options.RerunOption = None,
    strict: options.StrictOption = False,
    junit: options.JunitOption = None,
    markdown: options.MarkdownOption = None,
    output: options.OutputOption = None,
    rows: options.RowsOption = options.ROWS,
    as_json: options.JsonOption = False,
) -> None:
    """Says of each case whether it got slower.

    One or two processes a side: a change past the threshold (and 3 x the A/A floor) is SLOW or FAST, anything else
    AMBIGUOUS. Three or more: the interval of the ratio must exclude 1 too. Nothing is run: `bench ab` reruns what is
    flagged, and --rerun has what it found. Exit code 1: any SLOW; else 4: any INVALID, or an output that could not be
    written; else 3: nothing comparable, or no kept baseline; 2: records that cannot be used.
    """
    from analysis.baselines import NoBaselineError

    try:
        sides, found = _compared(ctx.params)
    except (ValueError, NoBaselineError) as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(NOTHING if isinstance(error, NoBaselineError) else USAGE) from error
    problems = _write(found, junit, markdown, strict=strict) + (_report(found, sides, output) if output else [])
    for line in [*found.warnings, *problems]:
        typer.echo(f"warning: {line}", err=True)
    _tell(found, rows or sys.maxsize, as_json=as_json)
    code = PARTLY if problems and found.code != 1 else found.code
    if code:
        raise typer.Exit(code)


def _compared(asked: Mapping[str, Any]) -> tuple[list[Loaded], Comparison]:
    """Both sides and what came out. Raises ValueError or NoBaselineError."""
    from analysis.compare import compare as compared
    from analysis.sides import side_of

    rules = _rules(asked["threshold"], asked["threshold_for"] or [], asked["min_abs_us"])
    allowed = asked["allow"] or []
    _known(allowed)
    old, new = _asked(asked["records"], asked["baseline"])
    noise = side_of(asked["noise"]).frame if asked["noise"] else None
    rerun = asked["rerun"]
    again = (side_of([rerun / "baseline"]).frame, side_of([rerun / "candidate"]).frame) if rerun else None
    candidate = side_of([new, *(asked["more_candidate"] or [])])

    def judged(side: Loaded) -> Comparison:
        return compared(
            side.frame, candidate.frame, rules, allowed=allowed, noise=noise, rerun=again, strict=asked["strict"]
        )

    if old is None:
        side, found = _kept(candidate, judged)
        return [side, candidate], found
    side = side_of([old, *(asked["more_baseline"] or [])])
    return [side, candidate], judged(side)


def _asked(records: Sequence[Path], baseline: str) -> tuple[Path | None, Path]:
    """Baseline (None: find it) and candidate."""
    if baseline not in ("", AUTO):
        raise ValueError(f"--baseline {baseline}: wanted {AUTO}; a baseline's path comes before the candidate's")
    if len(records) != (1 if baseline else 2):
        wanted = f"with --baseline {AUTO} the candidate alone" if baseline else "BASELINE and CANDIDATE"
        raise ValueError(f"{len(records)} paths given, wanted {wanted}")
    return (None, records[0]) if baseline else (records[0], records[1])


def _kept(candidate: Loaded, judged: Callable[[Loaded], Comparison]) -> tuple[Loaded, Comparison]:
    from analysis.baselines import newest_comparable

    kept = newest_comparable(candidate, judged)
    typer.echo(kept.told, err=True)
    return kept.side, kept.comparison


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


def _write(found: Comparison, junit: Path | None, markdown: Path | None, *, strict: bool) -> list[str]:
    """Writes the files that were asked for; a line for each that could not be."""
    from analysis import compare_output
    from analysis.files import write_all

    made: dict[Path, Callable[[], str | bytes]] = {}
    if junit is not None:
        made[junit] = lambda: compare_output.junit(found, strict=strict)
    if markdown is not None:
        made[markdown] = lambda: compare_output.markdown_page(found)
    return write_all(made)


def _report(found: Comparison, sides: Sequence[Loaded], directory: Path) -> list[str]:
    """Writes the report; a line for each file that could not be."""
    from analysis.cmd_roofline import run_lines
    from analysis.compare_report import write_comparison
    from analysis.roofline import devices
    from analysis.runs import with_roofs

    names = ("baseline", "candidate")
    told = [f"{name}: {line}" for name, side in zip(names, sides, strict=True) for line in run_lines(side)]
    drawn = devices(with_roofs(sides[1], [])[0])
    return write_comparison(found, drawn, directory, told)


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
    console.print(for_terminal(table(found.cases.head(rows), "Baseline and candidate"), rows))
    for case_id, reason in found.cases[["case_id", "reason"]].head(rows).itertuples(index=False):
        console.print(f"{case_id}: {reason}", soft_wrap=True)
    if len(found.cases) > rows:
        console.print(f"{len(found.cases) - rows} more rows: --rows 0 prints all")
    console.print(summary(found))
