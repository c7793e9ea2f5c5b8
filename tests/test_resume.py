"""Going on with a run: nothing lost and nothing twice, wherever it was killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from op_files import HANG, SIMPLE, calls, moody_file

from bench.method import Method
from bench.record import Environment, Record, RecordError, RecordWriter, Status, header_json, read_records
from bench.resume import STABLE, Wanted, cut_torn_line, done_before

ROOT = Path(__file__).resolve().parent.parent
HERE = Environment(
    device_name="NVIDIA H100 80GB HBM3", sm_count=132, memory_bytes=8 * 10**10, driver="580.1", cuda="13.0",
    torch="2.13.0", triton="3.7.1", taken_at="monday", commit="a", power_limit_w=700.0,
)  # fmt: skip
IDS = tuple(f"matmul/triton/bfloat16/M={m}" for m in range(1, 7))
ASKED = asdict(Method())
WANTED = dict.fromkeys(IDS, Wanted("sha", ASKED))


def record(case_id: str, status: Status = Status.OK, **changes: Any) -> Record:
    case = {"id": case_id, "op": "matmul", "provider": "triton", "phase": "decode", "dtype": "bfloat16"}
    end = {"times_us": (1.5, 2.5)} if status is Status.OK else {"detail": "why: µs → 日本語"}
    return Record(
        **{"run": "r1", "case": case, "status": status, "source_sha256": "sha", "asked": ASKED, **end, **changes}
    )


def write(path: Path, *records: Record, environment: Environment = HERE, run: str = "r1") -> None:
    with RecordWriter(path, run, environment) as writer:
        for one in records:
            writer.append(replace(one, run=run))


# The torn last line


@pytest.mark.parametrize(
    ("content", "left", "cut"),
    [
        (b"", b"", 0),
        (b"a\nb\n", b"a\nb\n", 0),
        (b"a\nb", b"a\n", 1),
        (b'{"run": "r1", "sch', b"", 18),
        ("a\n日".encode()[:-1], b"a\n", 2),
        (b"a\n\0\0\0", b"a\n", 3),
    ],
)
def test_what_follows_the_last_newline_is_cut_off(tmp_path: Path, content: bytes, left: bytes, cut: int) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(content)
    assert cut_torn_line(path) == cut
    assert path.read_bytes() == left


def test_no_file_is_nothing_to_cut_and_nothing_done(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    assert (cut_torn_line(path), done_before(path, HERE, WANTED)) == (0, {})
    assert not path.exists()


@pytest.mark.parametrize("content", ["", f"{header_json('r1', HERE)}\n", 2 * f"{header_json('r1', HERE)}\n"])
def test_a_run_killed_before_its_first_record_has_nothing_done(tmp_path: Path, content: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(content, encoding="utf-8")
    assert done_before(path, HERE, WANTED) == {}


def test_a_file_that_is_broken_elsewhere_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write(path, record(IDS[0]))
    path.write_bytes(path.read_bytes() + b"nonsense\n")
    with pytest.raises(RecordError, match=r"records\.jsonl:3"):
        done_before(path, HERE, WANTED)


# What counts


def test_only_what_would_end_the_same_way_again_counts(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    ended = dict(zip((f"matmul/triton/bfloat16/M={s}" for s in Status), Status, strict=True))
    write(path, *(record(case_id, status) for case_id, status in ended.items()))
    done = done_before(path, HERE, dict.fromkeys(ended, Wanted("sha", ASKED)))
    assert [r.status for r in done.values()] == [Status.OK, Status.SKIPPED, Status.UNSUPPORTED]


@pytest.mark.parametrize(("changes", "counts"), [({"taken_at": "friday", "commit": "b", "dirty": True}, True)] + [
    ({name: "another"}, False) for name in STABLE
])  # fmt: skip
def test_the_same_machine_and_software_counts_whatever_else_changed(
    tmp_path: Path, changes: dict[str, Any], counts: bool
) -> None:
    path = tmp_path / "records.jsonl"
    write(path, record(IDS[0]), environment=replace(HERE, **changes))
    assert (IDS[0] in done_before(path, HERE, WANTED)) == counts


def test_changed_source_and_cases_that_are_not_asked_for_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write(path, record(IDS[0], source_sha256="before"), record(IDS[1]), record("other/case"))
    assert list(done_before(path, HERE, WANTED)) == [IDS[1]]


@pytest.mark.parametrize("change", [{"cache": "hot"}, {"regime": "sustained"}, {"timer": "event"}, {"inputs": "zeros"}])
def test_a_record_of_another_method_is_no_answer_and_keeps_its_own(tmp_path: Path, change: dict[str, str]) -> None:
    """T24: asked for is what counts: a cold case of a small op may have ended as `resident`, as a hot one does."""
    path, other = tmp_path / "records.jsonl", asdict(Method(**change))
    write(path, record(IDS[0], cache="resident"))
    assert done_before(path, HERE, {IDS[0]: Wanted("sha", other)}) == {}
    write(path, record(IDS[0], cache="resident", asked=other, times_us=(9.0,)), run="r2")
    assert done_before(path, HERE, {IDS[0]: Wanted("sha", other)})[IDS[0]].times_us == (9.0,)
    assert done_before(path, HERE, WANTED)[IDS[0]].times_us == (1.5, 2.5)


def test_a_record_that_does_not_say_what_was_asked_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write(path, record(IDS[0], asked={}))
    assert done_before(path, HERE, WANTED) == {}


def test_the_last_record_of_a_case_counts(tmp_path: Path) -> None:
    """F12."""
    path = tmp_path / "records.jsonl"
    write(path, record(IDS[0], Status.FAILED), record(IDS[1]))
    write(path, record(IDS[0], times_us=(9.0,)), record(IDS[1], Status.TIMEOUT), run="r2")
    done = done_before(path, HERE, WANTED)
    assert {case_id: r.times_us for case_id, r in done.items()} == {IDS[0]: (9.0,)}


# Kill points of the record writer


def go_on(path: Path, run: str) -> None:
    """What a resumed sweep does with its records."""
    cut_torn_line(path)
    done = done_before(path, HERE, WANTED)
    write(path, *(record(case_id) for case_id in IDS if case_id not in done), run=run)


def test_a_thousand_cuts_at_random_bytes_lose_nothing_and_repeat_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F01, F05: what a kill or a lost power leaves of the file; whole lines before it stay as they are."""
    monkeypatch.setattr("bench.record.os.fsync", lambda handle: None)
    whole, path, chance = tmp_path / "whole.jsonl", tmp_path / "records.jsonl", random.Random(5)
    write(whole, *(record(case_id, detail="µs → 日本語") for case_id in IDS))
    content = whole.read_bytes()
    for _ in range(1000):
        kept = content[: chance.randrange(len(content) + 1)]
        path.write_bytes(kept)
        go_on(path, "r2")
        assert path.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
        assert Counter(r.case["id"] for r in read_records(path)) == Counter(IDS)


