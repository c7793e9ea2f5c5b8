"""Provider against provider at the same case: the ratio of medians with its interval, and geometric means a family.

Which times may stand beside each other is left to `analysis.providers`, the interval's rule to `analysis.stats`. Every
pair of providers is a pair here, also where the yardstick of `providers.provider_table` did not run.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.families import storage_of
from analysis.methods import METHOD, cache_kind
from analysis.providers import BASELINE, KEY, latest
from analysis.stats import ratio_interval

FEWEST = 6
"""Samples from which a median has a 95 % interval (`bench.stopping`); of fewer there are extremes alone."""
TIMES = ("time_us", "low_us", "high_us")
COLUMNS = (
    "case", "device", "provider_a", "provider_b", "ratio", "low", "high", "a_us", "b_us", "family", *METHOD,
    "includes_a", "includes_b", "same_work", "suspect",
)  # fmt: skip
FAMILY = ("device", "family", *METHOD, "provider_a", "provider_b", "same_work")
NOTE = (
    "Ratio = time of A / time of B: above 1, B is the faster. The interval is of one process a side (95 %), "
    "none below six samples; what another process would time is not in it."
)


def against(points: pd.DataFrame) -> pd.DataFrame:
    """One row for each case and pair of providers that ran it in the same way on one device; COLUMNS.

    Args:
        points: as `analysis.roofline.points` gives them; invalid ones are left out, and of a case measured twice the
            later run counts.

    Returns:
        ratio = a_us / b_us; low and high its 95 % interval, NaN where a side has fewer than FEWEST samples. `case` is
        the id without its provider; same_work is False where one time holds work that the other does not, suspect is
        True where either is flagged so.
    """
    rows = latest(points)
    if rows.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    rows = _with_interval_or_none(rows).assign(
        case=rows["op"] + "/" + rows["workload"],
        family=rows["op"] + " " + rows["phase"] + " " + storage_of(rows),
        same=rows.groupby(list(KEY), sort=False, dropna=False).ngroup(),
        rank=rows["provider"].map(_ranks(rows["provider"])),
    )
    told = ["same", "rank", "provider", *TIMES, "includes", "flags"]
    pairs = rows[["case", "device", "family", *METHOD, *told]].merge(rows[told], on="same", suffixes=("_a", "_b"))
    pairs = pairs[pairs["rank_a"] < pairs["rank_b"]].reset_index(drop=True)
    a, b = ([pairs[f"{name}_{side}"].to_numpy(float) for name in TIMES] for side in "ab")
    ratio, low, high = ratio_interval(a, b)
    made = pairs.assign(ratio=ratio, low=low, high=high, a_us=a[0], b_us=b[0])
    suspect = pairs["flags_a"].str.contains("suspect") | pairs["flags_b"].str.contains("suspect")
    return made.assign(same_work=pairs["includes_a"] == pairs["includes_b"], suspect=suspect)[list(COLUMNS)]


def geomeans(pairs: pd.DataFrame) -> pd.DataFrame:
    """Per FAMILY: geometric mean of the ratio over the cases of both, their count, and how many are sure.

    Args:
        pairs: what `against` gives.

    Returns:
        FAMILY (cold and flushed are one way), geomean, count, and faster and slower: cases where the whole interval
        says that B is. Cases whose times hold different work have a row of their own.
    """
    columns = [*FAMILY, "geomean", "count", "faster", "slower"]
    if pairs.empty:
        return pd.DataFrame(columns=columns)
    rows = pairs.assign(
        cache=cache_kind(pairs["cache"]), log=np.log(pairs["ratio"]), faster=pairs["low"] > 1, slower=pairs["high"] < 1
    )
    grouped = rows.groupby(list(FAMILY), sort=False, dropna=False).agg(
        mean=("log", "mean"), count=("log", "size"), faster=("faster", "sum"), slower=("slower", "sum")
    )
    found = grouped.reset_index()
    return found.assign(geomean=np.exp(found["mean"]))[columns]


def _with_interval_or_none(rows: pd.DataFrame) -> pd.DataFrame:
    enough = rows["samples"] >= FEWEST
    return rows.assign(low_us=rows["low_us"].where(enough), high_us=rows["high_us"].where(enough))


def _ranks(providers: pd.Series[str]) -> dict[str, int]:
    """The yardstick first, then those of most cases, so that a pair always stands the same way round."""
    counts = providers.value_counts()
    ordered = sorted(counts.index, key=lambda name: (name != BASELINE, -counts[name], name))
    return {name: rank for rank, name in enumerate(ordered)}
