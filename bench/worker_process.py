"""The parent's side of a worker: a process that is asked over a private pipe, and killed when it does not answer.

Leaves what is asked to `bench.worker`, whose `begin` is the other side.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from threading import Thread
from typing import IO

from bench.environment import ROOT
from bench.last_words import last_words
from bench.record import Status

LOOK_S = 0.2
"""How often the parent looks whether a silent worker is still alive: a child of its may hold the pipe open."""
DEATH_S = 10.0
LINE_BYTES = 4096
KILLED = " (the system does that when memory runs out)"
WHERE = signal.SIGUSR1
"""Asks a worker where it is."""
TO_TELL_S = 0.3


class WorkerGoneError(RuntimeError):
    """The worker is dead; `status` and the message say how its case ended."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class WorkerProcess:
    """The parent's side of one process, which leads a process group and dies with its parent."""

    def __init__(self, module: str, tell: Callable[[str], None]) -> None:
        self._lines: deque[str] = deque(maxlen=64)
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-u", "-X", "faulthandler", "-m", module]
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
