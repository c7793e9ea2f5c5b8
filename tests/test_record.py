"""Records files: read whole or not at all, with the file and line of what is wrong; and writes that a kill survives.

Ids like F01 in docstrings name the known mistake with files that a test guards against.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.record import (
    Environment,
    Record,
    RecordError,
    RecordWriter,
    Status,
    header_json,
    read_records,
    write_atomically,
)

ROOT = Path(__file__).parents[1]
ENVIRONMENT = Environment(device_type="cuda", device_name="NVIDIA H100 80GB HBM3", sm_count=132, packages={"a": "1"})
CASE = {
    "id": "matmul/triton/bfloat16/M=1",
    "op": "matmul",
    "provider": "triton",
    "phase": "decode",
    "dtype": "bfloat16",
    "axes": {"M": 1},
    "source": ["llama-3.1-8b: o_proj, tp 1"],
}
SIGNS = "µs → ✓ 日本語 é"
TORN = "the line is cut off"


def record(**changes: Any) -> Record:
    return Record(**{"run": "r1", "case": CASE, "status": Status.OK, "times_us": (2.5, 2.25), **changes})


def line(**changes: Any) -> str:
    return json.dumps(json.loads(record().to_json()) | changes)


HEADER = header_json("r1", ENVIRONMENT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.jsonl"


def error_of(path: Path, content: str | bytes) -> str:
    """What reading this content is refused with."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(RecordError) as raised:
        read_records(path)
    return str(raised.value)


def names_in(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


# What a record may be


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK])
def test_every_other_status_needs_a_detail_and_has_no_times(status: Status) -> None:
    assert record(status=status, times_us=(), detail="why").times_us == ()
    with pytest.raises(ValueError, match=f"matmul/triton/.*{status} needs a detail"):
        record(status=status, times_us=())
    with pytest.raises(ValueError, match=f"{status} must have no times"):
        record(status=status, detail="why")


@pytest.mark.parametrize("times", [(), (float("nan"),), (1.0, float("inf")), (1.0, -0.5)])
def test_ok_needs_finite_times_that_are_not_negative(times: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="OK needs finite times >= 0"):
        record(times_us=times)


def test_zero_is_a_time() -> None:
    assert record(times_us=(0.0,)).times_us == (0.0,)


def test_statuses_are_the_eight() -> None:
    assert set(Status) == {
        "OK", "SKIPPED", "UNSUPPORTED", "INCORRECT", "OUT_OF_MEMORY", "TIMEOUT", "CRASHED", "FAILED",
    }  # fmt: skip


def test_every_number_says_its_unit_or_counts_something() -> None:
    """T12: a quantity's unit is the last part of its name."""
    unit = re.compile(r"_(us|s|bytes|bits|mhz|w)$")
    numbers = {
        field.name
        for kind in (Record, Environment)
        for field in dataclasses.fields(kind)
        if re.search(r"\b(int|float)\b", str(field.type)) and not unit.search(field.name)
    }
    counts = {"sm_count", "threads", "schema", "launches_per_sample", "warm_up_samples"}
    assert numbers == counts | {"work", "error"}, "a new number without a unit in its name"


# Round trip


FULL = record(
    config={"block_m": 128, "num_warps": 8},
    work={"flops": 2**70, "bytes": 52, "overhead_bytes": 0, "counting": 1},
    timer="cuda_graph",
    cache="cold",
    regime="burst",
    launch="graph",
    asked={"cache": "cold", "timer": "auto"},
    warm_up_samples=210,
    times_us=(0.1 + 0.2, 1e-9, 12345.678901234567),
    launches_per_sample=40,
    first_call_us=1234.5,
    stop_reason="converged",
    error={"max": 1e-3},
    telemetry={"before": {"sm_clock_mhz": 1980, "power_w": None}},
    data={"distribution": "normal", "seed": 0},
    kernel={"backend": SIGNS},
    includes=("quant",),
    flags=("suspect", "throttled"),
    phases_s={"inputs": 0.5},
    source_sha256="ab",
    taken_at="2026-01-01T00:00:00Z",
)


def test_records_come_back_as_they_were(path: Path) -> None:
    failed = record(status=Status.CRASHED, times_us=(), detail=f"died: {SIGNS}\nsecond line \u2028 and a tab\t")
    with RecordWriter(path, "r1", ENVIRONMENT) as writer:
        writer.append(FULL)
        writer.append(failed)
    back = read_records(path)
    assert back == [FULL, failed]
    assert [r.environment for r in back] == [ENVIRONMENT, ENVIRONMENT]
    assert back[0].times_us == FULL.times_us, "times are unrounded"
    assert len(path.read_bytes().split(b"\n")) == 4, "one line for the header and one for each record"
    assert b"\r" not in path.read_bytes()


