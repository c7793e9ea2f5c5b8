"""`python -m analysis validate`: the serving predictor against real engines.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

USAGE = 2
NOTHING = 3

FileOption = Annotated[
    Path | None, typer.Option("--e2e", help="Measured runs (.csv). Default: analysis/data/e2e_validation.csv.")
]
OutputOption = Annotated[Path | None, typer.Option("-o", "--output", help="Directory for validation.md and .csv.")]
RefitOption = Annotated[
    bool, typer.Option("--refit", help="Fit the host constants to these runs, cross-validated over sets. A minute.")
]
KeepOption = Annotated[bool, typer.Option("--keep", help="With --refit: write the constants that `serve` uses.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, with a row for each run.")]


def validate(
    e2e: FileOption = None,
    output: OutputOption = None,
    refit: RefitOption = False,
    keep: KeepOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predicts TPOT and TTFT of measured runs from their labels and prints the errors by set.

    Columns with other predictions serve the comparison only. Exit code 2: a file or a label that cannot be used; 3:
    a file without runs.
    """
    from analysis.files import write_all
    from analysis.serving import fit, validate_report
    from analysis.serving.deployment import CONSTANTS
    from analysis.serving.validate import RUNS, read, steps_of, validated

    path = e2e or RUNS
    try:
        runs = read(path)
        if not len(runs):
            typer.echo(f"{path}: no runs", err=True)
            raise typer.Exit(NOTHING)
        steps = steps_of(runs)
    except (ValueError, OSError) as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE) from error
    hosts = unseen = None
    if refit:
        hosts, unseen = fit.cross_validated(runs, steps)
        if keep:
            text = json.dumps(fit.document(hosts, unseen, path.name), indent=1)
            write_all({CONSTANTS: lambda: text + "\n"})
    rows = validated(runs, steps, hosts)
    markdown = validate_report.as_markdown(rows, unseen)
    typer.echo(json.dumps(validate_report.as_document(rows, unseen)) if as_json else markdown)
    if output:
        table = rows[list(validate_report.ROW_COLUMNS)].round(4)
        made = {
            output / "validation.md": lambda: markdown,
            output / "validation.csv": lambda: table.to_csv(index=False),
        }
        for problem in write_all(made):
            typer.echo(f"warning: {problem}", err=True)
