"""Words beside a point: drift and suspect, as the analysis finds them, beside what the run itself flagged.

A run cannot know its roofs, so a time below what they allow is marked here, on reading: suspect, and no more than
that, since the roof may be the stale one. A time that the run flagged suspect is another matter: its clock did not see
the work (`bench.clock`), so `analysis.roofline` calls it invalid. Published rows keep the flags they came with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.families import ROOFED
from analysis.reasons import TOLERANCE

DRIFT = 0.05
"""Change between first and last tenth of the samples that is flagged."""
DRIFT_SAMPLES = 20
"""Fewer say nothing of a trend: a tenth would be a single sample."""


def drift_of(times_us: Sequence[float]) -> float:
    """Median of the last tenth over that of the first, less 1; NaN for few samples. Times in the order taken."""
    tenth = len(times_us) // 10
    if len(times_us) < DRIFT_SAMPLES:
        return math.nan
    first, last = float(np.median(times_us[:tenth])), float(np.median(times_us[-tenth:]))
    return last / first - 1 if first > 0 else math.nan


def doubted(frame: pd.DataFrame) -> pd.Series[bool]:
    """Rows whose own run says that their times may not be the kernels'."""
    return frame["flags"].str.contains("suspect") & (frame["timer"] != "published")


def with_flags(frame: pd.DataFrame) -> pd.DataFrame:
    """Adds the words to `flags` of classified rows."""
    beyond = frame["class"].isin(ROOFED) & (frame["fraction_of_attainable"] > TOLERANCE)
    found = {
        "drift": frame["drift"].abs() > DRIFT,
        "suspect": beyond & frame["measured_us"].notna() & (frame["timer"] != "published"),
    }
    flags = frame["flags"]
    for word, holds in found.items():
        flags = flags.where(~holds | flags.str.contains(word), flags.where(flags == "", flags + "; ") + word)
    return frame.assign(flags=flags)
