"""Records: what one case did, in one line of JSON; written as the run goes, read back whole or not at all.

A record holds what was observed or declared and never a ratio: rates are made in `analysis.metrics`. A file is JSON
lines: a header `{"run": ..., "environment": ...}`, then the records of that run, each naming it; several runs may
follow one another in a file. Standard library only, since the analysis imports this without torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
CASE_KEYS = ("id", "op", "provider", "phase", "dtype")
"""What every record's case must have; more is welcome."""
TORN = "the line is cut off (the run was killed here?): go on with `run -o DIR --resume`, or remove it"


class RecordError(ValueError):
    """A records file that cannot be used; the message names file, line and what is wrong."""


class Status(StrEnum):
    """How a case ended. Only OK has times; every other has a detail."""

    OK = "OK"
    SKIPPED = "SKIPPED"
    UNSUPPORTED = "UNSUPPORTED"
    INCORRECT = "INCORRECT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    TIMEOUT = "TIMEOUT"
    CRASHED = "CRASHED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine and the software of a run. None is 'not reported', never a guess."""

    device_type: str = "cpu"
    device_name: str | None = None
    compute_capability: str | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None
    memory_bus_bits: int | None = None
    memory_clock_mhz: int | None = None
    l2_bytes: int | None = None
    max_sm_clock_mhz: int | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None
    mig: bool | None = None
    uuid: str | None = None
    driver: str | None = None
    cuda: str | None = None
    threads: int | None = None
    os: str | None = None
    python: str | None = None
    torch: str | None = None
    triton: str | None = None
    ptxas: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    dirty: bool | None = None
    taken_at: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One case, observed once.

    Attributes:
        run: id of the run, found with its environment in the file's header.
        case: id, op, provider, dtype, phase, technique, axes, source, and storage where it differs.
        config: launch parameters of the kernel.
        work: flops, bytes, overhead_bytes, counting version: declared, not measured.
        timer, launch: cuda_graph, cuda_event, cupti, cpu_wall, published: the one used; graph, stream, pdl, call.
        cache, regime: cold, flush, hot, resident, or as published; burst or sustained.
        asked: cache, regime, timer and inputs as they were asked for: not always what could be had.
        times_us: microseconds per launch, unrounded, in the order taken; empty unless OK.
        launches_per_sample, warm_up_samples: launches that one of `times_us` is the mean of; samples thrown away first.
        first_call_us: the first call, with compilation (`phases_s` has it apart) and set-up in it.
        error: maximum and RMS error of the output and of the yardstick, and their limits.
        telemetry: clocks, power, throttling before and after; null where nothing reports them.
        data: input distribution and seed.
        kernel: facts of what really ran: an SDPA backend, registers, a compiled kernel's hash.
        includes, flags: work timed beyond the op, in published ones; suspect, throttled, contended, gaps.
        phases_s: seconds of each step, apart: compile is part of first_call, worker_start of its first case alone.
    """

    run: str
    case: Mapping[str, Any]
    status: Status
    detail: str = ""
    work: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    timer: str = ""
    cache: str = ""
    regime: str = ""
    launch: str = ""
    asked: Mapping[str, str] = field(default_factory=dict)
    times_us: tuple[float, ...] = ()
    launches_per_sample: int = 1
    warm_up_samples: int = 0
    first_call_us: float | None = None
    stop_reason: str = ""
    error: Mapping[str, float] = field(default_factory=dict)
    telemetry: Mapping[str, Any] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    kernel: Mapping[str, Any] = field(default_factory=dict)
    includes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    phases_s: Mapping[str, float] = field(default_factory=dict)
    source_sha256: str = ""
    taken_at: str = ""
    schema: int | None = SCHEMA_VERSION
    environment: Environment | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.status is Status.OK:
            bad = [t for t in self.times_us if not (math.isfinite(t) and t >= 0)]
            if not self.times_us or bad:
                raise ValueError(f"{self.case.get('id')}: status OK needs finite times >= 0, got {bad or 'none'}")
        elif self.times_us:
            raise ValueError(f"{self.case.get('id')}: status {self.status} must have no times")
        elif not self.detail:
            raise ValueError(f"{self.case.get('id')}: status {self.status} needs a detail that says why")

    def to_json(self) -> str:
        """One line, without the environment (that stands in the header) and without what is empty."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "environment"}
        told = {name: value for name, value in fields.items() if value not in ("", (), {})}
        return json.dumps(told, ensure_ascii=False, allow_nan=False)


KNOWN_FIELDS: Mapping[type[Any], frozenset[str]] = {
    kind: frozenset(f.name for f in dataclasses.fields(kind)) for kind in (Environment, Record)
}
OBJECTS = frozenset(("case", *(f.name for f in dataclasses.fields(Record) if f.default_factory is dict), "packages"))
"""Fields that hold an object."""


