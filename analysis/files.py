"""Writes the files of a report, each replaced as a whole; one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from bench.record import write_atomically


def write_all(made: Mapping[Path, Callable[[], str | bytes]]) -> list[str]:
    """Makes and writes each file; a line for each that could not be."""
    problems = []
    for path, make in made.items():
        try:
            write_atomically(path, make())
        except Exception as error:  # whatever one output dies of, the others are still worth having
            problems.append(f"{path}: not written: {type(error).__name__}: {error}")
    return problems
