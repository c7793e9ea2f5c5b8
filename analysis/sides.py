"""One side of a comparison: the records of one or more processes, and what they were measured under.

A process is a run; of a run's record that is there twice the last one counts, and a failure that its own file repeats
with success is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.comparable import PREFIX, conditions
from analysis.flags import doubted
from analysis.frame import Loaded, load
from analysis.methods import METHOD
from bench.record import Environment, RecordError, Status

KEY = ["case_id", "device", *METHOD]
"""What the rows of two sides join on."""
UNTIMED = (Status.SKIPPED, Status.UNSUPPORTED)
"""Statuses of a case that nobody expected a time of."""


def side_of(paths: Sequence[Path]) -> Loaded:
    """The records of one side, beside `analysis.frame`'s columns with conditions, taken_at, uuid, file, doubted.

    Args:
        paths: record files; directories with a `records.jsonl`, or whose directories have one: a process each.

    Raises:
        RecordError: a file that cannot be used.
    """
    parts: list[pd.DataFrame] = []
    known: dict[str, Environment] = {}
    for file in dict.fromkeys(file for path in paths for file in _files(path)):
        loaded = load([file], untold_schema=True)
        environments = loaded.environments
        known |= environments
        frame = loaded.frame.assign(
            file=str(file),
            doubted=doubted(loaded.frame),
            taken_at=loaded.frame["run"].map({run: e.taken_at or "" for run, e in environments.items()}),
            uuid=loaded.frame["run"].map({run: e.uuid or "" for run, e in environments.items()}),
        )
        parts.append(pd.concat([frame, conditions(loaded)], axis=1))
    side = pd.concat(parts, ignore_index=True)
    names = [c for c in side.columns if c.startswith(PREFIX)]
    side = side.assign(**{name: side[name].fillna("") for name in names}).drop_duplicates([*KEY, "run"], keep="last")
    failed = ~side["status"].isin([Status.OK, *UNTIMED])
    again = side.duplicated([*KEY, "file"], keep="last")
    return Loaded(side[~(failed & again)].reset_index(drop=True), known)


def _files(path: Path) -> list[Path]:
    if not path.is_dir() or (path / "records.jsonl").exists():
        return [path / "records.jsonl" if path.is_dir() else path]
    found = sorted(path.glob("*/records.jsonl"))
    if not found:
        raise RecordError(f"{path}: no records.jsonl in it or in its directories; wanted those of `bench run -o DIR`")
    return found