KILLED_WRITERS = """
import os, random, signal, sys, time
from pathlib import Path
from bench.method import Method
from bench.record import Environment, Record, RecordWriter, Status
assert not {"torch", "numpy", "bench.run"} & set(sys.modules)
directory, chance = Path(sys.argv[1]), random.Random(7)
for n in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        with RecordWriter(directory / f"{n}.jsonl", f"r{n}", Environment()) as writer:
            for i in range(10**9):
                case = {"id": f"c{i}", "op": "o", "provider": "p", "phase": "decode", "dtype": "bfloat16"}
                writer.append(Record(run=f"r{n}", case=case, status=Status.FAILED, detail="x" * 300_000))
                os.write(2, b"%d %d\\n" % (n, i))
    time.sleep(chance.uniform(0, 0.04))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_killed_writers_have_kept_every_record_that_was_appended(tmp_path: Path) -> None:
    """F05: 200 SIGKILLs of processes that have imported `bench.record` alone.

    How often one tears a line is the kernel's affair; the thousand cuts above are sure to.
    """
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WRITERS, str(tmp_path), "200"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    appended = Counter(int(line.split()[0]) for line in done.stderr.splitlines())
    for n in range(200):
        path = tmp_path / f"{n}.jsonl"
        cut_torn_line(path)
        kept = [r.case["id"] for r in read_records(path, may_be_empty=True)] if path.exists() else []
        assert kept == [f"c{i}" for i in range(len(kept))]
        assert appended[n] <= len(kept) <= appended[n] + 1
    assert sum(appended.values()) > 100, "the kills came too early or too late to say anything"


KILLED_SWEEPS = """
import os, random, signal, sys, time
from pathlib import Path
from bench.case import Case
from bench.method import Method
from bench.record import Environment, Status
from bench.run import Session, record_of
from bench.sweep import sweep
from kernels import matmul
path, chance = Path(sys.argv[1]), random.Random(11)
workloads = [matmul.OP.describe_axes({"M": m, "N": 8, "K": 8}, "float32", ()) for m in range(1, 61)]
cases = [Case(matmul.OP, "torch", workload) for workload in workloads]
def resumed(run):
    session = Session(run=run, device="cpu", environment=Environment(device_name="here"))
    def runner(case):
        time.sleep(0.002)
        return record_of(case, session, Status.OK, "", times_us=(1.0,))
    return sweep(cases, session, path, runner, resume=True)