def test_undecodable_file_name_in_a_detail_is_written_and_read_back(path: Path) -> None:
    detail = f"cannot open {os.fsdecode(b'/tmp/' + bytes([0xFF]))}"
    with RecordWriter(path, "r1", ENVIRONMENT) as writer:
        writer.append(record(status=Status.FAILED, times_us=(), detail=detail))
    assert read_records(path)[0].detail == detail


@pytest.mark.parametrize("changes", [{"error": {"max": float("nan")}}, {"work": {"flops": float("inf")}}])
def test_not_a_number_is_refused_rather_than_written_as_no_json(path: Path, changes: dict[str, Any]) -> None:
    with RecordWriter(path, "r1", ENVIRONMENT) as writer, pytest.raises(ValueError, match="JSON"):
        writer.append(record(**changes))
    with pytest.raises(ValueError, match="JSON"):
        header_json("r1", Environment(power_limit_w=float("nan")))


def test_several_runs_in_one_file_keep_their_own_environments(path: Path) -> None:
    other = dataclasses.replace(ENVIRONMENT, device_name="NVIDIA H200")
    for run, environment in (("r1", ENVIRONMENT), ("r2", other)):
        with RecordWriter(path, run, environment) as writer:
            writer.append(record(run=run))
    back = read_records(path)
    assert [(r.run, r.environment) for r in back] == [("r1", ENVIRONMENT), ("r2", other)]


def test_resumed_run_repeats_its_header(path: Path) -> None:
    """F05: six rows on disk, four more after a restart."""
    for count in (6, 4):
        with RecordWriter(path, "r1", ENVIRONMENT) as writer:
            for _ in range(count):
                writer.append(record())
    assert len(read_records(path)) == 10


def test_record_of_another_run_is_refused(path: Path) -> None:
    with RecordWriter(path, "r1", ENVIRONMENT) as writer, pytest.raises(ValueError, match=r"run 'r2'.*run 'r1'"):
        writer.append(record(run="r2"))


