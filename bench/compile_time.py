"""How much of a call Triton spent on compiling: what a first call holds that no later one does.

Needs Triton's compilation listener, which 3.6.0 to 3.9.0 have; a listener that somebody else has set is still told.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def compile_time() -> Iterator[list[float]]:
    """Fills a list with the seconds of each kernel compiled inside; 0 for one that came from Triton's cache."""
    seconds: list[float] = []
    try:
        from triton import knobs
    except ImportError:
        yield seconds
        return
    before = knobs.compilation.listener

    def note(**told: Any) -> None:
        seconds.append(0.0 if told["cache_hit"] else told["times"].total / 1e6)
        if before:
            before(**told)

    knobs.compilation.listener = note
    try:
        yield seconds
    finally:
        knobs.compilation.listener = before
