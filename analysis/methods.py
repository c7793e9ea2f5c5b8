"""How a point was measured, and points apart by it: what was measured differently shares no table and no mean.

A cold time is DRAM's, a hot one the cache's; a burst runs at a higher clock than sustained load; events hold gaps that
a graph has not; zeros draw less power. Flushed is cold by other means, so those two share a table, where the column
`cache` tells them apart; a row never holds both.
"""

from __future__ import annotations

import pandas as pd

METHOD = ("timer", "cache", "regime", "launch", "inputs")
"""What two times must share to be compared."""
COLD = ("cold", "flush")


def cache_kind(cache: pd.Series[str]) -> pd.Series[str]:
    """Cold for both ways to be cold, else as it is."""
    return cache.where(~cache.isin(COLD), "cold")


def by_method(points: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The points of each way of measuring, those of the commonest first, with what to add to a heading.

    The heading names what is not the same everywhere: `cache hot, regime sustained`; it is '' for a single way.
    """
    if points.empty:
        return [("", points)]
    keys = points[list(METHOD)].assign(cache=cache_kind(points["cache"])).fillna("")
    differing = [name for name in METHOD if keys[name].nunique() > 1]
    if not differing:
        return [("", points)]
    parts = list(points.groupby([keys[name] for name in differing], sort=False))
    parts.sort(key=lambda part: -len(part[1]))
    return [(_heading(differing, values), rows) for values, rows in parts]


def _heading(names: list[str], values: object) -> str:
    told = values if isinstance(values, tuple) else (values,)
    return ", ".join(f"{name} {value or 'not told'}" for name, value in zip(names, told, strict=True))
