"""`python -m analysis compile`: what compile records mean, and whether they are worse than a baseline's.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analysis.files import write_all
from bench.record import RecordError

if TYPE_CHECKING:
    from analysis.compiled import Kernel
    from bench.compiled import CompileRecord

USAGE, NOTHING, PARTLY, REGRESSED = 2, 3, 4, 1
"""Exit codes: unusable records; no kernel in them; an output that failed; worse than the baseline."""


def compile_report(
    records: Annotated[Path, typer.Argument(help="Directory of `python -m bench compile -o`, or its file.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Directory for the files. Default: beside the records.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Compare with these older records; exit code 1 when worse; -o then gets changes.md."),
    ] = None,
) -> None:
    """Tells what the compiler made of each kernel: pipes, ceilings, spills, options that did not engage.

    Writes kernels.csv, table.md and pipes.png (of each arch where there are several). Nothing is measured. Exit code
    1: worse than the baseline; 2: unusable records; 3: no kernel in them; 4: an output that could not be written.
    """
    from analysis.compiled import load_kernels

    try:
        _, failed, kernels = load_kernels(records)
        older = load_kernels(baseline)[2] if baseline else []
    except RecordError as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE) from error
    if baseline:
        _compare(older, kernels, failed, output)
        return
    directory = output or (records if records.is_dir() else records.parent)
    problems = write_all(outputs(kernels, failed, directory))
    for line in problems:
        typer.echo(f"warning: {line}", err=True)
    _tell(kernels, failed)
    typer.echo(f"files: {directory}")
    if not kernels:
        typer.echo("no case compiled: there is nothing to tell", err=True)
        raise typer.Exit(NOTHING)
    if problems:
        raise typer.Exit(PARTLY)


def outputs(
    kernels: Sequence[Kernel], failed: Sequence[CompileRecord], directory: Path
) -> dict[Path, Callable[[], str | bytes]]:
    """File -> what makes its content."""
    from analysis.compile_page import on_page, page
    from analysis.compiled import csv_text

    made: dict[Path, Callable[[], str | bytes]] = {directory / "kernels.csv": lambda: csv_text(kernels)}
    archs = sorted({kernel.record.arch for kernel in kernels})
    for arch in archs:
        same = [kernel for kernel in kernels if kernel.record.arch == arch]
        mark = "" if len(archs) == 1 else f"-sm{arch}"
        title = f"What Triton {same[0].record.triton} made of each kernel on sm_{arch}"
        figure = f"pipes{mark}.png"

        def text(same: Sequence[Kernel] = same, arch: int = arch, title: str = title, figure: str = figure) -> str:
            return page(same, [record for record in failed if record.arch == arch], title, figure)

        def drawn(same: Sequence[Kernel] = same, title: str = title) -> bytes:
            # matplotlib takes half a second to import: a broken one must not cost the table either
            from analysis.compile_figure import COLOURS, pipes_figure
            from analysis.panels import png

            return png(pipes_figure(on_page(same), title), colours=COLOURS)

        made |= {directory / f"table{mark}.md": text, directory / figure: drawn}
    return made


def _tell(kernels: Sequence[Kernel], failed: Sequence[CompileRecord]) -> None:
    from analysis.compile_page import complaints

    for line in complaints(kernels, failed):
        typer.echo(line)
    code = len({kernel.record.listing for kernel in kernels})
    typer.echo(f"{len(kernels)} kernels, {code} of them different; {len(failed)} cases do not compile")


def _compare(
    old: Sequence[Kernel], new: Sequence[Kernel], failed: Sequence[CompileRecord], output: Path | None
) -> None:
    from analysis.compile_baseline import compare
    from analysis.compile_changes import changes_page

    problems = write_all({output / "changes.md": lambda: changes_page(old, new)}) if output else []
    for line in problems:
        typer.echo(f"warning: {line}", err=True)
    found = compare(old, new, failed)
    for line in found.regressions:
        typer.echo(line)
    for what, names in (("only in the baseline", found.missing), ("not in the baseline", found.fresh)):
        for name in names:
            typer.echo(f"warning: {what}: {name}", err=True)
    typer.echo(f"{found.compared} kernels compared, {len(found.regressions)} regressions")
    if not found.compared:
        raise typer.Exit(NOTHING)
    if found.regressions:
        raise typer.Exit(REGRESSED)
    if problems:
        raise typer.Exit(PARTLY)
