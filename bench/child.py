"""A command of this suite in a process group of its own, with a time limit: the parent outlives what it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO

from bench.environment import ROOT

LAST_LINES = 12
DEATH_S = 10.0
FRAME = " ╭╮╰╯│─"
"""What rich draws around an error."""


class Child:
    """`python -m` with these arguments, started at once and killed on leaving, whatever it has started with it.

    Attributes:
        lines: what it has printed on stdout so far; usable after the process was killed in the middle.
        code: its exit code, once it has ended by itself.

    Args:
        arguments: module and its arguments, paths absolute: it runs in a checkout.
        tell: gets each line of stderr.
        checkout: whose code it runs; this one unless told otherwise.
        variables: of its environment, beside those of this process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        tell: Callable[[str], None],
        *,
        checkout: Path = ROOT,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.lines: list[str] = []
        self.code: int | None = None
        self._errors: deque[str] = deque(maxlen=LAST_LINES)
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=checkout,
            env=os.environ | dict(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        streams = ((self._process.stdout, self.lines.append), (self._process.stderr, self._error(tell)))
        self._readers = [Thread(target=_read, args=(stream, take), daemon=True) for stream, take in streams]
        for reader in self._readers:
            reader.start()

    def _error(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        def take(line: str) -> None:
            self._errors.append(line)
            tell(line)

        return take

    def wait(self, until_s: float) -> str:
        """'' when it ended well by `until_s` of the monotonic clock; else how it did not. It is dead after this."""
        try:
            code = self._process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._kill()
            return "cut off: its time was up"
        self._kill()  # what it left behind
        self.code = code
        if code == 0:
            return ""
        words = " | ".join(text for line in self._errors if (text := line.strip(FRAME)))
        return f"exit code {code}" + (f": {words}" if words else "")

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_S)
        for reader in self._readers:
            reader.join(DEATH_S)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()


def _read(stream: IO[bytes], take: Callable[[str], None]) -> None:
    with stream:
        for line in stream:
            take(line.decode(errors="replace").rstrip("\n"))