def test_each_record_is_on_disk_before_the_next_is_measured(path: Path) -> None:
    """F05: what was measured survives the crash of what comes after it."""
    crash = f"""
from pathlib import Path
import os, signal
from bench.record import *
with RecordWriter(Path({str(path)!r}), "r1", Environment()) as writer:
    for _ in range(6):
        writer.append(Record(run="r1", case={CASE!r}, status=Status.OK, times_us=(1.0,)))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", crash], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert len(read_records(path)) == 6


def test_appended_record_is_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("bench.record.os.fsync", synced.append)
    with RecordWriter(path, "r1", ENVIRONMENT) as writer:
        writer.append(record())
    assert len(synced) == 2, "header and record"


@pytest.mark.parametrize(
    ("first", "told"),
    [(HEADER.replace('"schema": 1', '"schema": 99'), "schema 99, this version reads 1"), ("a, b", "not JSON")],
)
def test_a_file_of_another_schema_is_not_appended_to(path: Path, first: str, told: str) -> None:
    """Measured first and refused when read would lose a whole run."""
    path.write_text(f"{first}\n", encoding="utf-8")
    with pytest.raises(RecordError, match=rf"records\.jsonl:1: {told}"):
        RecordWriter(path, "r1", ENVIRONMENT)
    assert path.read_text(encoding="utf-8") == f"{first}\n"


def test_torn_file_is_not_appended_to(path: Path) -> None:
    torn = f"{HEADER}\n{line()[:40]}"
    path.write_text(torn, encoding="utf-8")
    with pytest.raises(RecordError, match=r"records\.jsonl: the last line is cut off"):
        RecordWriter(path, "r1", ENVIRONMENT)
    assert path.read_text(encoding="utf-8") == torn


# What is refused, by file and line


@pytest.mark.parametrize("content", ["", "   \n \n\t", "\n", b"\xef\xbb\xbf"])
def test_file_without_content_is_called_empty(path: Path, content: str | bytes) -> None:
    """F07: 0 bytes, only spaces, only a byte-order mark."""
    assert error_of(path, content).startswith(f"{path}: empty; wanted JSON lines")


def test_byte_order_mark_and_windows_line_ends_are_accepted(path: Path) -> None:
    """F07: what an editor added hurts nobody."""
    path.write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\r\n\r\n{line()}\r\n".encode())
    assert read_records(path) == [record()]


def test_missing_file_and_directory_are_named(path: Path) -> None:
    for unreadable in (path, path.parent):
        with pytest.raises(RecordError, match=re.escape(f"{unreadable}: cannot be read")):
            read_records(unreadable)


@pytest.mark.parametrize("cut", [1, 30, 200, -1])
def test_truncated_last_line_is_said_to_be_cut_off(path: Path, cut: int) -> None:
    assert error_of(path, f"{HEADER}\n{line()}\n{line()[:cut]}").startswith(f"{path}:3: {TORN}")


def test_line_cut_inside_a_character_is_said_to_be_cut_off(path: Path) -> None:
    whole = record(status=Status.FAILED, times_us=(), detail="µ").to_json().encode()
    cut = whole[: whole.index("µ".encode()) + 1]
    assert error_of(path, f"{HEADER}\n".encode() + cut).startswith(f"{path}:2: {TORN}")


def test_every_cut_of_a_file_is_either_refused_or_whole_records(path: Path) -> None:
    """A kill at any byte leaves a file that is read as far as whole lines go, or refused; never half a record."""
    data = f"{HEADER}\n{line()}\n{line(detail=SIGNS)}\n".encode()
    lines = [record(), record(detail=SIGNS)]
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        try:
            assert read_records(path) in (lines[:1], lines)
        except RecordError as error:
            assert str(error).startswith(str(path))


@pytest.mark.parametrize(
    ("third", "message"),
    [
        ("not json", "not JSON (Expecting value)"),
        ('{"run": "r1",', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"n": ' + "9" * 5000 + "}", "not JSON"),
        ("[1, 2]", "not a Roofmark record: wanted an object with 'run' and 'schema'"),
        ("null", "not a Roofmark record"),
        ('{"name": "matmul", "ms": 1.5}', "not a Roofmark record"),
        ('{"run": "r1"}', "not a Roofmark record"),
        ('{"run": ["r1"], "schema": 1}', "not a Roofmark record"),
        (line(schema=2), "schema 2, this version reads 1: use the Roofmark that wrote it"),
        (line(schema=None), "schema None, this version reads 1"),
        (line(tflops=700), "unknown field(s) tflops in Record"),
        (line(zeta=1, alpha=2), "unknown field(s) alpha, zeta in Record"),
        (line(run="r2"), "record of run 'r2' before that run's header line"),
        (line(status="GREAT"), "'GREAT' is not a valid Status"),
        (line(times_us=[]), "status OK needs finite times"),
        (line(times_us=[1.0, -1.0]), "status OK needs finite times"),
        (line(times_us=["1.0"]), "must be real number, not str"),
        (line(times_us=1.0), "not iterable"),
        (line(status="FAILED", times_us=[]), "needs a detail"),
        (line(case={"id": "x"}), "the case has no op, provider, phase, dtype"),
        (line(case="matmul"), "case must be an object, got 'matmul'"),
        (line(work=[1]), "work must be an object"),
        ('{"run": "r1", "schema": 1}', "missing 2 required keyword-only arguments: 'case' and 'status'"),
        ('{"run": "r9", "schema": 1, "environment": null}', "Environment must be an object, got None"),
        ('{"run": "r9", "schema": 1, "environment": {"gpu": "H100"}}', "unknown field(s) gpu in Environment"),
        ('{"run": "r9", "schema": 2, "environment": {}}', "schema 2"),
    ],
)
def test_bad_line_is_named_and_nothing_of_the_file_is_used(path: Path, third: str, message: str) -> None:
    """F07: one line says the file, the line and what is wrong with it, though lines before and after are good."""
    told = error_of(path, f"{HEADER}\n{line()}\n{third}\n{line()}\n")
    assert told.startswith(f"{path}:3: ")
    assert message in told
    assert "\n" not in told


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_other_encodings_are_named(path: Path, encoding: str) -> None:
    content = f"{HEADER}\n{line()}\n".replace("matmul", "é").encode(encoding)
    assert re.match(re.escape(str(path)) + r":[12]: not UTF-8", error_of(path, content))


def test_record_before_its_header_is_refused(path: Path) -> None:
    assert error_of(path, f"{line()}\n{HEADER}\n") == f"{path}:1: record of run 'r1' before that run's header line"


def test_header_alone_is_no_result(path: Path) -> None:
    assert error_of(path, f"{HEADER}\n") == f"{path}: a header but no records: nothing was measured in this run"


# Whole-file writes


def run_python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_write_replaces_the_whole_and_makes_its_directory(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "report.md"
    write_atomically(target, "old and longer\n")
    write_atomically(target, "µ\n")
    assert target.read_bytes() == "µ\n".encode()
    write_atomically(target, b"\x00\xff")
    assert target.read_bytes() == b"\x00\xff"
    assert target.stat().st_mode & 0o777 == 0o644
    assert names_in(target.parent) == ["report.md"]


def test_failed_write_leaves_the_old_content_and_no_stray_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.md"
    write_atomically(target, "old")

    def disk_full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bench.record.os.fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert names_in(tmp_path) == ["report.md"]


SAVE_50 = """
import json, sys
from pathlib import Path
from bench.record import write_atomically
for i in range(50):
    write_atomically(Path(sys.argv[1]), json.dumps([sys.argv[2]] * 500))
