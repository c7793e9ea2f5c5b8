"""The rule of a verdict where the truth is known, and the values that are shown beside it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.stats import adjusted, pair_spread
from analysis.verdicts import Rules, judged


def cases(spread: float, change: float, processes: int, count: int) -> pd.DataFrame:
    """Cases whose processes scatter by a fraction and whose candidate is slower by one."""
    random = np.random.default_rng(7)
    a, b = random.normal(0, spread, (2, count, processes))
    b = b + np.log1p(change)
    return pd.DataFrame(
        {
            "case_id": [f"case{i}" for i in range(count)],
            "n_a": processes, "mean_a": a.mean(axis=1), "var_a": a.var(axis=1, ddof=1),
            "n_b": processes, "mean_b": b.mean(axis=1), "var_b": b.var(axis=1, ddof=1),
            "n_pairs": 0, "var_pairs": 0.0, "spread": np.nan, "same_code": False,
        }
    )  # fmt: skip


def test_the_same_code_raises_few_alarms_up_and_down() -> None:
    """R16: 2,000 A/A comparisons at 2 % noise and a 5 % threshold: at most 2 % alarms; 10 % slower is found."""
    same = judged(cases(0.02, 0.0, 5, 2000), Rules())["verdict"]
    assert (same == "SLOW").mean() <= 0.01 and (same == "FAST").mean() <= 0.01
    assert (judged(cases(0.02, 0.10, 5, 500), Rules())["verdict"] == "SLOW").mean() > 0.95


def test_adjusted_values_and_the_spread_of_pairs() -> None:
    """By hand: p x count / rank, smallest from above; pairs ln 1.1 and -ln 1.1, a fifth process has none."""
    told = adjusted(np.array([0.01, 0.04, np.nan, 0.03]))
    assert told == pytest.approx([0.03, 0.04, np.nan, 0.04], nan_ok=True)
    assert pair_spread([100, 110, 110, 100, 500]) == pytest.approx(np.log(1.1))
