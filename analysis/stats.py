"""Intervals of a ratio of times between processes, elementwise on columns, and what is read beside them.

Everything is done on logarithms of process-level medians: a ratio is a difference there, and up and down weigh alike.
The interval of one process's median is `bench.stopping.median_interval`; what a ratio means is left to
`analysis.verdicts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
RERUN_CONFIDENCE = 0.97
"""Of what was flagged once. At 95 % twice, 200 cases of the same code have 0.25 false ones at a spread of 1.5 %.

At 97 % they have 0.14, and 8 pairs still find 3 % at a spread of 1 % 99 times in 100; at 98 % they do not (simulated).
"""

CHANCE = 0.2
"""Of any interval of a rerun to exclude 1 by chance, where thresholds alone picked what was rerun."""


def rerun_confidence(screened: float) -> float:
    """Of the intervals of a rerun.

    Args:
        screened: cases that fewer processes than an interval needs flagged. Noise flags nearly all of them, so that the
            rerun alone decides and its intervals share CHANCE; what an interval flagged has passed one test already.
    """
    return max(RERUN_CONFIDENCE, 1 - CHANCE / max(screened, 1))


def welch(sums: Sequence[Floats]) -> tuple[Floats, Floats]:
    """(standard error, degrees of freedom) of the difference of two means whose variances need not be equal.

    Args:
        sums: count, then sample variance of the one side, then of the other: n_a, var_a, n_b, var_b, each [cases].
    """
    n_a, var_a, n_b, var_b = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = var_a / n_a, var_b / n_b
        freedom = (a + b) ** 2 / (a**2 / (n_a - 1) + b**2 / (n_b - 1))
    return np.sqrt(a + b), np.where(np.isfinite(freedom), freedom, n_a + n_b - 2)


def t_interval(
    difference: Floats, error: Floats, freedom: Floats, confidence: float = CONFIDENCE
) -> tuple[Floats, Floats, Floats]:
    """(low, high, p) of differences [cases] with standard errors: the interval and the two-sided p of zero.

    An error of zero leaves nothing to chance: the interval is the difference, p is 1 where that is zero and else 0.
    """
    from scipy import special

    half = special.stdtrit(freedom, (1 + confidence) / 2) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * special.stdtr(freedom, -np.abs(difference / error))
    p = np.where(error == 0, np.where(difference == 0, 1.0, 0.0), p)
    return difference - half, difference + half, p


def ratio_interval(a: Sequence[Floats] | Floats, b: Sequence[Floats] | Floats) -> tuple[Floats, Floats, Floats]:
    """(ratio, low, high) of a / b, elementwise, from what is known of each: value, low and high, each [cases].

    The method of variance estimates recovery on logarithms: of two intervals that do not know of each other, the
    distances of the ends add as squares (Zou and Donner, Statistics in Medicine 27, 2008). NaN where a side has no
    interval.
    """
    (x, x_low, x_high), (y, y_low, y_high) = (
        np.log([np.asarray(part, dtype=float) for part in side]) for side in (a, b)
    )
    down = np.sqrt((x - x_low) ** 2 + (y_high - y) ** 2)
    up = np.sqrt((x_high - x) ** 2 + (y - y_low) ** 2)
    return np.exp(x - y), np.exp(x - y - down), np.exp(x - y + up)


def adjusted(p: Floats) -> Floats:
    """Benjamini-Hochberg adjusted values; NaN stays NaN and counts for nothing."""
    known = ~np.isnan(p)
    out = np.full(len(p), np.nan)
    if known.any():
        from scipy import stats

        out[known] = stats.false_discovery_control(p[known])
    return out


def noise_floor(spread: Any, pairs: Any) -> Any:
    """2 s / sqrt(pairs): what the mean of as many A/A pairs stays below 19 times in 20.

    Args:
        spread: s, of the logarithm of the ratio of two processes of the same code.
        pairs: as many as were compared.
    """
    return 2 * spread / np.sqrt(pairs)


def pair_spread(times_us: Sequence[float]) -> float:
    """s of the processes of the same code in the order taken, 1st with 2nd, 3rd with 4th; NaN below two.

    Around zero, not around their mean: the same code has the same speed, whatever else differed.
    """
    logs = np.log(np.asarray(times_us, dtype=float))
    even = len(logs) // 2 * 2
    differences = logs[1:even:2] - logs[0:even:2]
    return float(np.sqrt(np.mean(differences**2))) if even else float("nan")
