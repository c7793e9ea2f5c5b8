"""Two runs in one picture: an arrow from the old rate to the new at each case, under the roofs of the device.

A case keeps its intensity, so arrows are vertical: one that falls is slower. Colour and arrowhead tell the same, for
eyes and printers without colour; what stayed inside its threshold is grey. Cases of one side alone are no points and
are listed in the caption. The verdicts are those of `analysis.verdicts`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.panels import VECTOR_LIMIT, panels_figure
from analysis.roof_lines import COLOURS, sets_of
from analysis.roofline import Device
from analysis.verdicts import COMPARED, Verdict

LOOKS = {
    Verdict.SAME: ("#8a8a8a", ".", "within the threshold, or not sure"),
    Verdict.FAST: ("#0072B2", "^", "faster"),
    Verdict.SLOW: ("#D55E00", "v", "slower"),
}
"""Verdict -> colour, arrowhead, words; in the order they are drawn."""
LISTED = 6
"""Cases of one side alone that the caption names; it counts the others."""


def two_runs_figure(cases: pd.DataFrame, devices: Sequence[Device], title: str, notes: Sequence[str] = ()) -> Figure:
    """Draws a comparison.

    Args:
        cases: as `analysis.compare.Comparison` holds them.
        devices: those of the candidate.
        title: the heading.
        notes: lines for the caption.
    """
    both = cases[cases["verdict"].isin(COMPARED)]
    work = both["flops"] / 1e6
    points = both.assign(
        intensity_flops_per_byte=both["flops"] / both["bytes"],
        tflops_per_s=work / both["candidate_us"],
        before=work / both["baseline_us"],
    )
    return panels_figure(points, devices, title, _draw, [*unmatched(cases), *notes])


def unmatched(cases: pd.DataFrame) -> list[str]:
    """One line for each verdict that leaves a case without an arrow: how many, and the first."""
    lines = []
    for verdict in (Verdict.MISSING, Verdict.NEW, Verdict.INVALID, Verdict.NOT_COMPARABLE):
        ids = cases.loc[cases["verdict"] == verdict, "case_id"].tolist()
        if ids:
            rest = f" and {len(ids) - LISTED} more" if len(ids) > LISTED else ""
            lines.append(f"{verdict}, not drawn ({len(ids)}): {', '.join(ids[:LISTED])}{rest}")
    return lines


def _draw(axes: Axes, rows: pd.DataFrame, device: Device) -> None:
    many = len(rows) > VECTOR_LIMIT
    size = float(np.clip(30 * np.sqrt(100 / max(len(rows), 1)), 3, 30))
    alpha = float(np.clip(np.sqrt(300 / max(len(rows), 1)), 0.12, 0.9))
    handles = []
    for verdict, (colour, head, words) in LOOKS.items():
        # A verdict that is not sure has moved no more than one that is within the threshold.
        wanted = (verdict, Verdict.AMBIGUOUS) if verdict is Verdict.SAME else (verdict,)
        part = rows[rows["verdict"].isin(wanted)]
        if part.empty:
            continue
        x, old, new = (part[name].to_numpy(float) for name in ("intensity_flops_per_byte", "before", "tflops_per_s"))
        shafts = np.stack([np.column_stack([x, old]), np.column_stack([x, new])], axis=1)
        lines = LineCollection(list(shafts), colors=colour, linewidths=0.8, alpha=alpha, zorder=4, rasterized=many)
        axes.add_collection(lines, autolim=False)
        axes.scatter(
            x, new, s=size, marker=head, facecolors=colour, edgecolors="none", alpha=alpha, zorder=5, rasterized=many
        )
        label = f"{words} ({len(part)})"
        handles.append(Line2D([], [], linestyle="none", marker=head, markersize=6, color=colour, label=label))
    for roofs in sets_of(device):
        handles.append(Line2D([], [], color=COLOURS[roofs.kind], linewidth=1.3, label=f"{roofs.kind} roofs"))
    if handles:
        axes.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(1.012, 1.0), borderaxespad=0, fontsize=8, frameon=False
        )