for n in range(10):
    child = os.fork()
    if not child:
        resumed(f"r{n}")
        os._exit(0)
    time.sleep(chance.uniform(0.01, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(len(resumed("last")))
"""


def test_a_sweep_killed_ten_times_and_gone_on_with_has_every_case_once(tmp_path: Path) -> None:
    """F05."""
    path = tmp_path / "records.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", KILLED_SWEEPS, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "60\n", done.stderr
    records = read_records(path)
    assert Counter(r.case["axes"]["M"] for r in records) == Counter(range(1, 61))
    assert len({r.run for r in records}) >= 3, "the kills came too early to say anything"


# Real sweeps


def start(file: Path, output: Path, *sizes: int) -> subprocess.Popen[str]:
    asked = ("--op-file", str(file), "--set", f"N={','.join(map(str, sizes))}", "--dtype", "fp32")
    fast = ("--no-peaks", "--device", "cpu", "--case-seconds", "0.02", "-o", str(output), "--resume")
    return subprocess.Popen(
        [sys.executable, "-m", "bench", "run", *asked, *fast],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_RUNTIME_DIR": str(output.parent)},
    )


def signal_at(process: subprocess.Popen[str], text: str, number: signal.Signals) -> str:
    """Signals the parent when its stderr says `text`; the rest of its stderr."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            os.kill(process.pid, number)
            break
    return process.communicate()[1]


def wait_for_the_end_of(process: int) -> None:
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {process} is still there")


def test_a_killed_sweep_runs_what_is_left_and_an_interrupted_one_says_what_is_safe(tmp_path: Path) -> None:
    """F05: killed while its seventh case hangs, with the worker, and gone on with; then Ctrl-C while the last hangs."""
    file, output, sizes = moody_file(tmp_path), tmp_path / "out", [*range(SIMPLE, SIMPLE + 10)]
    path = output / "records.jsonl"
    killed = start(file, output, *sizes[:6], HANG, *sizes[6:])
    signal_at(killed, f"called with {HANG}", signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    [first] = {worker for _, worker in calls(file)}
    wait_for_the_end_of(first)
    assert [r.case["axes"]["N"] for r in read_records(path)] == sizes[:6]
    with path.open("a") as torn:
        torn.write('{"run": "cut off here')

    gone_on = start(file, output, *sizes)
    stdout, stderr = gone_on.communicate()
    assert gone_on.returncode == 0, stderr
    assert "6 of 10 already there\n" in stderr and "21 bytes of it removed" in stderr
    named = [line for line in stderr.splitlines() if line.startswith("[")]
    assert named == [f"[{n}/4] moody/mine/float32/N={size}" for n, size in enumerate(sizes[6:], start=1)]
    assert "10 OK; records: " in stdout, "what was there is part of what is told"
    assert [r.case["axes"]["N"] for r in read_records(path)] == sizes
    assert {n for n, worker in calls(file) if worker != first} == {*sizes[6:]}

    interrupted = start(file, output, *sizes, HANG)
    rest = signal_at(interrupted, f"called with {HANG}", signal.SIGINT)
    assert interrupted.returncode == 130
    assert f"interrupted: 10 of 11 records are safe in {path}; go on with: -o {output} --resume\n" in rest
    wait_for_the_end_of(calls(file)[-1][1])
    assert len(read_records(path)) == 10
