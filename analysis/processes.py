"""The processes of two sides in time: whether they were interleaved, their pairs, and the spread of A/A pairs.

A machine that drifts makes whatever runs last look slower: only processes that alternate (ABBA) cancel it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from analysis.stats import pair_spread
from bench.record import Status


@dataclass(frozen=True, slots=True)
class Order:
    """In which order the runs were taken.

    Attributes:
        pairs: run -> number of its pair, of runs that alternate; empty where they do not.
        warnings: an order that makes a drift look like a change, a run that is on both sides.
    """

    pairs: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def order_of(baseline: pd.DataFrame, candidate: pd.DataFrame) -> Order:
    """The order by each run's taken_at: pairs where every two that follow one another are one of each side."""
    taken = [dict(zip(side["run"], side["taken_at"], strict=True)) for side in (baseline, candidate)]
    if both := set(taken[0]) & set(taken[1]):
        return Order(warnings=(f"run {', '.join(sorted(both))} is on both sides: it is compared with itself",))
    runs = sorted((at, side, run) for side, of_side in enumerate(taken) for run, at in of_side.items())
    times, sides = [at for at, _, _ in runs], [side for _, side, _ in runs]
    if min(len(t) for t in taken) < 2:
        return Order()
    if not all(times) or len(set(times)) < len(times):
        return Order(warnings=("when the processes ran is not told: nothing shows that they alternated",))
    if sides in (sorted(sides), sorted(sides, reverse=True)):
        return Order(
            warnings=(
                "blocked order: all processes of one side were taken before those of the other, so a drift of the "
                "machine looks like a change; alternate them (baseline, candidate, candidate, baseline): bench ab does",
            )
        )
    if len(sides) % 2 or any(a == b for a, b in zip(sides[::2], sides[1::2], strict=True)):
        return Order()
    return Order(pairs={run: i // 2 for i, (_, _, run) in enumerate(runs)})


def paired(
    cases: pd.DataFrame, baseline: pd.DataFrame, candidate: pd.DataFrame, order: Order, key: Sequence[str]
) -> pd.DataFrame:
    """Adds n_pairs and var_pairs, of the differences of the logarithms of paired processes; 0 where none are."""
    if not order.pairs or cases.empty:
        return cases.assign(n_pairs=0, var_pairs=0.0)
    sides = []
    for side in (baseline, candidate):
        rows = side[(side["status"] == Status.OK) & (side["time_us"] > 0)]
        sides.append(rows[list(key)].assign(pair=rows["run"].map(order.pairs), log=np.log(rows["time_us"])))
    both = sides[0].merge(sides[1], on=[*key, "pair"], suffixes=("_a", "_b"))
    differences = both.assign(log=both["log_b"] - both["log_a"]).groupby(list(key), dropna=False)["log"]
    found = differences.agg(n_pairs="count", var_pairs="var").reset_index()
    named = found.rename(columns={name: f"{name}_a" for name in key})
    return cases.merge(named, on=[f"{name}_a" for name in key], how="left").fillna({"n_pairs": 0, "var_pairs": 0.0})


def spreads(cases: pd.DataFrame, noise: pd.DataFrame | None, key: Sequence[str]) -> pd.DataFrame:
    """Adds spread, that of the A/A pairs of each case; NaN without any.

    Args:
        noise: runs of one code, frame of `analysis.sides.side_of`.
    """
    if noise is None or cases.empty:
        return cases.assign(spread=np.nan)
    named = of_noise(noise, key)[[*key, "spread"]].rename(columns={name: f"{name}_a" for name in key})
    return cases.merge(named, on=[f"{name}_a" for name in key], how="left")


def of_noise(noise: pd.DataFrame, key: Sequence[str]) -> pd.DataFrame:
    """One row a case of runs of one code: processes, time_us (their median), spread (of its A/A pairs)."""
    rows = noise[(noise["status"] == Status.OK) & (noise["time_us"] > 0)].sort_values("taken_at", kind="stable")
    times = rows.groupby(list(key), sort=False, dropna=False)["time_us"]
    return times.agg(processes="count", time_us="median", spread=pair_spread).reset_index()
