"""Words of the page: lists, factors and the names of devices."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.frame import device_label
from analysis.tables import number
from bench.record import Environment


def listed(texts: Iterable[object]) -> str:
    """`a, b and c`; '' of nothing."""
    names = [str(text) for text in texts if text]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def times(factor: float) -> str:
    """A factor as printed: `1.24x`, `27x`, `1,200x`."""
    return f"{factor:,.0f}x" if factor >= 100 else f"{factor:.3g}x"


def duration(time_us: float) -> str:
    """A time as printed: us below a millisecond."""
    return f"{number(time_us)} us" if time_us < 1000 else f"{number(time_us / 1e3)} ms"


def name_of(environment: Environment) -> str:
    """The device as a page names it; '' where nothing does."""
    label = device_label(environment)
    return (
        f"{label} ({environment.threads} threads)"
        if environment.device_type == "cpu" and environment.threads
        else label
    )
