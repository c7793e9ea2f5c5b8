"""Signals that end a process: a machine taken away, or a line that drops, ends a command as Ctrl-C does, tidily."""

from __future__ import annotations

import signal
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def end_on_signals() -> None:
    """Has each raise KeyboardInterrupt, once: what is tidied up after that is not to be interrupted."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for again in ENDING:
            signal.signal(again, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has it ignored, so that a dropped line ends nothing
            signal.signal(number, interrupt)
