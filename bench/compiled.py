"""Compile records: what the compiler made of one kernel of one case, in one line of JSON.

A file is JSON lines like a run's records: a header with the environment, then the records. Beside it lie the listings
(SASS without what the analysis does not read), one for each distinct cubin. Standard library only, since the analysis
imports this without torch; what the instructions mean is left to it.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.record import Environment, RecordError, write_atomically

COMPILE_SCHEMA = 1
RECORDS, LISTINGS = "compiled.jsonl", "sass"
SHA_DIGITS = 16
"""Of a listing's sha256 in its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRecord:
    """One kernel of one case, compiled for one arch; or why the case did not compile.

    Attributes:
        case: id, op, provider, phase, dtype, axes: the shape bucket's representative.
        config: launch parameters; default tells whether the op would choose it by itself.
        arch: 90 for sm_90.
        error: first line of what the compiler said; everything below is then empty.
        launch: place among the case's launches, from 0.
        kernel: its name.
        registers, stack_bytes: of a thread.
        spill_loads, spill_stores: LDL and STL in the code.
        shared_bytes: of a block.
        num_warps: after specialisation, producer warps included.
        grid: programs of the launch along x, y, z.
        engaged: option that was asked for -> whether the compiled kernel has it.
        loops: of each of Triton's innermost loops the `warps` that run it, `flops` of a block's trip, and `loads`:
            argument and its role, kind (tma, cp.async, ldg), bytes, and slots of the buffer it fills (0: registers).
        cubin_sha256: of the whole cubin, line numbers and the source's path included.
        listing: file of its listing, named by its content; several kernels may share one.
        seconds: compile time; null where Triton's cache had it.
        triton, ptxas: versions.
    """

    case: Mapping[str, Any]
    config: Mapping[str, Any]
    default: bool
    arch: int
    triton: str
    ptxas: str = ""
    error: str = ""
    launch: int = 0
    kernel: str = ""
    registers: int = 0
    stack_bytes: int = 0
    spill_loads: int = 0
    spill_stores: int = 0
    shared_bytes: int = 0
    num_warps: int = 0
    grid: tuple[int, ...] = ()
    engaged: Mapping[str, bool] = field(default_factory=dict)
    loops: tuple[Mapping[str, Any], ...] = ()
    cubin_sha256: str = ""
    listing: str = ""
    seconds: float | None = None
    schema: int = COMPILE_SCHEMA


def listing_name(listing: str) -> str:
    """The file of a listing, the same wherever the kernel was compiled."""
    return f"{hashlib.sha256(listing.encode()).hexdigest()[:SHA_DIGITS]}.sass.gz"


class CompileWriter:
    """Writes a new file of compile records, one durable line each, and the listings beside it.

    Raises:
        RecordError: the directory has such a file already.
    """

    def __init__(self, directory: Path, environment: Environment) -> None:
        self.directory = directory
        path = directory / RECORDS
        if path.exists():
            raise RecordError(f"{path} is there already: name another directory with -o, or remove it")
        directory.mkdir(parents=True, exist_ok=True)
        self._file = path.open("x", encoding="utf-8", errors="backslashreplace", newline="\n")
        self._line({"kind": "compile", "schema": COMPILE_SCHEMA, "environment": dataclasses.asdict(environment)})

    def append(self, record: CompileRecord, listing: str) -> None:
        """Writes the listing, unless another record's kernel is the same, and then the record, and fsyncs."""
        target = self.directory / LISTINGS / record.listing
        if listing and not target.exists():
            write_atomically(target, gzip.compress(listing.encode(), mtime=0))
        fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
        needed = ("case", "config")
        self._line({name: value for name, value in fields.items() if name in needed or value not in ("", (), {}, None)})

    def _line(self, fields: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(fields, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> CompileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_compiled(path: Path) -> tuple[Environment, list[CompileRecord]]:
    """The environment and the records of a file, or of the directory that holds it.

    Raises:
        RecordError: a file that cannot be read, is cut off, or is of another schema.
    """
    path = path if path.is_file() else path / RECORDS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    if not lines:
        raise RecordError(f"{path}: empty; wanted JSON lines as `python -m bench compile -o DIR` writes them")
    header, *rest = [_fields(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    if "environment" not in header:
        raise RecordError(f"{path}:1: no header; wanted the first line of `python -m bench compile -o DIR`")
    try:
        environment = Environment(**header["environment"])
        records = [CompileRecord(**fields) for fields in rest]
    except TypeError as error:
        raise RecordError(f"{path}: not compile records of this version: {error}") from error
    if not records:
        raise RecordError(f"{path}: a header but no records: nothing was compiled")
    return environment, records


def read_listing(directory: Path, record: CompileRecord) -> str:
    """The listing of a record's kernel.

    Raises:
        RecordError: it is not there, or cut off.
    """
    path = directory / LISTINGS / record.listing
    try:
        return gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError) as error:
        raise RecordError(f"{path}: the listing of {record.kernel} cannot be read: {error}") from error


def _fields(line: str, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{where}: the line is cut off or not JSON ({error}): compile again") from error
    if not isinstance(fields, dict) or fields.get("schema") != COMPILE_SCHEMA:
        found = fields.get("schema") if isinstance(fields, dict) else None
        raise RecordError(f"{where}: schema {found!r}, this version reads {COMPILE_SCHEMA}: compile again")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
