"""Kept baselines: the newest run under `reports/baselines/<device>/` that a candidate can be compared with.

A baseline is a directory there: of one run, or of one run a process. Whether it is comparable is for
`analysis.compare` to say: one that shares no case under the same conditions is passed over, and the reason told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from analysis.compare import Comparison
from analysis.frame import Loaded
from analysis.runs import moment
from analysis.sides import side_of
from analysis.verdicts import COMPARED
from bench.record import RecordError

BASELINES = Path("reports", "baselines")
UNKNOWN = datetime.min.replace(tzinfo=UTC)
HOW = "keep one with `python -m bench run ... -o reports/baselines/DEVICE/DATE`"


class NoBaselineError(Exception):
    """No kept baseline fits; the message says why none did, one line each."""


@dataclass(frozen=True, slots=True)
class Found:
    """A baseline that fits.

    Attributes:
        side: its records.
        comparison: of it and the candidate.
        told: which it is, its age and its commit.
    """

    side: Loaded
    comparison: Comparison
    told: str


def newest_comparable(candidate: Loaded, compared: Callable[[Loaded], Comparison], root: Path = BASELINES) -> Found:
    """The newest baseline of which at least one case can be compared.

    Args:
        candidate: its environments say when it was taken.
        compared: compares a baseline with the candidate.
        root: holds a directory a device, each with one a baseline.

    Raises:
        NoBaselineError: there is none, or none can be compared.
    """
    refused, sides = [], []
    for directory in sorted(p for device in _directories(root) for p in _directories(device)):
        try:
            side = side_of([directory])
        except RecordError as error:
            refused.append(str(error))
            continue
        sides.append((_taken(side), str(directory), side))
    for taken, path, side in sorted(sides, key=lambda found: found[:2], reverse=True):
        comparison = compared(side)
        if comparison.cases["verdict"].isin(COMPARED).any():
            return Found(side, comparison, _told(path, side, taken, _taken(candidate)))
        reasons = dict.fromkeys(comparison.cases["reason"])
        refused.append(f"{path}: {'; '.join(list(reasons)[:3]) or 'no case'}")
    if not refused:
        raise NoBaselineError(f"no baseline under {root}/: {HOW}")
    raise NoBaselineError("\n".join([f"no baseline under {root}/ can be compared:", *refused, HOW]))


def _directories(path: Path) -> list[Path]:
    return [child for child in path.iterdir() if child.is_dir()] if path.is_dir() else []


def _taken(side: Loaded) -> datetime:
    """When the last run of a side was taken; UNKNOWN where none tells."""
    times = [moment(e.taken_at or "") for e in side.environments.values()]
    return max((time for time in times if time), default=UNKNOWN)


def _told(path: str, side: Loaded, taken: datetime, candidate: datetime) -> str:
    commits = dict.fromkeys(e.commit[:12] for e in side.environments.values() if e.commit)
    when, days = f"taken {taken.isoformat()}", (candidate - taken).days
    when += f", {days} days before the candidate" if days > 0 else ", less than a day before the candidate"
    if UNKNOWN in (taken, candidate):
        when = "of unknown age"
    return f"baseline {path}: {when}, commit {', '.join(commits) or 'unknown'}"
