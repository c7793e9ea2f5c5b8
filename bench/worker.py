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
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import takewhile
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import IO, Any, Protocol

import torch

from bench.case import Case
from bench.environment import ROOT
from bench.method import Method
from bench.op_file import load_ops
from bench.record import Environment, Record, Status, record_of_line
from bench.run import Session, record_of, run_case
from bench.stopping import StopRule
from bench.telemetry import Telemetry
from kernels.registry import ROOF_OPS, op_named
from kernels.spec import Workload

Runner = Callable[[Case], Record]
"""Runs a case and tells how it ended; never raises for what the case itself does."""


class IsolatedRunner(Protocol):
    """A `Runner` whose process can go over to another method of timing between cases."""

    def __call__(self, case: Case, method: Method | None = None, limit_s: float = math.inf) -> Record:
        """Runs a case by a method (the session's when None), within a limit beside the one for all cases."""


START_LIMIT_S = 120.0
"""For importing torch and the kernels, and for the first touch of the GPU."""
LOOK_S = 0.2
"""How often the parent looks whether a silent worker is still alive: a child of its may hold the pipe open."""
DEATH_S = 10.0
LAST_LINES, LINE_BYTES = 8, 4096
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
)
"""What a failure's detail holds when the CUDA context may be lost for good: every later launch in it fails too."""
KILLED = " (the system does that when memory runs out)"
DUMPS = ("Fatal Python error", "Current thread")
"""How faulthandler begins to tell where a process crashed, or was when it was asked."""
WHERE = signal.SIGUSR1
"""Asks a worker where it is."""
TO_TELL_S = 0.3
OURS = f'File "{ROOT / "bench"}'
PR_SET_PDEATHSIG = 1


class WorkerGoneError(RuntimeError):
    """The worker is dead; `status` and the message say how its case ended."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@contextmanager
def isolated(
    session: Session, timeout_s: float, op_files: Sequence[Path], tell: Callable[[str], None]
) -> Iterator[IsolatedRunner]:
    """A runner of cases in a worker process, which is started with the first case and ended on leaving.

    Args:
        session: what the cases share; the worker makes its own telemetry.
        timeout_s: longest that a case may take.
        op_files: where ops that are not the suite's come from.
        tell: gets each line that the worker prints.
    """
    worker: list[Worker] = []

    def run(case: Case, method: Method | None = None, limit_s: float = math.inf) -> Record:
        asked = session if method is None else replace(session, method=method)
        try:
            if not worker:
                worker.append(Worker(session, op_files, tell))
                worker[0].greet(min(START_LIMIT_S, limit_s))
            record = record_of_line(
                worker[0].ask(_request(case, asked.method), min(timeout_s, limit_s)), session.environment
            )
        except WorkerGoneError as gone:
            record = record_of(case, asked, gone.status, str(gone))
        if record.status in (Status.TIMEOUT, Status.CRASHED) or is_sticky(record):
            worker.pop().end()
        return record

    try:
        yield run
    finally:
        for one in worker:
            one.end()


def is_sticky(record: Record) -> bool:
    """Whether the case failed by an error that may have cost the process its CUDA context."""
    return record.status is Status.FAILED and any(text in record.detail for text in STICKY)


class Worker:
    """The parent's side of one process, which leads a process group and dies with its parent."""

    def __init__(self, session: Session, op_files: Sequence[Path], tell: Callable[[str], None]) -> None:
        self._session, self._op_files = session, op_files
        self._lines: deque[str] = deque(maxlen=64)
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-u", "-X", "faulthandler", "-m", "bench.worker"]
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(os.getpid())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._reader = Thread(target=self._relay, args=(self._process.stdout, tell), daemon=True)
        self._reader.start()

    def greet(self, limit_s: float) -> None:
        """Hands over what its cases share. Raises WorkerGoneError when it does not start within the limit."""
        shared = {
            "run": self._session.run,
            "device": self._session.device,
            "environment": asdict(self._session.environment),
            "rule": asdict(self._session.rule),
            "seed": self._session.seed,
            "op_files": [str(path.resolve()) for path in self._op_files],
        }
        self.ask(json.dumps(shared), limit_s)

    def ask(self, request: str, limit_s: float) -> str:
        """The reply to a request. Raises WorkerGoneError: it died, or the limit passed and it was killed."""
        self._lines.clear()
        try:
            self._pipe.send_bytes(request.encode())
            end = time.monotonic() + limit_s
            while not self._pipe.poll(max(0.0, min(LOOK_S, end - time.monotonic()))):
                if self._process.poll() is not None and not self._pipe.poll():
                    raise EOFError
                if time.monotonic() >= end:
                    raise WorkerGoneError(Status.TIMEOUT, f"not done after {limit_s:g} s: {self._stop()}")
            return self._pipe.recv_bytes().decode()
        except (EOFError, OSError):
            raise WorkerGoneError(Status.CRASHED, self._how_it_died()) from None

    def end(self) -> None:
        """Ends the process and all that it started."""
        self._kill()
        self._pipe.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a process that a GPU does not let go of is left behind
            self._process.wait(DEATH_S)
        self._reader.join(DEATH_S)

    def _stop(self) -> str:
        """Kills a process that hangs; says where it did."""
        self._process.send_signal(WHERE)
        time.sleep(TO_TELL_S)
        self._kill()
        words = last_words(list(self._lines))
        return "its process was killed" + (f": {words}" if words else "")

    def _how_it_died(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_S)
        code = self._process.returncode
        self._kill()
        if code is None:
            how = "its process closed the pipe"
        elif code < 0:
            name = next((s.name for s in signal.Signals if s == -code), f"signal {-code}")
            how = f"its process died of {name}" + (KILLED if -code == signal.SIGKILL else "")
        else:
            how = f"its process exited with status {code}"
        words = last_words(list(self._lines))
        return f"{how}: {words}" if words else how

    def _relay(self, stream: IO[bytes], tell: Callable[[str], None]) -> None:
        with stream:
            for line in iter(lambda: stream.readline(LINE_BYTES), b""):
                text = line.decode(errors="replace").rstrip()
                self._lines.append(text)
                tell(text)


