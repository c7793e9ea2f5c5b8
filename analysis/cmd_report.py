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

    from analysis.frame import Loaded
    from analysis.page.document import Text
    from analysis.page.sections import Section
    from analysis.roofline import Device


def report(
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory for the files.")],
    records: Annotated[
        list[Path] | None,
        typer.Argument(
            help="records.jsonl files, or directories with one (none: the newest run under reports/); directories of "
            "`bench compile`, `analysis compare`, `analysis validate` for sections beside it."
        ),
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
    from analysis.page.sections import kind_of, sections
    from analysis.roofline import points
    from analysis.runs import with_roofs

    try:
        paths, loaded = load_runs([path for path in records or [] if kind_of(path) == "records"])
        kernels, beside = kernels_of(compiled), sections(records or [])
    except RecordError as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE) from error
    with_all, found, warnings = with_roofs(loaded, paths)
    frame, devices = points(with_all)
    frame = with_compiled(frame, with_all, kernels)
    # Runs are named and counted without the roofs of another.
    text = _text(loaded, frame, devices, title=title, found=found, warnings=warnings, sections=beside)
    problems = _write(frame, devices, output, text)
    for line in [*warnings, *problems]:
        typer.echo(f"warning: {line}", err=True)
    typer.echo(f"{len(frame)} points: {output / 'report.html'}")
    if frame.empty:
        typer.echo("no case was measured: there is nothing to place under a roof", err=True)
        raise typer.Exit(NOTHING)
    if problems:
        raise typer.Exit(PARTLY)


def _text(
    loaded: Loaded, frame: pd.DataFrame, devices: Sequence[Device], *, title: str, found: Sequence[str],
    warnings: Sequence[str], sections: Sequence[Section],
) -> Text:  # fmt: skip
    from analysis.page.document import Text
    from analysis.page.headline import headline
    from analysis.page.provenance import provenance as of_runs
    from analysis.tables import family_lines, provenance, status_lines

    runs = list(loaded.environments)
    return Text(
        title=title or (f"Report of {', '.join(runs)}" if len(runs) < 4 else f"Report of {len(runs)} runs"),
        lines=[*status_lines(loaded.frame), *family_lines(frame)],
        warnings=warnings,
        provenance=[*run_lines(loaded), *found, *provenance(frame, devices)],
        headline=headline(frame, loaded.environments),
        runs=of_runs(loaded),
        sections=sections,
    )


def _markdown(frame: pd.DataFrame, text: Text) -> str:
    from analysis.page.markdown import report_md
    from analysis.page.provenance import warnings

    return report_md(
        text.title, text.headline, frame, provenance=text.runs, cautions=warnings(frame),
        sections=text.sections, notes=[*text.warnings, *text.provenance],
    )  # fmt: skip


def _write(frame: pd.DataFrame, devices: Sequence[Device], directory: Path, text: Text) -> list[str]:
    from analysis.files import write_all
    from analysis.outputs import images
    from analysis.page.document import document
    from analysis.plots import roofline_figure

    notes = [*text.warnings, *text.provenance]
    made: dict[str, Callable[[], str | bytes]] = {
        "report.html": lambda: document(frame, devices, text),
        "report.md": lambda: _markdown(frame, text),
        **images("roofline", lambda: roofline_figure(frame, devices, text.title, notes)),
    }
    return write_all({directory / name: make for name, make in made.items()})
