"""The verdict on each case, from its process-level medians: the rule alone, on columns.

Which times belong together is left to `analysis.compare`, what may be compared to `analysis.comparable`. Never a pool
of samples: with a spread of 0.5 % between processes, pooled samples raise a false alarm four times in five.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pandas as pd

from analysis import stats

ENOUGH = 3
"""Processes a side from which an interval decides."""
SINGLE_FLOORS = 3
"""Times the A/A floor that a change must pass where there are fewer."""
UNCONFIRMED = "; unconfirmed: not rerun"
ROUNDING = 1e-9
"""A change of exactly the threshold has not passed it, whatever the last digit of a quotient says."""


class Verdict(StrEnum):
    """What is said of a case."""

    SLOW = "SLOW"
    FAST = "FAST"
    SAME = "SAME"
    AMBIGUOUS = "AMBIGUOUS"
    INVALID = "INVALID"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    MISSING = "MISSING"
    NEW = "NEW"


COMPARED = (Verdict.SLOW, Verdict.FAST, Verdict.SAME, Verdict.AMBIGUOUS)
FLAGGED = (Verdict.SLOW, Verdict.FAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How large a change must be.

    Attributes:
        threshold: fraction that a change must pass.
        of_cases: (pattern of case ids, threshold); the last that matches counts.
        min_abs_us: a smaller change in microseconds is none.
    """

    threshold: float = 0.05
    of_cases: Sequence[tuple[str, float]] = field(default=())
    min_abs_us: float = 0.0

    def thresholds(self, case_ids: pd.Series[str]) -> pd.Series[float]:
        """The threshold of each case."""
        found = pd.Series(self.threshold, index=case_ids.index, dtype="float64")
        for pattern, threshold in self.of_cases:
            found = found.mask(case_ids.map(re.compile(fnmatch.translate(pattern)).match).notna(), threshold)
        return found


def judged(cases: pd.DataFrame, rules: Rules, confidence: float = stats.CONFIDENCE) -> pd.DataFrame:
    """Adds ratio, low, high, p, adjusted_p, verdict and reason to cases that both sides timed.

    Args:
        cases: case_id, n_a, mean_a, var_a (of the logarithms of process medians of the baseline), the same with _b,
            n_pairs, var_pairs (of the differences of paired processes; 0 where there are none), spread (s of A/A
            pairs, NaN where unknown), and same_code (both sides launched the same binaries, as they tell).
        rules: how large a change must be.
        confidence: of the interval.
    """
    rows = _with_interval(cases, confidence)
    few = np.minimum(rows["n_a"], rows["n_b"]) < ENOUGH
    change = rows["ratio"] - 1
    pairs = np.where(rows["n_pairs"] >= ENOUGH, rows["n_pairs"], np.minimum(rows["n_a"], rows["n_b"]))
    floor = stats.noise_floor(rows["spread"], np.maximum(pairs, 1)).fillna(0.0)
    bar = np.maximum(rules.thresholds(rows["case_id"]), np.where(few, SINGLE_FLOORS, 1) * floor)
    small = (rows["candidate_us"] - rows["baseline_us"]).abs() < rules.min_abs_us
    past = change.abs() > bar + ROUNDING
    sure = (rows["low"] > 1) | (rows["high"] < 1)
    flagged = past & ~small & (few | sure)
    within = (rows["low"] >= 1 - bar - ROUNDING) & (rows["high"] <= 1 + bar + ROUNDING)
    same = ~flagged & ((cases["same_code"] & ~past) | (~few & (within | (small & past & sure))))
    moved = np.where(change > 0, Verdict.SLOW.value, Verdict.FAST.value)
    verdict = np.where(flagged, moved, np.where(same, Verdict.SAME.value, Verdict.AMBIGUOUS.value))
    rows = rows.assign(bar=bar, small=small & past, few=few, verdict=verdict)
    columns = [*(rows[name].tolist() for name in TOLD), [rules.min_abs_us] * len(rows), [confidence] * len(rows)]
    return rows.assign(reason=[_reason(*told) for told in zip(*columns, strict=True)])