def header_json(run: str, environment: Environment) -> str:
    """The line that opens a run."""
    return json.dumps(
        {"run": run, "schema": SCHEMA_VERSION, "environment": dataclasses.asdict(environment)},
        ensure_ascii=False,
        allow_nan=False,
    )


class RecordWriter:
    """Appends a run to a file, one durable line a record: what was measured survives the next crash.

    Raises:
        RecordError: a file of another schema, foreign or with a torn line: what is appended could not be read.
    """

    def __init__(self, path: Path, run: str, environment: Environment) -> None:
        self.path, self.run = path, run
        path.parent.mkdir(parents=True, exist_ok=True)
        there = path.read_bytes() if path.exists() else b""
        if there and not there.endswith(b"\n"):
            raise RecordError(f"{path}: the last line is cut off; go on with --resume, or write to another directory")
        if there:
            _parse(there[: there.index(b"\n")].decode(errors="replace"), f"{path}:1", last=False)
        # A lone surrogate (a message with an undecodable file name in it) becomes the JSON escape it is: \udcff.
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n")
        self._line(header_json(run, environment))

    def append(self, record: Record) -> None:
        """Writes, flushes and fsyncs one record of this run."""
        if record.run != self.run:
            raise ValueError(f"record of run {record.run!r} does not belong in run {self.run!r}")
        self._line(record.to_json())

    def _line(self, text: str) -> None:
        self._file.write(text + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def read_records(path: Path, *, may_be_empty: bool = False, untold_schema: bool = False) -> list[Record]:
    """All records of a file, each with its run's environment; schema None where `untold_schema` lets one be missing.

    Raises:
        RecordError: missing, truncated, foreign or future-schema file; or one of no records, unless it `may_be_empty`.
    """
    text = _text_of(path)
    if not text.strip() and not may_be_empty:
        raise RecordError(f"{path}: empty; wanted JSON lines as `python -m bench run -o DIR` writes them")
    records: list[Record] = []
    environments: dict[str, Environment] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        fields = _parse(line, where, last=number == len(lines), untold=untold_schema)
        if "environment" in fields:
            environments[fields["run"]] = _build(Environment, fields["environment"], where)
            continue
        if fields["run"] not in environments:
            raise RecordError(f"{where}: record of run {fields['run']!r} before that run's header line")
        records.append(_record(fields, environments[fields["run"]], where))
    if not records and not may_be_empty:
        raise RecordError(f"{path}: a header but no records: nothing was measured in this run")
    return records


def record_of_line(line: str, environment: Environment) -> Record:
    """One record of a run in this environment, from its line. Raises RecordError."""
    return _record(_parse(line, "record", last=False), environment, "record")


def _text_of(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        torn = b"\n" not in data[error.start :]
        raise RecordError(f"{path}:{line}: {TORN if torn else 'not UTF-8'} ({error.reason})") from error


def _parse(line: str, where: str, *, last: bool, untold: bool = False) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: {TORN if last else 'not JSON'} ({getattr(error, 'msg', error)})") from error
    untold = untold and isinstance(fields, dict) and fields.setdefault("schema") is None
    if not isinstance(fields, dict) or not isinstance(fields.get("run"), str) or "schema" not in fields:
        raise RecordError(f"{where}: not a Roofmark record: wanted an object with 'run' and 'schema'")
    if fields["schema"] != SCHEMA_VERSION and not untold:
        raise RecordError(
            f"{where}: schema {fields['schema']!r}, this version reads {SCHEMA_VERSION}: "
            "use the Roofmark that wrote it, or measure again"
        )
    return fields


def _record(fields: dict[str, Any], environment: Environment, where: str) -> Record:
    record: Record = _build(Record, fields, where, environment=environment)
    if missing := ", ".join(key for key in CASE_KEYS if key not in record.case):
        raise RecordError(f"{where}: the case has no {missing}")
    return record


def _build(kind: type[Any], fields: object, where: str, **extra: Any) -> Any:
    if not isinstance(fields, dict):
        raise RecordError(f"{where}: {kind.__name__} must be an object, got {fields!r}")
    if unknown := fields.keys() - KNOWN_FIELDS[kind]:
        raise RecordError(f"{where}: unknown field(s) {', '.join(sorted(unknown))} in {kind.__name__}")
    for name, value in fields.items():
        if name in OBJECTS and not isinstance(value, dict):
            raise RecordError(f"{where}: {name} must be an object, got {value!r}")
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    try:
        if "status" in values:
            values["status"] = Status(values["status"])
        return kind(**values, **extra)
    except (AttributeError, TypeError, ValueError) as error:
        raise RecordError(f"{where}: {error}") from error


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces a file as a whole: a reader, or a kill, sees the old content or the new one.

    Text is UTF-8 with LF. The temporary file has a name of its own, so writers of one target do not meet.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
