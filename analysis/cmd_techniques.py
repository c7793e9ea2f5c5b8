"""`python -m analysis techniques`: what each attention technique of LLM serving buys, by the counting rules.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

PARTLY = 4


def techniques(
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory for the files.")] = Path(
        "reports", "techniques"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout; no files.")] = False,
) -> None:
    """Counts bytes, intensity and attainable time of each technique before and after. Nothing is measured.

    Writes README.md, techniques and trajectories as .csv and .png; matmul.md, .csv and .png.
    Exit code 4: an output that could not be written.
    """
    from analysis.techniques import gains
    from analysis.techniques_report import frame, write_techniques

    if as_json:
        typer.echo(json.dumps(frame(gains()).to_dict("records"), ensure_ascii=False, allow_nan=False))
        return
    problems = write_techniques(output)
    for line in problems:
        typer.echo(f"warning: {line}", err=True)
    typer.echo(f"files: {output}")
    if problems:
        raise typer.Exit(PARTLY)