"""


def test_four_writers_of_one_target_do_not_meet(tmp_path: Path) -> None:
    """F02: 4 processes x 50 saves: no error, a whole file at every look, no stray temporary file."""
    target = tmp_path / "summary.json"
    writers = [
        subprocess.Popen([sys.executable, "-c", SAVE_50, str(target), str(n)], cwd=ROOT, stderr=subprocess.PIPE)
        for n in range(4)
    ]
    while any(writer.poll() is None for writer in writers):
        if target.exists():
            assert len(set(json.loads(target.read_text()))) == 1
        time.sleep(0.002)
    errors = [writer.communicate()[1] for writer in writers]
    assert (errors, [writer.returncode for writer in writers]) == ([b""] * 4, [0] * 4)
    assert len(json.loads(target.read_text())) == 500
    assert names_in(tmp_path) == ["summary.json"]


SAVE_FOREVER = """
import itertools, sys
from pathlib import Path
from bench.record import write_atomically
for i in itertools.count():
    write_atomically(Path(sys.argv[1]), str(i % 10) * 300_000)
    if i == 1:
        print("started", flush=True)
"""


def test_killed_writer_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    """F01: 30 kills at random moments of a save."""
    target, chance = tmp_path / "summary.json", random.Random(1)
    for _ in range(30):
        writer = subprocess.Popen(
            [sys.executable, "-S", "-c", SAVE_FOREVER, str(target)], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"started\n"
        time.sleep(chance.uniform(0, 0.01))
        writer.kill()
        writer.communicate()
        assert writer.returncode == -signal.SIGKILL
        content = target.read_bytes()
        assert (len(content), len(set(content))) == (300_000, 1)


@pytest.mark.parametrize("name", ["résultats été", "結果 報告", "a b", "µs→✓"])
def test_any_directory_name_can_be_written_and_read(tmp_path: Path, name: str) -> None:
    """F16: accents, spaces, CJK characters."""
    path = tmp_path / name / f"{name}.jsonl"
    with RecordWriter(path, "r1", ENVIRONMENT) as writer:
        writer.append(record())
    write_atomically(path.with_suffix(".md"), name)
    assert read_records(path) == [record()]
    assert path.with_suffix(".md").read_text(encoding="utf-8") == name
    assert name in error_of(path, "x")


def test_files_are_utf8_whatever_the_locale(tmp_path: Path) -> None:
    """F14: a micro sign, an arrow and a check mark under LANG=C with UTF-8 mode off."""
    code = f"""
import sys
from pathlib import Path
from bench.record import *
signs = {SIGNS.encode()!r}.decode()
out = Path(sys.argv[1])
with RecordWriter(out / "records.jsonl", "r1", Environment()) as writer:
    writer.append(Record(run="r1", case={CASE!r}, status=Status.FAILED, detail=signs))
write_atomically(out / "report.md", signs)
assert read_records(out / "records.jsonl")[0].detail == signs
"""
    done = run_python(code, str(tmp_path), LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "report.md").read_bytes() == SIGNS.encode()
    assert SIGNS.encode() in (tmp_path / "records.jsonl").read_bytes()


@pytest.mark.parametrize("module", ["bench.record", "bench.stopping"])
def test_module_needs_the_standard_library_only(module: str) -> None:
    code = f"""
import sys
before = set(sys.modules)
import {module}
new = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(*sorted(new - set(sys.stdlib_module_names)))
"""
    done = run_python(code)
    assert (done.stdout.split(), done.stderr) == (["bench"], "")


def test_readers_need_no_error_of_their_own() -> None:
    """A caller that catches ValueError catches an unusable file too."""
    assert issubclass(RecordError, ValueError)


def write_in_place(path: Path, content: str | bytes) -> None:
    """The planted fault: truncates first, as a plain write does."""
    with path.open("wb") as file:
        data = content.encode() if isinstance(content, str) else content
        file.write(data[: len(data) // 2])
        os.fsync(file.fileno())
        file.write(data[len(data) // 2 :])


def test_failed_write_check_catches_a_write_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "write_atomically", write_in_place)
    with pytest.raises(AssertionError):
        test_failed_write_leaves_the_old_content_and_no_stray_file(tmp_path, monkeypatch)
