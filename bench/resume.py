"""Going on with a run that ended early: what of it is on disk, and counts.

A record counts for a case when id, method asked for, environment and source are the same and it ended for good.
Standard library and `bench.record` only: a caller brings what its cases run now.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.record import Environment, Record, Status, read_records

DONE = (Status.OK, Status.UNSUPPORTED, Status.SKIPPED)
"""What would end the same way again; everything else is tried once more."""
STABLE = ("device_name", "sm_count", "memory_bytes", "driver", "torch", "triton", "cuda")
"""Fields of an environment that decide a time and stay from run to run."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a case would run now.

    Attributes:
        source_sha256: of the code.
        asked: the method, as records hold it: a cold record is no answer where a hot one is asked for.
    """

    source_sha256: str
    asked: Mapping[str, str]


def measured_as(record: Record) -> tuple[str, ...]:
    """What two records of one run must share to be the same measurement: the case and the method asked for."""
    return (record.case["id"], *(f"{name}={value}" for name, value in sorted(record.asked.items())))


def fingerprint(environment: Environment | None) -> tuple[object, ...]:
    """What two environments must share for a record of one to stand for the other."""
    return tuple(getattr(environment, name, None) for name in STABLE)


def cut_torn_line(path: Path) -> int:
    """Cuts off what follows the last newline of a records file; says how many bytes that was."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            file.truncate(whole)
            os.fsync(file.fileno())
    return len(data) - whole


def done_before(path: Path, environment: Environment, wanted: Mapping[str, Wanted]) -> dict[str, Record]:
    """The records of a file that need not be made again, by case id; the last of a case counts.

    Args:
        path: a file without a torn line; it may be missing.
        environment: where the cases would run now.
        wanted: case id -> what would run now.

    Raises:
        RecordError: a file that cannot be read.
    """
    if not path.exists():
        return {}
    last = {
        record.case["id"]: record
        for record in read_records(path, may_be_empty=True)
        if Wanted(record.source_sha256, record.asked) == wanted.get(record.case["id"])
        and fingerprint(record.environment) == fingerprint(environment)
    }
    return {case_id: record for case_id, record in last.items() if record.status in DONE}
