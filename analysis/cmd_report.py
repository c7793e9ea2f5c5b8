"""`python -m analysis report`: one page to open in a browser, made of any records.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analysis.cmd_roofline import NOTHING, PARTLY, USAGE, kernels_of, load_runs, run_lines, with_compiled
from bench.record import RecordError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.page.document import Text
    from analysis.roofline import Device


def report(
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory for the files.")],
    records: Annotated[
        list[Path] | None,
        typer.Argument(help="records.jsonl files, or directories with one. None: the newest run under reports/."),
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the page. Default: the runs' names.")] = "",
    compiled: Annotated[
        Path | None, typer.Option(help="Directory of `bench compile`: its kernels' ceilings are told at each point.")
    ] = None,
) -> None:
    """Makes a report of measured or published records that opens in a browser, from a file and without a network.

    Writes report.html, roofline.png, roofline.svg and report.md. Exit code 2: records that cannot be used; 3: no
    measured case; 4: an output that could not be written.
    """
    from analysis.page.document import Text
    from analysis.roofline import points
    from analysis.runs import with_roofs
    from analysis.tables import family_lines, provenance, status_lines

    try:
        paths, loaded = load_runs(records or [])
        kernels = kernels_of(compiled)
    except RecordError as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE) from error
    # Named and counted before the roofs of another run come in.
    runs, statuses, told = list(loaded.environments), status_lines(loaded.frame), run_lines(loaded)
    loaded, found, warnings = with_roofs(loaded, paths)
    frame, devices = points(loaded)
    frame = with_compiled(frame, loaded, kernels)
    text = Text(
        title=title or (f"Report of {', '.join(runs)}" if len(runs) < 4 else f"Report of {len(runs)} runs"),
        lines=[*statuses, *family_lines(frame)], warnings=warnings,
        provenance=[*told, *found, *provenance(frame, devices)],
    )  # fmt: skip
    problems = _write(frame, devices, output, text, statuses, [*told, *found, *warnings])
    for line in [*warnings, *problems]:
        typer.echo(f"warning: {line}", err=True)
    typer.echo(f"{len(frame)} points: {output / 'report.html'}")
    if frame.empty:
        typer.echo("no case was measured: there is nothing to place under a roof", err=True)
        raise typer.Exit(NOTHING)
    if problems:
        raise typer.Exit(PARTLY)


def _write(
    frame: pd.DataFrame, devices: Sequence[Device], directory: Path, text: Text, statuses: Sequence[str],
    notes: Sequence[str],
) -> list[str]:  # fmt: skip
    from analysis.files import write_all
    from analysis.outputs import images
    from analysis.page.document import document
    from analysis.plots import roofline_figure
    from analysis.tables import report_markdown

    made: dict[str, Callable[[], str | bytes]] = {
        "report.html": lambda: document(frame, devices, text),
        "report.md": lambda: report_markdown(frame, devices, text.title, statuses, notes),
        **images("roofline", lambda: roofline_figure(frame, devices, text.title, notes)),
    }
    return write_all({directory / name: make for name, make in made.items()})
