"""`python -m analysis serving-report`: four models on H100 and H200, what nothing beats, and a tutorial's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PARTLY = 4


def serving_report(
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory for the files.")] = Path(
        "reports", "serving"
    ),
) -> None:
    """Writes README.md, tutorial.md, crossovers.md, elasticity.md, grid.csv and pareto.png.

    Exit code 4: an output that could not be written.
    """
    from analysis.serving.pareto import write_report

    problems = write_report(output)
    for line in problems:
        typer.echo(f"warning: {line}", err=True)
    typer.echo(f"files: {output}")
    if problems:
        raise typer.Exit(PARTLY)
