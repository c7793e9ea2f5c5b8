"""The options of `python -m analysis compare`, as typer reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ROWS = 40
"""Rows of the table on the terminal unless told otherwise."""
RecordsArgument = Annotated[
    list[Path],
    typer.Argument(
        help="BASELINE CANDIDATE; each records.jsonl, or a directory: of one run, or of one a process. With "
        "--baseline auto CANDIDATE alone.",
        metavar="[BASELINE] CANDIDATE",
    ),
]
BaselineOption = Annotated[
    str, typer.Option(help="auto: the newest comparable directory under reports/baselines/DEVICE/.")
]
MoreOption = Annotated[list[Path] | None, typer.Option(help="Another process of this side; may be repeated.")]
ThresholdOption = Annotated[float, typer.Option(help="Fraction that a change must pass: 0.05 is 5 %.")]
ThresholdForOption = Annotated[
    list[str] | None, typer.Option(help="PATTERN=FRACTION for case ids; the last that matches counts.")
]
MinAbsOption = Annotated[float, typer.Option(help="A change of fewer microseconds is none.")]
NoiseOption = Annotated[
    list[Path] | None, typer.Option(help="Runs of one code in several processes, for the A/A floor of each case.")
]
AllowOption = Annotated[list[str] | None, typer.Option(help="A FIELD that may differ, with a warning.")]
RerunOption = Annotated[
    Path | None,
    typer.Option(help="Directory with baseline/ and candidate/: fresh runs of what is flagged (97 % or more)."),
]
StrictOption = Annotated[bool, typer.Option("--strict", help="A missing case is exit code 3.")]
JunitOption = Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")]
MarkdownOption = Annotated[Path | None, typer.Option(help="Write Markdown for a pull request to this file.")]
OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write comparison.md, .csv, .png and .svg to this directory.")
]
RowsOption = Annotated[int, typer.Option(min=0, help="Rows of the table on the terminal; 0 prints all.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of a table.")]
