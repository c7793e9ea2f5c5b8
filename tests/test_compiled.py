"""bench.compiled: compile records and listings written, and read back whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.compiled import (
    LISTINGS,
    RECORDS,
    CompileRecord,
    CompileWriter,
    listing_name,
    read_compiled,
    read_listing,
)
from bench.record import Environment, RecordError

LISTING = ".text._k:\nEXIT ;\n"
CASE = {"id": "o/triton/bfloat16/M=1", "op": "o", "provider": "triton", "phase": "decode", "dtype": "bfloat16"}
RECORD = CompileRecord(
    case=CASE,
    config={"num_warps": 4},
    default=True,
    arch=90,
    triton="3.7.1",
    kernel="_k",
    registers=32,
    grid=(8, 1, 1),
    engaged={"tma": False},
    loops=({"warps": 4, "flops": 0, "loads": []},),
    cubin_sha256="ab" * 32,
    listing=listing_name(LISTING),
    seconds=1.5,
)


def written(directory: Path, *records: CompileRecord) -> Path:
    with CompileWriter(directory, Environment(triton="3.7.1")) as writer:
        for record in records:
            writer.append(record, "" if record.error else LISTING)
    return directory / RECORDS


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    failed = CompileRecord(case=CASE, config={}, default=False, arch=90, triton="3.7.1", error="out of shared memory")
    written(tmp_path, RECORD, failed)
    environment, records = read_compiled(tmp_path)
    assert environment.triton == "3.7.1" and records == [RECORD, failed]
    assert read_listing(tmp_path, RECORD) == LISTING
    assert [path.name for path in (tmp_path / LISTINGS).iterdir()] == [listing_name(LISTING)]


def test_two_kernels_of_one_code_share_a_listing_that_has_no_date(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        written(tmp_path / folder, RECORD, RECORD)
    [first], [second] = ([*(tmp_path / folder / LISTINGS).iterdir()] for folder in ("a", "b"))
    assert first.read_bytes() == second.read_bytes() and first.read_bytes()[4:8] == bytes(4)


def test_every_record_is_on_disk_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with CompileWriter(tmp_path, Environment()) as writer:
        writer.append(RECORD, LISTING)
        assert len((tmp_path / RECORDS).read_text(encoding="utf-8").splitlines()) == 2
    assert len(synced) == 3, "the header, the listing and the record"


def test_an_older_file_is_not_written_over(tmp_path: Path) -> None:
    before = written(tmp_path, RECORD).read_bytes()
    with pytest.raises(RecordError, match="there already"):
        CompileWriter(tmp_path, Environment())
    assert (tmp_path / RECORDS).read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: "", "empty"),
        (lambda text: text[:-20], "cut off"),
        (lambda text: text.splitlines()[0] + "\n", "nothing was compiled"),
        (lambda text: text.splitlines()[1] + "\n", "no header"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), "schema 2"),
        (lambda text: text.replace('"registers"', '"unheard_of"'), "unheard_of"),
        (lambda text: text + "[1]\n", "schema None"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, damage: object, told: str) -> None:
    path = written(tmp_path, RECORD)
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")  # type: ignore[operator]
    with pytest.raises(RecordError, match=told):
        read_compiled(path)


def test_a_missing_file_or_listing_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=RECORDS):
        read_compiled(tmp_path)
    written(tmp_path, RECORD)
    (tmp_path / LISTINGS / RECORD.listing).write_bytes(b"\x1f\x8b\x08")
    with pytest.raises(RecordError, match=f"{RECORD.listing}: the listing of _k"):
        read_listing(tmp_path, RECORD)


def test_what_a_record_does_not_say_is_not_written(tmp_path: Path) -> None:
    line = json.loads(written(tmp_path, RECORD).read_text(encoding="utf-8").splitlines()[1])
    assert "error" not in line and line["engaged"] == {"tma": False} and line["spill_stores"] == 0