def _with_interval(cases: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """The ratio of geometric means with its interval: of the pairs where processes are paired, else Welch's."""
    n_a, mean_a, var_a = (cases[f"{name}_a"].to_numpy(dtype=float) for name in ("n", "mean", "var"))
    n_b, mean_b, var_b = (cases[f"{name}_b"].to_numpy(dtype=float) for name in ("n", "mean", "var"))
    pairs = cases["n_pairs"].to_numpy(dtype=float)
    paired = (pairs >= ENOUGH) & (pairs == n_a) & (pairs == n_b)
    error, freedom = stats.welch((n_a, var_a, n_b, var_b))
    of_pairs = np.sqrt(cases["var_pairs"].to_numpy(dtype=float) / np.maximum(pairs, 1))
    error, freedom = np.where(paired, of_pairs, error), np.where(paired, pairs - 1, freedom)
    difference = mean_b - mean_a
    enough = np.minimum(n_a, n_b) >= ENOUGH
    error, freedom = np.where(enough, error, np.nan), np.where(enough, freedom, np.nan)
    low, high, p = stats.t_interval(difference, error, freedom, confidence)
    return cases.assign(
        n_pairs=np.where(paired, pairs, 0), baseline_us=np.exp(mean_a), candidate_us=np.exp(mean_b),
        ratio=np.exp(difference), low=np.exp(low), high=np.exp(high), p=p, adjusted_p=stats.adjusted(p),
    )  # fmt: skip


TOLD = ("verdict", "ratio", "low", "high", "bar", "n_a", "n_b", "n_pairs", "few", "small", "same_code", "adjusted_p")


def _reason(
    verdict: str, ratio: float, low: float, high: float, bar: float, n_a: int, n_b: int, n_pairs: int, few: bool,
    small: bool, same_code: bool, adjusted_p: float, min_abs_us: float, confidence: float,
) -> str:  # fmt: skip
    change = f"{100 * (ratio - 1):+.2f} %"
    past = f"{'past' if abs(ratio - 1) > bar + ROUNDING else 'not past'} {100 * bar:.3g} %"
    said = f"{change}, {past}"
    if small:
        said += f", but less than {min_abs_us:g} us"
    end = UNCONFIRMED if verdict in FLAGGED else ""
    if same_code:
        said = f"same code (identical cubins and configuration): {said}"
        end = f"; noise, or code on the host{end}" if end else ""
    if few:
        fewest = int(min(n_a, n_b))
        return f"{'one process' if fewest == 1 else f'{fewest} processes'} a side: {said}{end}"
    how = f"{int(n_pairs)} pairs" if n_pairs else f"{int(n_a)} and {int(n_b)} processes"
    interval = f"{100 * confidence:.4g} % interval {100 * (low - 1):+.2f} to {100 * (high - 1):+.2f} % of {how}"
    return f"{said}, {interval}, adjusted p {adjusted_p:.2g}{end}"


def confirmed(flagged: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """Flagged cases with what fresh processes say of them: their numbers, and SLOW or FAST only of the same sign.

    The fresh times are the ones to believe: the first were picked for being far out.

    Args:
        flagged: verdict (SLOW or FAST) and reason a case.
        again: FRESH of the same cases in the rerun; the verdict is NaN where it has none.

    Returns:
        FRESH: AMBIGUOUS what was not flagged again, INVALID what has no second time.
    """
    first = "; at first: " + flagged["reason"].str.removesuffix(UNCONFIRMED)
    told = again["reason"].astype("object").where(again["verdict"].notna(), "the case is not in it")
    told = told.str.removesuffix(UNCONFIRMED)
    timed = again["verdict"].isin(COMPARED)
    holds = again["verdict"] == flagged["verdict"]
    said = np.where(holds, "confirmed by a rerun: ", np.where(timed, "not confirmed by a rerun: ", "rerun: "))
    verdict = np.where(timed, Verdict.AMBIGUOUS.value, Verdict.INVALID.value)
    return again.assign(verdict=flagged["verdict"].where(holds, verdict), reason=said + told + first)[list(FRESH)]


FRESH = ("baseline_us", "candidate_us", "ratio", "low", "high", "adjusted_p", "verdict", "reason")
"""What a rerun replaces."""
