"""The two stages of `bench ab` where the truth is known: simulated processes through the real rule of the verdicts.

Percentages are those that the procedure promises: what it finds, how often it is wrong, and in what order it believes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from analysis.processes import order_of
from analysis.stats import pair_spread, rerun_confidence
from analysis.verdicts import FLAGGED, Rules, confirmed, judged
from bench.cmd_ab import PAIRS, THRESHOLD

Floats = NDArray[np.float64]
CASES = 200
"""Of a sweep."""
OF_MEDIAN = 0.0005
"""What is left of 0.5 % of noise inside a process in the median of a hundred samples."""
CLOCKS = 2
"""Speeds of a bimodal device."""


def processes(random: np.random.Generator, kind: str, spread: float, shape: tuple[int, int, int]) -> Floats:
    """Logarithms of process medians [sweeps, cases, processes] of one speed, with this standard deviation."""
    if kind == "bimodal":
        drawn = 2.0 * random.integers(CLOCKS, size=shape) - 1
    elif kind == "heavy tails":
        drawn = random.standard_t(3, size=shape) / np.sqrt(3)
    else:
        drawn = random.normal(size=shape)
    return np.asarray(spread * drawn + random.normal(0, OF_MEDIAN, shape), dtype=np.float64)


def stage(
    random: np.random.Generator, kind: str, spread: float, drift: float, change: float, pairs: int, sweeps: int
) -> pd.DataFrame:
    """Cases of many sweeps, a row each, as `judged` wants them: ABBA pairs on a device that slows down by `drift`."""
    logs = processes(random, kind, spread, (sweeps, CASES, 2 * pairs)).reshape(-1, 2 * pairs)
    logs += np.log1p(drift * np.linspace(0, 1, 2 * pairs))
    places = np.arange(2 * pairs).reshape(-1, 2)
    places[1::2] = places[1::2, ::-1]
    a, b = logs[:, places[:, 0]], logs[:, places[:, 1]] + np.log1p(change)
    return pd.DataFrame(
        {
            "case_id": [f"case{i}" for i in range(len(logs))],
            "n_a": pairs, "mean_a": a.mean(axis=1), "var_a": a.var(axis=1, ddof=min(1, pairs - 1)),
            "n_b": pairs, "mean_b": b.mean(axis=1), "var_b": b.var(axis=1, ddof=min(1, pairs - 1)),
            "n_pairs": pairs, "var_pairs": (b - a).var(axis=1, ddof=min(1, pairs - 1)),
            "spread": np.nan, "same_code": False,
        }
    )  # fmt: skip


def found(
    kind: str, spread: float, drift: float, change: float, pairs: int, *, sweeps: int, threshold: float = THRESHOLD,
    noise_pairs: int = 0,
) -> NDArray[np.str_]:  # fmt: skip
    """Verdicts [sweeps, cases] after both stages; with `noise_pairs` the floor is that of as many A/A pairs."""
    random = np.random.default_rng(11)
    rules = Rules(threshold=threshold)
    first, again = (stage(random, kind, spread, drift, change, n, sweeps) for n in (pairs, PAIRS))
    if noise_pairs:
        noise = np.exp(processes(random, kind, spread, (sweeps, CASES, 2 * noise_pairs))).reshape(-1, 2 * noise_pairs)
        floor = [pair_spread(times.tolist()) for times in noise]
        first, again = first.assign(spread=floor), again.assign(spread=floor)
    rows = judged(first, rules)
    flagged = rows["verdict"].isin(FLAGGED)
    verdicts = rows["verdict"].astype("object")
    if flagged.any():
        confidence = rerun_confidence(rows.loc[flagged, "few"].sum() / sweeps)
        verdicts[flagged] = confirmed(rows[flagged], judged(again[flagged], rules, confidence))["verdict"]
    return verdicts.to_numpy(dtype=str).reshape(sweeps, CASES)


@pytest.mark.parametrize("noise_pairs", [0, 8])
@pytest.mark.parametrize(("pairs", "least"), [(5, 0.85), (8, 0.99)])
def test_a_slow_down_of_3_percent_is_found(pairs: int, least: float, noise_pairs: int) -> None:
    """At a spread of 1 %, with and without the floor of a `bench noise`; and 3 % faster is FAST as often."""
    for change, verdict in ((0.03, "SLOW"), (-0.03, "FAST")):
        share = (found("normal", 0.01, 0.01, change, pairs, sweeps=10, noise_pairs=noise_pairs) == verdict).mean()
        assert share >= least, (verdict, share)


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "bimodal"])
@pytest.mark.parametrize("drift", [0.0, 0.03])
@pytest.mark.parametrize("spread", [0.0, 0.005, 0.01, 0.015])
def test_the_same_code_is_left_alone(kind: str, drift: float, spread: float) -> None:
    """At most 0.2 false cases in a sweep of 200, up and down, for 5 and for 8 pairs."""
    for pairs in (5, 8):
        verdicts = found(kind, spread, drift, 0.0, pairs, sweeps=200 if spread == 0.015 else 30)
        assert np.isin(verdicts, FLAGGED).sum() / len(verdicts) <= 0.2, pairs


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "bimodal"])
@pytest.mark.parametrize("spread", [0.015, 0.1])
def test_the_same_code_is_left_alone_after_a_screen_by_one_pair(kind: str, spread: float) -> None:
    """One pair flags nearly every case that noise moves: the rerun still calls at most 0.2 of 200 different."""
    verdicts = found(kind, spread, 0.0, 0.0, 1, sweeps=200)
    assert np.isin(verdicts, FLAGGED).sum() / len(verdicts) <= 0.2
    assert (found(kind, spread, 0.0, 1.0, 1, sweeps=10) == "SLOW").mean() >= 0.95


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "bimodal"])
def test_a_sweep_of_the_same_code_passes_a_threshold_of_5_percent(kind: str) -> None:
    """At most 2 % of sweeps have any case that fails them."""
    verdicts = found(kind, 0.015, 0.03, 0.0, 8, sweeps=200, threshold=0.05)
    assert (verdicts == "SLOW").any(axis=1).mean() <= 0.02


def test_one_stage_alone_would_not_do() -> None:
    """What the rerun is for: the first stage flags several cases of the same code in each sweep."""
    rows = judged(stage(np.random.default_rng(3), "normal", 0.01, 0.0, 0.0, 5, 30), Rules(threshold=THRESHOLD))
    assert rows["verdict"].isin(FLAGGED).sum() / 30 > 2


def test_blocked_order_is_warned_of_and_alternating_is_paired() -> None:
    """All of one side first: 3 % of drift looks like a change, so it is told; ABBA is not, and pairs up."""

    def side(prefix: str, minutes: list[int]) -> pd.DataFrame:
        runs = [f"{prefix}{i}" for i in (minutes if any(minutes) else range(len(minutes)))]
        return pd.DataFrame({"run": runs, "taken_at": [f"2026-01-01T00:{i:02d}:00" for i in minutes]})

    blocked = order_of(side("a", [0, 1, 2, 3, 4]), side("b", [5, 6, 7, 8, 9]))
    assert not blocked.pairs and "blocked order" in blocked.warnings[0]
    abba = order_of(side("a", [0, 3, 4, 7]), side("b", [1, 2, 5, 6]))
    assert abba.warnings == () and [abba.pairs[f"a{i}"] for i in (0, 3, 4, 7)] == [0, 1, 2, 3]
    assert [abba.pairs[f"b{i}"] for i in (1, 2, 5, 6)] == [0, 1, 2, 3]
    untold = order_of(side("a", [0, 0]), side("b", [0, 0]))
    assert not untold.pairs and "not told" in untold.warnings[0]
