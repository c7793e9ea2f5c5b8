"""`python -m analysis serving-tables`: makes the kernel table that the serving predictor ships."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NOTHING = 3


def serving_tables(
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File. Default: analysis/data/.")] = None,
) -> None:
    """Makes analysis/data/serving_kernels.parquet from the package with the published measurements.

    Needs the extra `reference`. Exit code 3: the package is missing.
    """
    from analysis.reference_tables import PackageMissingError
    from analysis.serving.kernel_tables import FILE, write

    path = output or FILE
    try:
        typer.echo(f"{write(path)} rows in {path}")
    except PackageMissingError as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(NOTHING) from error
