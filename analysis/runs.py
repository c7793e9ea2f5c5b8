"""Finding runs under `reports/`: the newest one, and the newest measured roofs of a device."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from analysis.frame import ROOF_OPS, Loaded, device_label, load
from analysis.roofline import devices, own_roofs
from bench.record import Environment, RecordError

REPORTS = Path("reports")
MAKE_ROOFS = "`python -m bench peaks` measures them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A records file under `reports/`, and when its last run was taken."""

    path: Path
    taken_at: datetime


def runs_under(reports: Path) -> list[Found]:
    """All `records.jsonl` under a directory, newest first: by the header's taken_at, else by the file's time."""
    found = [Found(path=path, taken_at=_taken_at(path)) for path in reports.rglob("records.jsonl")]
    return sorted(found, key=lambda f: (f.taken_at, str(f.path)), reverse=True)


def newest_run(reports: Path = REPORTS) -> Path | None:
    """The newest records file with measured cases; one with roofs alone is no run to report on.

    Published records come only where nothing was measured: writing them out again makes them no newer run. A file
    that cannot be read counts as measured, so that its fault is told and no older run takes its place.
    """
    published = None
    for found in runs_under(reports):
        kind = _kind(found.path)
        if kind == "measured":
            return found.path
        if kind == "published" and published is None:
            published = found.path
    return published


def with_roofs(loaded: Loaded, given: Collection[Path], reports: Path = REPORTS) -> tuple[Loaded, list[str], list[str]]:
    """Adds the newest roofs found under `reports/` for each device that has measured none in these records.

    Args:
        loaded: the records to report on.
        given: the files they came from, which are not searched again.

    Returns:
        The records, with the found roof records; notes that say which run they came from; warnings for the devices
        that have none.
    """
    notes, warnings = [], []
    for device in devices(loaded):
        if device.measured is not None or not device.name:
            continue
        environment = loaded.environment_of(device.name)
        other = _newest_roofs(environment, {p.resolve() for p in given}, reports)
        if other is None:
            warnings.append(f"{device.name}: no measured roofs in these records or under {reports}/: {MAKE_ROOFS}")
            continue
        rows, path = other
        run = str(rows["run"].iloc[-1])
        notes.append(f"roofs of {device.name} are those of run {run} ({path})")
        frame = pd.concat([loaded.frame, rows], ignore_index=True)
        loaded = replace(loaded, frame=frame, environments={run: environment} | loaded.environments)
    return loaded, notes, warnings


def _newest_roofs(environment: Environment, given: set[Path], reports: Path) -> tuple[pd.DataFrame, Path] | None:
    for found in runs_under(reports):
        if found.path.resolve() in given or not any(_same_device(e, environment) for e in _environments(found.path)):
            continue
        try:
            other = load([found.path])
        except RecordError:
            continue
        same = [run for run, e in other.environments.items() if _same_device(e, environment)]
        rows = other.frame[other.frame["run"].isin(same) & other.frame["op"].isin(ROOF_OPS)]
        if own_roofs(rows) is not None:
            return rows.assign(device=device_label(environment)), found.path
    return None


def _same_device(one: Environment, other: Environment) -> bool:
    """The same name; and no count of cores that differs, since a MIG slice or fewer threads have other roofs."""
    pairs = [(one.sm_count, other.sm_count), (one.threads, other.threads if other.device_type == "cpu" else None)]
    alike = all(a is None or b is None or a == b for a, b in pairs)
    return one.device_type == other.device_type and device_label(one) == device_label(other) and alike


def _headers(path: Path) -> Iterator[dict[str, object]]:
    """The environments in a file's header lines, as far as they can be read."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line in file:
                if '"environment"' in line:
                    fields = json.loads(line)
                    if isinstance(fields, dict) and isinstance(fields.get("environment"), dict):
                        yield fields["environment"]
    except (OSError, ValueError):
        return


def _environments(path: Path) -> list[Environment]:
    names = ("device_type", "device_name", "sm_count", "threads")
    return [Environment(**{n: h[n] for n in names if n in h}) for h in _headers(path)]  # type: ignore[arg-type]


def _taken_at(path: Path) -> datetime:
    times = [moment(str(h.get("taken_at") or "")) for h in _headers(path)]
    known = [t for t in times if t is not None]
    return max(known) if known else datetime.fromtimestamp(path.stat().st_mtime, UTC)


def moment(text: str) -> datetime | None:
    """A time of a record; in UTC where it names no zone, None where it is none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _kind(path: Path) -> str:
    """What a file holds: measured, published or roofs."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            records = [r for r in (json.loads(line) for line in file if line.strip()) if "environment" not in r]
        cases = [r for r in records if r["case"]["op"] not in ROOF_OPS]
        if records and not cases:
            return "roofs"
        return "published" if cases and all(r.get("timer") == "published" for r in cases) else "measured"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return "measured"
