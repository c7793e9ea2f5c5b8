"""What a process that died or hung said last, in one line for a record's detail."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from bench.environment import ROOT

LAST_LINES = 8
DUMPS = ("Fatal Python error", "Current thread")
"""How faulthandler begins to tell where a process crashed, or was when it was asked."""
OURS = f'File "{ROOT / "bench"}'


def last_words(lines: Sequence[str]) -> str:
    """The last lines of what a process printed, or the case's calls where Python told of a crash or a hang."""
    told = [line.strip() for line in lines if line.strip()]
    begin = next((n for n, line in enumerate(told) if line.startswith(DUMPS)), None)
    if begin is None:
        return " | ".join(told[-LAST_LINES:])
    # Innermost call first; from `bench` on they are the same for every case. A thread's address would make all differ.
    calls = [line for line in takewhile(lambda line: OURS not in line, told[begin:]) if "0x" not in line]
    return " | ".join(calls[:LAST_LINES])
