"""When to stop: the interval of the median against scipy's binomial and by simulation, and the rule built on it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from bench.stopping import StopRule, interval_rank, median_interval

STEADY = [10.0] * 50


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("n", [1, 4, 5, 6, 7, 8, 9, 20, 31, 100, 999, 1000])
def test_rank_is_the_narrowest_with_the_confidence(n: int, confidence: float) -> None:
    """[x(l), x(n+1-l)] holds the median with probability 1 - 2 P(Bin(n, 1/2) <= l - 1)."""
    holding = [rank for rank in range(1, n // 2 + 1) if 1 - 2 * binom.cdf(rank - 1, n, 0.5) >= confidence]
    assert interval_rank(n, confidence) == (max(holding) if holding else None)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("n", [1001, 1234, 5000, 19_999, 20_000])
def test_rank_of_many_samples_keeps_the_confidence_and_is_at_most_one_too_wide(n: int, confidence: float) -> None:
    rank = interval_rank(n, confidence)
    assert rank is not None
    assert 1 - 2 * binom.cdf(rank - 1, n, 0.5) >= confidence
    assert 1 - 2 * binom.cdf(rank + 1, n, 0.5) < confidence


def test_five_samples_have_no_interval_and_six_have_their_extremes() -> None:
    """1 - 2/2^5 is 93.75 %, 1 - 2/2^6 is 96.9 %."""
    assert (interval_rank(5), interval_rank(6), interval_rank(9)) == (None, 1, 2)
    assert median_interval([3, 1, 2]) == (2, 1, 3)
    assert median_interval([6, 5, 4, 3, 2, 1]) == (3.5, 1, 6)
    assert median_interval([9, 8, 7, 6, 5, 4, 3, 2, 1]) == (5, 2, 8)
    assert median_interval([7.0]) == (7, 7, 7)


def test_no_samples_have_no_median() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


@pytest.mark.parametrize("n", [6, 15, 40, 1500])
def test_interval_covers_the_true_median_of_a_skewed_distribution(n: int) -> None:
    """Latencies have a long right tail: 2,000 samples of a log-normal whose median is 1, at least 95 % - 3 sigma."""
    drawn = np.random.default_rng(20).lognormal(0.0, 0.7, size=(2000, n))
    intervals = [median_interval(row.tolist()) for row in drawn]
    covered = sum(low <= 1.0 <= high for _, low, high in intervals) / len(intervals)
    assert covered >= 0.95 - 3 * (0.95 * 0.05 / 2000) ** 0.5
    assert [middle for middle, _, _ in intervals] == pytest.approx(np.median(drawn, axis=1).tolist())


def test_steady_samples_converge() -> None:
    assert StopRule().reason_to_stop(STEADY, 1.0) == "converged"


@pytest.mark.parametrize(
    ("count", "elapsed_s", "reason"),
    [
        (29, 1.0, ""),
        (30, 0.05, ""),
        (30, 0.1, "converged"),
        (29, 10.0, "budget"),
    ],
)
def test_neither_few_samples_nor_a_short_time_converge(count: int, elapsed_s: float, reason: str) -> None:
    assert StopRule().reason_to_stop([10.0] * count, elapsed_s) == reason


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_lucky_first_samples_end_nothing_however_loose_the_rule(count: int) -> None:
    loose = StopRule(min_samples=1, min_s=0.0)
    assert loose.reason_to_stop([10.0] * count, 1.0) == ""
    assert loose.reason_to_stop([10.0] * 6, 1.0) == "converged"


def test_interval_half_width_decides() -> None:
    """Of 40 samples the 14th and the 27th bound the median: 99.6 to 100.4 is 0.4 %, 99.4 to 100.6 is 0.6 %."""
    assert interval_rank(40) == 14
    assert StopRule().reason_to_stop([99.6, 100.4] * 20, 1.0) == "converged"
    assert StopRule().reason_to_stop([99.4, 100.6] * 20, 1.0) == ""
    assert StopRule(relative=0.007).reason_to_stop([99.4, 100.6] * 20, 1.0) == "converged"


def test_outliers_do_not_keep_a_steady_median_from_converging() -> None:
    assert StopRule().reason_to_stop([10.0] * 45 + [500.0] * 5, 1.0) == "converged"


def test_noisy_samples_end_by_budget_or_by_number() -> None:
    noisy = [1.0, 100.0] * 20
    assert StopRule(budget_s=2.0).reason_to_stop(noisy, 1.9) == ""
    assert StopRule(budget_s=2.0).reason_to_stop(noisy, 2.0) == "budget"
    assert StopRule(max_samples=40).reason_to_stop(noisy, 1.0) == "max_samples"
    assert StopRule(max_samples=41).reason_to_stop(noisy, 1.0) == ""


def test_no_sample_no_reason() -> None:
    assert StopRule().reason_to_stop([], 100.0) == ""
