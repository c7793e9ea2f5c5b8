"""`bench merge`: the records of several runs, shards of one sweep say, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.record import Environment, Record, header_json, read_records, write_atomically
from bench.resume import measured_as
from bench.selection import exit_codes, stderr

RECORDS = "records.jsonl"


def merge(
    runs: Annotated[list[Path], typer.Argument(help=f"Directories with a {RECORDS}, or such files.")],
    output: Annotated[Path, typer.Option("--output", "-o", help=f"Directory for the one {RECORDS}; a new one.")],
) -> None:
    """Join records files, all runs with their headers; of a run's record that is there twice the last one stays.

    Exit code 2: a file that cannot be read, or an output that is there already; nothing is written.
    """
    with exit_codes():
        target = output / RECORDS
        if target.exists():
            raise ValueError(f"{target} is there already: name another directory with -o, or remove it")
        records = [
            record for run in runs for record in read_records(run / RECORDS if run.is_dir() or not run.suffix else run)
        ]
        text, kept = merged_text(records)
        write_atomically(target, text)
    if kept < len(records):
        stderr.print(f"{len(records) - kept} of {len(records)} records were there twice: the last one stays")
    typer.echo(f"{kept} records of {len({record.run for record in records})} runs: {target}")


def merged_text(records: Sequence[Record]) -> tuple[str, int]:
    """A records file's content: each run's header before its records; and how many records that is.

    Raises:
        ValueError: two environments for one run.
    """
    runs: dict[str, tuple[Environment, dict[tuple[str, ...], Record]]] = {}
    for record in records:
        environment = record.environment or Environment()
        of_run = runs.setdefault(record.run, (environment, {}))
        if of_run[0] != environment:
            raise ValueError(f"run {record.run} has two environments in these files: one of them was edited")
        of_run[1].pop(measured_as(record), None)
        of_run[1][measured_as(record)] = record
    lines: list[str] = []
    for run, (environment, measured) in runs.items():
        lines += [header_json(run, environment), *(record.to_json() for record in measured.values())]
    return "".join(f"{line}\n" for line in lines), sum(len(measured) for _, measured in runs.values())
