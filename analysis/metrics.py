"""Rates: the only place where work is divided by time.

Units: time in microseconds, work in FLOPs and bytes; 1 TFLOP/s = 1e12 FLOP/s, 1 GB/s = 1e9 byte/s. Binary units
(2^30) appear nowhere near a rate.
"""

from __future__ import annotations

import pandas as pd


def tflops_per_s(flops: pd.Series[float], time_us: pd.Series[float]) -> pd.Series[float]:
    """FLOPs per microsecond are 1e6 FLOP/s, so divide by 1e6 for tera."""
    return flops / time_us / 1e6


def gb_per_s(num_bytes: pd.Series[float], time_us: pd.Series[float]) -> pd.Series[float]:
    """Bytes per microsecond are 1e6 byte/s, so divide by 1e3 for giga: 1 GB in 1 ms is 1,000 GB/s."""
    return num_bytes / time_us / 1e3


def with_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with intensity_flops_per_byte, tflops_per_s and gb_per_s; NaN where there is no usable time."""
    usable = frame["time_us"].where(frame["time_us"] > 0)
    return frame.assign(
        intensity_flops_per_byte=frame["flops"] / frame["bytes"].where(frame["bytes"] > 0),
        tflops_per_s=tflops_per_s(frame["flops"], usable),
        gb_per_s=gb_per_s(frame["bytes"], usable),
    )
