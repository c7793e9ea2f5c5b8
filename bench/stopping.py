"""When enough samples are enough: the order-statistic interval of the median, and the rule built on it.

The interval needs no distribution: the l-th smallest and the l-th largest of n samples enclose the median with a
probability that is a binomial sum. The analysis uses the same function, so that a run stops by the figure that
the report shows. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

CONFIDENCE = 0.95


@lru_cache(maxsize=4096)
def interval_rank(n: int, confidence: float = CONFIDENCE) -> int | None:
    """How many order statistics in from either end the interval of the median lies; None when n is too small.

    With rank l the interval [x(l), x(n+1-l)] holds the median with probability 1 - 2 P(Bin(n, 1/2) < l). Exact up
    to 1,000 samples, the normal approximation above.
    """
    tail = (1 - confidence) / 2
    if n > 1000:
        deviations = NormalDist().inv_cdf(1 - tail)
        return max(1, math.floor(n / 2 - deviations * math.sqrt(n) / 2))
    below, rank = 0, 0
    limit = tail * 2**n
    while True:
        below += math.comb(n, rank)
        if below > limit:
            return rank or None
        rank += 1


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the 95 % interval, or the extremes where fewer than 6 samples allow none."""
    if not samples:
        raise ValueError("no samples: wanted at least one time")
    ordered = sorted(samples)
    n = len(ordered)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    rank = interval_rank(n) or 1
    return middle, ordered[rank - 1], ordered[n - rank]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """Stop when the interval's half-width is under `relative` of the median, or the budget ends.

    Attributes:
        relative: wanted half-width of the median's interval, as a fraction.
        min_samples: never fewer, so that three lucky samples end nothing; fewer than 6 have no interval, and never
            converge.
        min_s: never less measured time.
        budget_s: measuring stops after this long whatever the interval.
        max_samples: nor more samples than this.
    """

    relative: float = 0.005
    min_samples: int = 30
    min_s: float = 0.1
    budget_s: float = 10.0
    max_samples: int = 20_000

    def reason_to_stop(self, times_us: Sequence[float], elapsed_s: float) -> str:
        """'' to go on; else converged, budget or max_samples."""
        if len(times_us) >= self.min_samples and elapsed_s >= self.min_s and interval_rank(len(times_us)):
            median, low, high = median_interval(times_us)
            if (high - low) / 2 <= self.relative * median:
                return "converged"
        if elapsed_s >= self.budget_s and times_us:
            return "budget"
        return "max_samples" if len(times_us) >= self.max_samples else ""
