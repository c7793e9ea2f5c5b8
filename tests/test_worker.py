"""bench.worker: a case that hangs or kills its process ends in a status, and the next one runs in a fresh process."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from op_files import ABORT, EXIT, HANG, KILL, PLAIN, REFUSED, SEGFAULT, SIMPLE, STICKY, calls, moody_file
from small_cases import session

from bench.case import Case
from bench.last_words import last_words
from bench.method import Method
from bench.op_file import load_ops
from bench.record import Record, Status
from bench.request import request_of
from bench.run import Session, record_of, run_case, source_sha256
from bench.stopping import StopRule
from bench.suites import suite_cases
from bench.worker import STICKY as STICKY_TEXTS
from bench.worker import is_sticky, isolated, serve
from kernels import attention_decode, matmul, roofs
from kernels.registry import OPS

SHORT_S = 3.0
ENDS: dict[int, tuple[Status, tuple[str, ...]]] = {
    HANG: (Status.TIMEOUT, ("not done after 3 s: its process was killed", 'moody.py", line ')),
    ABORT: (Status.CRASHED, ("died of SIGABRT", "Fatal Python error: Aborted", 'moody.py", line ')),
    EXIT: (Status.CRASHED, ("exited with status 7: called with 4",)),
    SEGFAULT: (Status.CRASHED, ("died of SIGSEGV", "Segmentation fault", 'moody.py", line ')),
    STICKY: (Status.FAILED, ("RuntimeError: CUDA error: an illegal memory access was encountered",)),
    KILL: (Status.CRASHED, ("died of SIGKILL (the system does that when memory runs out)",)),
    PLAIN: (Status.FAILED, ("RuntimeError: a plain failure, \udcff",)),
}
"""How these sizes of `moody` end; every other is OK."""
RAGGED = next(w for w in attention_decode.OP.check_workloads if w.kv_lens)
SUITE_CASES = (
    Case(attention_decode.OP, "torch", RAGGED),
    Case(roofs.EMPTY_LAUNCH, "torch", roofs.EMPTY_LAUNCH.describe_axes({"N": 1}, "float32", ("roof",))),
    Case(matmul.OP, "torch", matmul.OP.describe_axes({"M": 4, "N": 8, "K": 16}, "float32", ("test",))),
)


def moody(file: Path, n: int) -> Case:
    [op] = load_ops([file])
    return Case(op, "mine", op.describe_axes({"N": n}, "float32", ("test",)))


@pytest.mark.parametrize(
    "order",
    [(SIMPLE, HANG, 101, REFUSED, PLAIN, ABORT, 102), (SEGFAULT, SIMPLE, STICKY, EXIT, 101, KILL)],
    ids=["hangs", "dies"],
)
def test_a_case_that_hangs_or_dies_ends_in_a_status_and_the_next_one_runs_in_a_fresh_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], order: tuple[int, ...]
) -> None:
    """E17: what follows an illegal access, a crash or a hang is OK; a plain failure costs no process.

    A broken-off capture does, though its case is OK: torch 2.11's allocator takes it for still under way.
    """
    file = moody_file(tmp_path)
    told: list[str] = []
    asked = replace(session(seed=3), method=Method(cache="hot", inputs="zeros"))
    with isolated(asked, SHORT_S, [file], told.append) as run:
        records = {n: run(moody(file, n)) for n in order[:-1]}
        if KILL in order:
            assert [(r.case["id"], str(r.status)) for r in map(run, SUITE_CASES)] == [(c.id, "OK") for c in SUITE_CASES]
        records[order[-1]] = run(moody(file, order[-1]))
    first = {worker: n for n, worker in reversed(list(dict.fromkeys(calls(file))))}
    for n, record in records.items():
        assert (record.phases_s.get("worker_start", 0.0) > 0) == (n in first.values()), "told by the first case alone"
        status, texts = ENDS.get(n, (Status.OK, ("",)))
        assert (record.status, bool(record.times_us)) == (status, status is Status.OK), record.detail
        for text in texts:
            assert text in record.detail
        assert "0x" not in record.detail, "an address makes equal details differ"
        assert 'bench/run.py"' not in record.detail
        assert (record.case["axes"], record.work["bytes"]) == ({"N": n}, 8 * n)
        assert record.source_sha256 == source_sha256(load_ops([file])[0].make_inputs)
    assert capfd.readouterr().out == "" and {f"called with {n}" for n in order} <= set(told)
    assert_replaced(file, order)
    assert_same_case(records[SIMPLE], run_case(moody(file, SIMPLE), asked))


def assert_replaced(file: Path, order: tuple[int, ...]) -> None:
    """Each case ran in one process, another one after each that may have harmed its own; and none is left."""
    noted = list(dict.fromkeys(calls(file)))
    assert [n for n, _ in noted] == list(order)
    process = dict(noted)
    for before, after in pairwise(order):
        assert (process[before] != process[after]) == (before in {*ENDS, REFUSED} - {PLAIN}), (before, after)
    assert os.getpid() not in process.values()
    for one in process.values():
        with pytest.raises(ProcessLookupError):
            os.kill(one, 0)


def assert_same_case(record: Record, here: Record) -> None:
    """What a worker tells of a case is what this process would."""
    for name in (
        "run",
        "case",
        "status",
        "work",
        "data",
        "asked",
        "cache",
        "timer",
        "launch",
        "source_sha256",
        "kernel",
    ):
        assert getattr(record, name) == getattr(here, name), name
    assert record.environment == session().environment


def test_a_worker_that_does_not_start_is_a_crash_with_its_last_words(tmp_path: Path) -> None:
    """An op file that can be read once only: the parent has it, the worker does not."""
    file = moody_file(tmp_path)
    case = moody(file, SIMPLE)
    file.write_text("raise KeyError('gone since')")
    with isolated(session(), 60.0, [file], lambda line: None) as run:
        record = run(case)
    assert record.status is Status.CRASHED
    assert "exited with status 1" in record.detail and "does not import: KeyError: 'gone since'" in record.detail


def failed(detail: str) -> Record:
    return Record(run="r", case={"id": "x"}, status=Status.FAILED, detail=detail)


def test_which_failures_cost_the_process() -> None:
    for text in STICKY_TEXTS:
        assert is_sticky(failed(f"RuntimeError: {text}: more"))
    assert is_sticky(failed("AcceleratorError: CUDA error: device-side assert triggered"))
    assert is_sticky(failed("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered"))
    assert not is_sticky(failed("ValueError: wanted x [N] contiguous"))
    assert not is_sticky(replace(failed("CUDA error"), status=Status.UNSUPPORTED))


def test_last_words() -> None:
    assert last_words([]) == ""
    assert last_words(["", "a", " b "]) == "a | b"
    assert last_words([str(n) for n in range(20)]) == " | ".join(str(n) for n in range(12, 20))
    dump = ["x", "Fatal Python error: Aborted", "", "Current thread 0x1 (most recent call first):", '  File "a.py"']
    assert last_words(dump) == 'Fatal Python error: Aborted | File "a.py"'


def test_a_worker_goes_over_to_the_method_that_comes_with_a_case() -> None:
    """The worker's side, on a pipe of a list: two cases of one process, timed in two ways."""
    hot, plain = Method(cache="hot"), Method()
    shared = {
        "run": "r1",
        "device": "cpu",
        "environment": asdict(session().environment),
        "seed": 0,
        "nvtx": False,
        "op_files": [],
    }
    asked = [json.dumps(shared | {"rule": asdict(StopRule())}).encode()]
    case = next(case for case in suite_cases("smoke", OPS) if case.provider == "torch")
    asked += [request_of(case, method).encode() for method in (hot, plain)]
    answers: list[bytes] = []

    def receive() -> bytes:
        if not asked:
            raise EOFError
        return asked.pop(0)

    def answer(case: Case, session: Session) -> str:
        return record_of(case, session, Status.SKIPPED, session.method.cache).to_json()

    serve(SimpleNamespace(recv_bytes=receive, send_bytes=answers.append), answer)  # type: ignore[arg-type]
    assert answers[0] == b"ready"
    assert [json.loads(answer)["detail"] for answer in answers[1:]] == ["hot", "cold"]
