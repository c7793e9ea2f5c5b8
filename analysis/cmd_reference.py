"""`python -m analysis reference`: published H100 and H200 measurements as records, classified and drawn.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analysis.cmd_roofline import NOTHING, PARTLY, ROWS, USAGE, present

if TYPE_CHECKING:
    import pandas as pd

    from analysis.frame import Loaded
    from analysis.reference import Published

NOTICE = """\
Derived from aiconfigurator-core 0.12.0, Copyright (c) NVIDIA CORPORATION & AFFILIATES, licensed under the Apache
License, Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0). Facts and figures only: shapes and measured
latencies, selected and converted to Roofmark's formats, with counts, rates and classes computed from them.
"""
NOTES = (
    "Source: aiconfigurator-core 0.12.0 (Apache-2.0, NVIDIA). Latencies are means over a few CUDA-graph replays of a "
    "whole operator; clocks, driver, date and spread are not recorded there.",
    "fp8 gemms take bfloat16 activations and quantise them inside the measured time: their bytes count activations "
    "at 2 bytes, and their time is not a bare fp8 kernel's. Queries and outputs of fp8 prefill count 2 bytes too.",
    "Attention and MLA launches share one buffer (cache: hot), which L2 serves where it fits. Gemm weights rotate: "
    "cold only where the copies together fill L2.",
)
NOTES_OF = {
    "sglang": "SGLang's MLA prefill is counted as 192/128 heads, as published; its rate fits the absorbed form, "
    "576/512.",
    "vllm": "vLLM's fp8_block gemms were launched eagerly, with a host-bound floor of 55 to 300 us. Its gemm weights "
    "are uninitialised (bfloat16) or constant (fp8), which may draw less power and clock higher than random data.",
}


DeviceOption = Annotated[str, typer.Option("--device", help="h100 or h200.")]
FrameworkOption = Annotated[
    list[str] | None, typer.Option("--framework", help="Only this framework; may be repeated. Default: all.")
]
VersionOption = Annotated[str, typer.Option("--version", help="This version. Default: the latest of each.")]
OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", help="Directory for the files. Default: under reports/.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Also write every row, classified, as all_rows.parquet.")]
TableOption = Annotated[
    str, typer.Option("--table", help="Only records.jsonl, of every row of this table: what `analysis compare` reads.")
]
RowsOption = Annotated[int, typer.Option(min=0, help="Rows of each table on the terminal; 0 prints all.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of tables.")]


def reference(
    device: DeviceOption,
    framework: FrameworkOption = None,
    version: VersionOption = "",
    output: OutputOption = None,
    every_row: AllOption = False,
    table: TableOption = "",
    rows: RowsOption = ROWS,
    as_json: JsonOption = False,
) -> None:
    """Places published kernel latencies of TensorRT-LLM, vLLM and SGLang under the roofs of their GPU.

    Needs the extra `reference`. Writes records.jsonl, roofline.png, roofline.svg, table.md and points.csv of the
    standard shapes. Exit code 2: an unknown device, framework, version or table; 3: the package is missing, or it has
    none of the standard shapes; 4: an output that could not be written.
    """
    from analysis import reference as published_rows
    from analysis.reference_tables import PackageMissingError
    from analysis.roofline import points

    chosen = tuple(framework or ())
    directory = output or Path("reports", "-".join(["reference", device, *chosen, *filter(None, [version])]))
    try:
        if table:
            typer.echo(_write_table(table, directory, device, chosen, version))
            return
        published = published_rows.standard(device, chosen, version)
        written = [_write_records(published.loaded, directory) + _told(published)]
        if every_row:
            written.append(_write_every_row(directory / "all_rows.parquet", device, chosen, version))
    except (ValueError, PackageMissingError) as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE if isinstance(error, ValueError) else NOTHING) from error
    except OSError as error:
        typer.echo(f"{directory}: cannot be written: {error}", err=True)
        raise typer.Exit(PARTLY) from error
    frame, devices = points(published.loaded)
    versions = ", ".join(f"{name} {number}" for name, number in published.versions.items())
    notes = [*NOTES, *(line for name, line in NOTES_OF.items() if name in published.versions)]
    present(
        frame, devices, directory, f"Published latencies, {device.upper()}: {versions}",
        statuses=written, notes=notes, rows=rows, as_json=as_json,
    )  # fmt: skip


def _write_records(loaded: Loaded, directory: Path) -> str:
    """Writes records.jsonl and NOTICE where there is a row; returns a line that counts."""
    from analysis.reference import records_text
    from bench.record import write_atomically

    if len(loaded.frame):
        write_atomically(directory / "records.jsonl", records_text(loaded))
        write_atomically(directory / "NOTICE", NOTICE)
    return f"{len(loaded.frame)} rows"


def _told(published: Published) -> str:
    measured = published.asked - published.absent
    left_out = {"slower repeats": published.repeats, "rows of undocumented dtypes": published.unknown}
    return (
        f" at {measured} of {published.asked} standard shapes; the other {published.absent} were not measured and are "
        "absent, none is interpolated"
        + "".join(f"; {count} {what} left out" for what, count in left_out.items() if count)
    )


def _write_table(name: str, directory: Path, device: str, frameworks: tuple[str, ...], version: str) -> str:
    """Writes the records of every row of one table; returns a line that counts."""
    import pandas as pd

    from analysis.frame import Loaded
    from analysis.reference import every_row

    parts = list(every_row(device, frameworks, version, table=name))
    environments = {run: environment for part in parts for run, environment in part.environments.items()}
    loaded = Loaded(pd.concat([part.frame for part in parts], ignore_index=True), environments)
    return f"{_write_records(loaded, directory)} of {', '.join(environments)} in {directory / 'records.jsonl'}"


def _write_every_row(path: Path, device: str, frameworks: tuple[str, ...], version: str) -> str:
    """Writes every published row, classified, table by table; returns a line that counts."""
    from analysis import reference as published_rows
    from analysis.roofline import points

    def classified() -> Iterator[pd.DataFrame]:
        for loaded in published_rows.every_row(device, frameworks, version):
            yield points(loaded)[0]

    counts = published_rows.write_parquet(path, classified())
    mla = sum(count for op, count in counts.items() if op.startswith("mla"))
    return f"every row: {sum(counts.values()) - mla} gemm and attention rows and {mla} MLA rows in {path.name}"
