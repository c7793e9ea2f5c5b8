"""One sentence a family (op x phase x dtype, by provider): how many cases, what bounds them, how near they are.

Cases that were measured in different ways are different families, and their sentences name the way.
"""

from __future__ import annotations

import pandas as pd

from analysis.methods import by_method
from analysis.providers import workload_of
from analysis.reasons import TOLERANCE

FAMILY = ("device", "op", "phase", "storage", "provider", "method")
ROOFED = ("overhead-bound", "near the ridge", "memory-bound", "compute-bound")
"""The classes for which a fraction of attainable says something: no roof applies to the others."""


def storage_of(points: pd.DataFrame) -> pd.Series[str]:
    """The dtype, with the storage of weights and KV and the scales where they differ, as in a case id."""
    parts = [("weight_dtype", ".w_"), ("kv_dtype", ".kv_"), ("scale", ".")]
    text = points["dtype"].astype("str")
    for column, mark in parts:
        held = points[column].fillna("").astype("str")
        text = text + (mark + held).where(held != "", "")
    return text


def families(points: pd.DataFrame) -> pd.DataFrame:
    """One row a family: FAMILY, cases, classes (name -> count), low, median, high of attainable, worst, sentence."""
    rows = points.assign(storage=storage_of(points), workload=workload_of(points), method="")
    for method, part in by_method(points):
        rows.loc[part.index, "method"] = method
    groups = [_family(part) for _, part in rows.groupby(list(FAMILY))]
    columns = [*FAMILY, "cases", "classes", "low", "median", "high", "worst", "sentence"]
    return pd.DataFrame(groups, columns=columns)


def _family(rows: pd.DataFrame) -> dict[str, object]:
    names = {column: str(rows[column].iloc[0]) for column in FAMILY}
    roofed = rows[rows["class"].isin(ROOFED)]
    fractions = roofed["fraction_of_attainable"].dropna()
    worst = str(roofed["workload"].iloc[int(roofed["fraction_of_attainable"].argmin())]) if len(fractions) else ""
    family: dict[str, object] = {
        **names,
        "cases": len(rows),
        "classes": {str(k): int(n) for k, n in rows["class"].value_counts().items()},
        "low": float(fractions.min()) if len(fractions) else None,
        "median": float(fractions.median()) if len(fractions) else None,
        "high": float(fractions.max()) if len(fractions) else None,
        "worst": worst,
    }
    return family | {"sentence": _sentence(names, family, rows)}


def _sentence(names: dict[str, str], family: dict[str, object], rows: pd.DataFrame) -> str:
    counts = rows["class"].replace("no roofs", "without roofs").value_counts()
    number = len(rows)
    one = str(counts.index[0])
    if len(counts) == 1:
        bound = one if number == 1 else f"all {one}"
    else:
        bound = ", ".join(f"{n} {name}" for name, n in counts.items())
    text = f"{names['op']} {names['phase']} {names['storage']} ({names['provider']}"
    text += f"; {names['method']}): " if names["method"] else "): "
    text += f"{number} case{'s' if number > 1 else ''}, {bound}"
    low, median, high = family["low"], family["median"], family["high"]
    if not (isinstance(low, float) and isinstance(median, float) and isinstance(high, float)):
        return f"{text}; no fraction of attainable applies."
    span = f"{_share(low)} to {_share(high)} of attainable (median {_share(median)})"
    text += f", {span}" if _share(low) != _share(high) else f", {_share(low)} of attainable"
    above = int((rows.loc[rows["class"].isin(ROOFED), "fraction_of_attainable"] > TOLERANCE).sum())
    # Published sets are fits to rows like these, so half of them lie above; a device's own roof should not be beaten.
    told = (
        "above the measured roofs, which are fits"
        if (rows["timer"] == "published").all()
        else "above the roof (stale?)"
    )
    text += f", {above} {told}" if above else ""
    if number == 1:
        return f"{text}."
    factor = f"{1 / low:.3g}" if low > 0.01 else f"{1 / low:.0f}"
    gain = f"up to {factor}x" if low < 1 / TOLERANCE else "at the roof"
    return f"{text}; most to gain: {family['worst']}, {gain}."


def _share(fraction: float) -> str:
    """Two decimals, or two digits where decimals would round it to nothing."""
    return f"{fraction:.2f}" if fraction >= 0.1 else f"{fraction:.2g}"
