"""Ticks on the roofline: what the compiled kernel's instruction mix allows, under the roof of its dtype.

Only where the compute roof is the limit, right of the ridge, since a ceiling is a share of that roof.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.compile_ceilings import CEILINGS
from analysis.roofline import Device

STYLES = dict(zip(CEILINGS, ("-", (0, (1, 1))), strict=True))
HALF_WIDTH = 1.16
"""A tick reaches from its intensity by this factor to both sides."""
COLOUR = "#CC79A7"


def ticks_of(rows: pd.DataFrame, device: Device) -> list[tuple[str, float, float]]:
    """(which of CEILINGS, intensity, TFLOP/s) of each tick: one for each kernel and roof, at its rightmost point."""
    roofs = device.datasheet or device.measured
    if roofs is None or not set(CEILINGS) <= set(rows.columns):
        return []
    ticks = []
    for (_, dtype, _, _), group in rows.dropna(subset=list(CEILINGS)).groupby(["op", "dtype", *CEILINGS]):
        intensity = float(group["intensity_flops_per_byte"].max())
        if dtype in roofs.tflops and intensity >= roofs.ridge(str(dtype)):
            ticks += [(name, intensity, float(group[name].iloc[0]) * roofs.tflops[str(dtype)]) for name in CEILINGS]
    return ticks


def draw_ticks(axes: Axes, rows: pd.DataFrame, device: Device) -> list[Line2D]:
    """Draws the ticks; returns their entry in the legend, none where there are none."""
    ticks = ticks_of(rows, device)
    for name, intensity, tflops in ticks:
        ends = [intensity / HALF_WIDTH, intensity * HALF_WIDTH]
        axes.plot(ends, [tflops] * 2, color=COLOUR, linewidth=2.2, linestyle=STYLES[name], zorder=6, gid="ceiling")
    if not ticks:
        return []
    texts = ("compile ceiling, pipes at once; not a speed", "compile ceiling, pipes in turn; not a speed")
    return [
        Line2D([], [], color=COLOUR, linewidth=2.2, linestyle=STYLES[name], label=text)  # type: ignore[arg-type]
        for name, text in zip(CEILINGS, texts, strict=True)
    ]
