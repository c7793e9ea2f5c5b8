"""One process that may crash, and the parent that does not: each case runs in a worker and ends in a record.

The worker (`python -m bench.worker`) keeps torch and compiled kernels from case to case, and is replaced after it died,
was killed for taking too long, or met a CUDA error that its context does not outlive. Requests and replies are JSON
over a private pipe; what a kernel prints is told on stderr. Leaves running a case to `bench.run`, and writing its
record to the caller.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from bench.case import Case
from bench.method import Method
from bench.op_file import load_ops
from bench.record import Environment, Record, Status, record_of_line
from bench.request import request_of, requested
from bench.run import Session, record_of, run_case
from bench.stopping import StopRule
from bench.telemetry import Telemetry
from bench.timing import phase
from bench.worker_process import WHERE, WorkerGoneError, WorkerProcess
from kernels.registry import ROOF_OPS

Runner = Callable[[Case], Record]
"""Runs a case and tells how it ended; never raises for what the case itself does."""


class Ended(Protocol):
    """What tells how a case ended: a record, or the verdict of a check."""

    @property
    def status(self) -> Status:
        """How."""

    @property
    def detail(self) -> str:
        """Why; '' when it went well."""


EndedT = TypeVar("EndedT", bound=Ended)
ReturnedT = TypeVar("ReturnedT", bound=Ended, covariant=True)


class IsolatedRunner(Protocol[ReturnedT]):
    """Deals with a case in a worker, which can go over to another method of timing between cases."""

    def __call__(self, case: Case, method: Method | None = None, limit_s: float = math.inf) -> ReturnedT:
        """By a method (the session's when None), within a limit beside the one for all cases."""


START_LIMIT_S = 120.0
"""For importing torch and the kernels, and for the first touch of the GPU."""
STICKY = (
    "CUDA error",
    "Triton Error [CUDA]",
    "CUBLAS_STATUS",
    "CUDNN_STATUS",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "device-side assert",
    "unspecified launch failure",
    "graph capture",
    "INTERNAL ASSERT FAILED",
)
"""What a failure's detail holds when the CUDA context or torch's own state may be lost for good.

Every later launch in such a context fails too.
"""
PR_SET_PDEATHSIG = 1


@contextmanager
def isolated(
    session: Session, timeout_s: float, op_files: Sequence[Path], tell: Callable[[str], None]
) -> Iterator[IsolatedRunner[Record]]:
    """A runner of cases in a worker process; arguments as of `in_worker`."""
    started_s: dict[str, float] = {}

    def read(reply: str) -> Record:
        return record_of_line(reply, session.environment)

    def run(case: Case, method: Method | None = None, limit_s: float = math.inf) -> Record:
        record = answered(case, method, limit_s)
        return replace(record, phases_s=started_s | dict(record.phases_s))

    with in_worker("bench.worker", read, record_of, session, timeout_s, op_files, tell, started_s) as answered:
        yield run


@contextmanager
def in_worker(
    module: str,
    read: Callable[[str], EndedT],
    gone: Callable[[Case, Session, Status, str], EndedT],
    session: Session,
    timeout_s: float,
    op_files: Sequence[Path],
    tell: Callable[[str], None],
    started_s: dict[str, float] | None = None,
) -> Iterator[IsolatedRunner[EndedT]]:
    """Has a worker process deal with cases, which is started with the first of them and ended on leaving.

    Args:
        module: what `python -m` starts: it ends in `begin`, which says what becomes of a case.
        read: makes the result of the worker's reply.
        gone: makes it where the worker died or was killed.
        session: what the cases share; the worker makes its own telemetry.
        timeout_s: longest that a case may take.
        op_files: where ops that are not the suite's come from.
        tell: gets each line that the worker prints.
        started_s: gets "worker_start", the seconds a start took, for the case that was first in a worker; else empty.
    """
    started_s = {} if started_s is None else started_s
    worker: list[WorkerProcess] = []

    def run(case: Case, method: Method | None = None, limit_s: float = math.inf) -> EndedT:
        asked = session if method is None else replace(session, method=method)
        started_s.clear()
        try:
            if not worker:
                with phase(started_s, "worker_start"):
                    worker.append(WorkerProcess(module, tell))
                    worker[0].ask(_shared(session, op_files), min(START_LIMIT_S, limit_s))
            ended = read(worker[0].ask(request_of(case, asked.method), min(timeout_s, limit_s)))
        except WorkerGoneError as error:
            ended = gone(case, asked, error.status, str(error))
        if ended.status in (Status.TIMEOUT, Status.CRASHED) or is_sticky(ended) or was_refused_a_graph(ended):
            worker.pop().end()
        return ended

    try:
        yield run
    finally:
        for one in worker:
            one.end()


def is_sticky(ended: Ended) -> bool:
    """Whether the case failed by an error that may have cost the process its CUDA context."""
    return ended.status is Status.FAILED and any(text in ended.detail for text in STICKY)


def was_refused_a_graph(ended: Ended) -> bool:
    """Whether a capture was broken off on the way to the case's times.

    torch before 2.12 then takes the capture for still under way (pytorch issue 180395): its next `empty_cache` raises,
    and so would every case after this one.
    """
    return isinstance(ended, Record) and "graph_refused" in ended.kernel


def _shared(session: Session, op_files: Sequence[Path]) -> str:
    """What the cases of a worker share but for the method, which may change from one to the next."""
    shared = {
        "run": session.run,
        "device": session.device,
        "environment": asdict(session.environment),
        "rule": asdict(session.rule),
        "seed": session.seed,
        "nvtx": session.nvtx,
        "op_files": [str(path.resolve()) for path in op_files],
    }
    return json.dumps(shared)


def serve(pipe: Connection, answer: Callable[[Case, Session], str]) -> None:
    """The worker: answers for the cases it is asked for until the parent closes the pipe."""
    shared = json.loads(pipe.recv_bytes())
    own = (*ROOF_OPS, *load_ops([Path(path) for path in shared["op_files"]]))
    device = shared["device"]
    session = Session(
        run=shared["run"],
        device=device,
        environment=Environment(**shared["environment"]),
        rule=StopRule(**shared["rule"]),
        seed=shared["seed"],
        nvtx=shared["nvtx"],
        telemetry=None if device == "cpu" else Telemetry(torch.cuda.get_device_properties(device)),
    )
    pipe.send_bytes(b"ready")
    while True:
        try:
            case, method = requested(pipe.recv_bytes().decode(), own)
        except EOFError:
            return
        # A lone surrogate (an undecodable file name in a message) becomes the JSON escape it is, as in the file.
        pipe.send_bytes(answer(case, replace(session, method=method)).encode(errors="backslashreplace"))


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent dies in the middle of a case; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent is gone")


def begin(answer: Callable[[Case, Session], str]) -> None:
    """What a worker's module does when started by a `WorkerProcess`: serves, until its parent is done or dead."""
    faulthandler.register(WHERE)
    die_with(int(sys.argv[2]))
    serve(Connection(int(sys.argv[1])), answer)


if __name__ == "__main__":
    begin(lambda case, session: run_case(case, session).to_json())