def last_words(lines: Sequence[str]) -> str:
    """The last lines of what a process printed, or the case's calls where Python told of a crash or a hang."""
    told = [line.strip() for line in lines if line.strip()]
    begin = next((n for n, line in enumerate(told) if line.startswith(DUMPS)), None)
    if begin is None:
        return " | ".join(told[-LAST_LINES:])
    # Innermost call first; from `bench` on they are the same for every case. A thread's address would make all differ.
    calls = [line for line in takewhile(lambda line: OURS not in line, told[begin:]) if "0x" not in line]
    return " | ".join(calls[:LAST_LINES])


def _request(case: Case, method: Method) -> str:
    what = {"op": case.op.name, "provider": case.provider, "workload": asdict(case.workload)}
    return json.dumps(what | {"method": asdict(method)})


def serve(pipe: Connection) -> None:
    """The worker: runs the cases it is asked for until the parent closes the pipe."""
    shared = json.loads(pipe.recv_bytes())
    own = (*ROOF_OPS, *load_ops([Path(path) for path in shared["op_files"]]))
    device = shared["device"]
    session = Session(
        run=shared["run"],
        device=device,
        environment=Environment(**shared["environment"]),
        rule=StopRule(**shared["rule"]),
        seed=shared["seed"],
        telemetry=None if device == "cpu" else Telemetry(torch.cuda.get_device_properties(device)),
    )
    pipe.send_bytes(b"ready")
    while True:
        try:
            asked = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        case = Case(op_named(asked["op"], own), asked["provider"], _workload(asked["workload"]))
        # A lone surrogate (an undecodable file name in a message) becomes the JSON escape it is, as in the file.
        record = run_case(case, replace(session, method=Method(**asked["method"])))
        pipe.send_bytes(record.to_json().encode(errors="backslashreplace"))


def _workload(fields: dict[str, Any]) -> Workload:
    for name in ("source", "kv_lens"):
        fields[name] = tuple(fields[name])
    return Workload(**fields)


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent dies in the middle of a case; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent is gone")


if __name__ == "__main__":
    faulthandler.register(WHERE)
    die_with(int(sys.argv[2]))
    serve(Connection(int(sys.argv[1])))
