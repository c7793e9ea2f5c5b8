"""`python -m analysis roofline`: a run under its roofs, as figure, tables and one sentence a family.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.record import RecordError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.compiled import Kernel
    from analysis.frame import Loaded
    from analysis.roofline import Device

USAGE, NOTHING, PARTLY = 2, 3, 4
"""Exit codes: unreadable records or wrong use; no measured case; an output that failed among good ones."""
ROWS = 40
"""Rows of a table on the terminal unless told otherwise."""


def roofline(
    records: Annotated[
        list[Path] | None,
        typer.Argument(help="records.jsonl files, or directories with one. None: the newest run under reports/."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Directory for the files. Default: beside the first records.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="Rows of each table on the terminal; 0 prints all.")] = ROWS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of tables.")] = False,
    compiled: Annotated[
        Path | None, typer.Option(help="Directory of `bench compile`: its kernels' ceilings are ticks under the roof.")
    ] = None,
) -> None:
    """Places measured cases under the roofs of their device and says what bounds each.

    Writes roofline.png, roofline.svg, table.md and points.csv. Exit code 2: records that cannot be used; 3: no
    measured case; 4: an output that could not be written.
    """
    from analysis.roofline import points
    from analysis.runs import with_roofs
    from analysis.tables import status_lines

    try:
        paths, loaded = load_runs(records or [])
        kernels = kernels_of(compiled)
    except RecordError as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE) from error
    # Named and counted before the roofs of another run come in.
    notes, statuses = run_lines(loaded), status_lines(loaded.frame)
    runs = list(loaded.environments)
    title = f"Roofline of run {', '.join(runs)}" if len(runs) < 4 else f"Roofline of {len(runs)} runs"
    loaded, found, warnings = with_roofs(loaded, paths)
    frame, devices = points(loaded)
    frame = with_compiled(frame, loaded, kernels)
    present(
        frame, devices, output or paths[0].parent, title,
        statuses=statuses, notes=[*notes, *found], warnings=warnings, rows=rows, as_json=as_json,
    )  # fmt: skip


def load_runs(records: Sequence[Path]) -> tuple[list[Path], Loaded]:
    """The records' files, and what they hold; without any, the newest run under `reports/`.

    Raises:
        RecordError: there is none, or one cannot be used.
    """
    from analysis.frame import load
    from analysis.runs import REPORTS, newest_run

    if not records:
        newest = newest_run()
        if newest is None:
            raise RecordError(f"no run under {REPORTS}/: name its records, or make one with `python -m bench run`")
        records = [newest]
    paths = [path / "records.jsonl" if path.is_dir() else path for path in records]
    return paths, load(paths)


def kernels_of(compiled: Path | None) -> list[Kernel]:
    """The kernels in a directory of `bench compile`; none without one."""
    if compiled is None:
        return []
    from analysis.compiled import load_kernels

    return load_kernels(compiled)[2]


def with_compiled(frame: pd.DataFrame, loaded: Loaded, kernels: Sequence[Kernel]) -> pd.DataFrame:
    """Adds the ceilings of compiled kernels to classified points; without kernels the points as they are."""
    if not kernels or frame.empty:
        return frame
    from analysis.compile_ceilings import with_compile_ceilings

    told = {name: loaded.environment_of(name).compute_capability or "" for name in frame["device"].unique()}
    archs = {name: int(text.replace(".", "")) for name, text in told.items() if text.replace(".", "").isdecimal()}
    return with_compile_ceilings(frame, kernels, archs)


def run_lines(loaded: Loaded) -> list[str]:
    """One line a run: its id, when it was taken, and the versions that decide its speed."""
    lines = []
    for run, e in loaded.environments.items():
        commit = (e.commit or "")[:12] + (" with changes" if e.dirty else "")
        told = {"taken": e.taken_at, "torch": e.torch, "triton": e.triton, "driver": e.driver, "commit": commit}
        lines.append(", ".join([f"run {run}", *(f"{k} {v}" for k, v in told.items() if v)]))
    return lines


def present(
    frame: pd.DataFrame,
    devices: Sequence[Device],
    directory: Path,
    title: str,
    *,
    statuses: Sequence[str],
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    rows: int = ROWS,
    as_json: bool = False,
) -> None:
    """Writes the files and prints the tables (or the one JSON document) of classified points.

    Raises:
        typer.Exit: with 3 where there is no point, with 4 where an output could not be written.
    """
    from analysis.outputs import write_report

    problems = write_report(frame, devices, directory, title, statuses, [*notes, *warnings])
    for line in [*warnings, *problems]:
        typer.echo(f"warning: {line}", err=True)
    if as_json:
        document = _document(frame, devices, title, statuses, notes)
        typer.echo(json.dumps(document | {"output": str(directory), "problems": problems}, ensure_ascii=False))
    else:
        _print(frame, devices, title, statuses, notes, rows or sys.maxsize)
        typer.echo(f"files: {directory}")
    if frame.empty:
        typer.echo("no case was measured: there is nothing to place under a roof", err=True)
        raise typer.Exit(NOTHING)
    if problems:
        raise typer.Exit(PARTLY)


def _print(
    frame: pd.DataFrame, devices: Sequence[Device], title: str, statuses: Sequence[str], notes: Sequence[str], rows: int
) -> None:
    from rich.console import Console

    from analysis.tables import compared_tables, family_lines, for_terminal, points_tables, provenance

    # Into a pipe there is no width to fit: rows stay on one line and can be searched.
    console = Console(width=None if sys.stdout.isatty() else 240, markup=False, highlight=False, emoji=False)
    for line in [title, *statuses, *notes]:
        console.print(line, soft_wrap=True)
    for table in [*compared_tables(frame), *points_tables(frame)]:
        if table.rows:
            console.print(for_terminal(table, rows))
        if len(table.rows) > rows:
            console.print(f"{len(table.rows) - rows} more rows: --rows 0 prints all, the files have them")
        if table.note:
            console.print(table.note, soft_wrap=True)
    for line in [*family_lines(frame), *provenance(frame, devices)]:
        console.print(line, soft_wrap=True)


def _document(
    frame: pd.DataFrame, devices: Sequence[Device], title: str, statuses: Sequence[str], notes: Sequence[str]
) -> dict[str, Any]:
    from analysis.families import families
    from analysis.outputs import point_columns
    from analysis.providers import geomeans, provider_table

    compared = provider_table(frame)
    document = {
        "title": title,
        "statuses": list(statuses),
        "notes": list(notes),
        "devices": [_device(device) for device in devices],
        "providers": {
            "note": compared.note,
            "baseline": compared.baseline,
            "times_us": compared.times.to_dict("records"),
            "geomeans": geomeans(compared).to_dict("records"),
        },
        "families": families(frame).to_dict("records"),
        "points": point_columns(frame).astype("object").to_dict("records"),
    }
    return {name: _plain(value) for name, value in document.items()}


def _device(device: Device) -> dict[str, Any]:
    sets = {roofs.kind: roofs for roofs in (device.datasheet, device.measured) if roofs}
    return {
        "name": device.name,
        "recognised": device.recognised,
        "peaks": device.peaks.device if device.peaks else None,
        "roofs": {
            kind: {
                "tflops": dict(roofs.tflops), "dram_gb_per_s": roofs.dram_gb_per_s, "launch_us": roofs.launch_us,
                "source": roofs.source,
            }
            for kind, roofs in sets.items()
        },
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """The value with null for what is not there: JSON has no NaN."""
    import pandas as pd

    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value.item() if hasattr(value, "item") else value
