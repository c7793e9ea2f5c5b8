"""The roofline figure: useful FLOP per compulsory byte against useful TFLOP/s, one panel a device.

Colour is the phase, the marker the op, hollow means overhead-bound, a cross invalid. Roofs and their labels are left
to `analysis.roof_lines`, axes and captions to `analysis.panels`, the lines between points to `analysis.trajectories`,
and files to `analysis.outputs`.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.compile_ticks import draw_ticks
from analysis.panels import PLOT_HEIGHT_IN, VECTOR_LIMIT, dtypes_of, panels_figure
from analysis.roof_lines import BAND_COLOUR, COLOURS, bands, sets_of, short
from analysis.roofline import Device
from analysis.trajectories import Trajectory, longest, trajectories

PHASE_COLOURS = {"prefill": "#0072B2", "decode": "#D55E00", "mixed": "#009E73"}
"""Okabe-Ito: told apart with any common colour blindness."""
OTHER_COLOUR = "#555555"
OWN_PROVIDER = "triton"
MARKERS = ("o", "s", "^", "D", "v", "P", "h", "<", ">", "p", "*", "d", "H", "8")
PROVIDER_STYLES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)))


def roofline_figure(points: pd.DataFrame, devices: Sequence[Device], title: str, notes: Sequence[str] = ()) -> Figure:
    """Draws classified points under the roofs of their devices.

    Args:
        points: as `analysis.roofline.points` gives them.
        devices: those that the points name; one without points has a panel only where no device has points.
        title: the heading.
        notes: lines for the caption, as run and date.
    """
    return panels_figure(points, devices, title, _draw_panel, notes)


def _draw_panel(axes: Axes, rows: pd.DataFrame, device: Device) -> None:
    lines = trajectories(rows)
    _draw_trajectories(axes, lines)
    _draw_points(axes, rows)
    _draw_legend(axes, rows, device, dtypes_of(rows, device), lines, draw_ticks(axes, rows, device))


def error_bars(points: pd.DataFrame) -> tuple[pd.Series[float], pd.Series[float]]:
    """TFLOP/s below and above each point from the interval of its median; never negative, whatever was rounded."""
    rate, time = points["tflops_per_s"], points["time_us"]
    below = rate - rate * time / points["high_us"]
    above = rate * time / points["low_us"].where(points["low_us"] > 0) - rate
    return below.clip(lower=0).fillna(0.0), above.clip(lower=0).fillna(0.0)


def _draw_trajectories(axes: Axes, lines: Sequence[Trajectory]) -> None:
    if not lines:
        return
    styles = provider_styles(lines)
    named = longest(list(lines), most=3 if len(lines) > 60 else 6)
    chosen = {id(line) for line in named}
    faint = min(0.5, max(0.06, 12 / len(lines)))
    for provider, style in styles.items():
        for strong in (False, True):
            segments = [
                np.column_stack([t.intensity, t.rate])
                for t in lines
                if t.provider == provider and (id(t) in chosen) is strong
            ]
            axes.add_collection(
                LineCollection(
                    segments, colors="#333333", linewidths=0.9 if strong else 0.6, linestyles=[style],
                    alpha=0.9 if strong else faint, zorder=5 if strong else 3, rasterized=len(lines) > VECTOR_LIMIT,
                ),
                autolim=False,
            )  # fmt: skip
    _label_ends(axes, named)


def provider_styles(lines: Sequence[Trajectory]) -> dict[str, object]:
    """Provider -> line style, in the order of their names."""
    return dict(zip(sorted({t.provider for t in lines}), cycle(PROVIDER_STYLES), strict=False))


def _label_ends(axes: Axes, named: Sequence[Trajectory]) -> None:
    """Names the ends of the chosen lines; an end that has no free side for its label stays without."""
    taken = [t.get_window_extent() for t in axes.texts]
    inside = axes.get_window_extent()
    for line in named:
        for label, x, y in zip(line.end_labels, line.intensity[[0, -1]], line.rate[[0, -1]], strict=True):
            for right, up in ((True, False), (False, True), (True, True), (False, False)):
                text = axes.annotate(
                    label, (x, y), xytext=(4 if right else -4, 3 if up else -3), textcoords="offset points",
                    ha="left" if right else "right", va="bottom" if up else "top", fontsize=6.5, zorder=7,
                    gid="size-label", bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.4},
                )  # fmt: skip
                box = text.get_window_extent().padded(2)
                fits = inside.x0 < box.x0 and box.x1 < inside.x1 and inside.y0 < box.y0 and box.y1 < inside.y1
                if fits and not any(box.overlaps(other) for other in taken):
                    taken.append(box)
                    break
                text.remove()


def markers_of(rows: pd.DataFrame) -> dict[str, str]:
    """Op -> marker, in the order of their names."""
    return dict(zip(sorted(rows["op"].unique()), cycle(MARKERS), strict=False))


def _is_baseline(rows: pd.DataFrame) -> pd.Series[bool]:
    """Where this suite's own kernels are in the picture, everybody else's points are drawn small."""
    other = rows["provider"] != OWN_PROVIDER
    return other & (not other.all())


def _draw_points(axes: Axes, rows: pd.DataFrame) -> None:
    size = float(np.clip(36 * math.sqrt(80 / max(len(rows), 1)), 7, 36))
    alpha = float(np.clip(0.9 * math.sqrt(150 / max(len(rows), 1)), 0.3, 0.9))
    below, above = error_bars(rows)
    markers = markers_of(rows)
    kind = rows["class"].where(rows["class"].isin(["invalid", "overhead-bound"]), "solid")
    for (phase, op, look, small), group in rows.groupby(["phase", "op", kind, _is_baseline(rows)]):
        colour = PHASE_COLOURS.get(str(phase), OTHER_COLOUR)
        x, y = group["intensity_flops_per_byte"], group["tflops_per_s"]
        hollow = look == "overhead-bound"
        axes.scatter(
            x, y, s=size * (0.4 if small else 1.0), marker="x" if look == "invalid" else markers[str(op)],
            facecolors="none" if hollow else colour, edgecolors=colour if hollow else None,
            linewidths=0.7, alpha=alpha, zorder=4, rasterized=len(rows) > VECTOR_LIMIT,
        )  # fmt: skip
        wide = (below + above).loc[group.index] > 0.02 * y
        ends = zip(x[wide], (y - below.loc[group.index])[wide], (y + above.loc[group.index])[wide], strict=True)
        bars = [[(at, max(low, 1e-300)), (at, high)] for at, low, high in ends]
        axes.add_collection(LineCollection(bars, colors=colour, linewidths=0.7, alpha=alpha, zorder=3), autolim=False)


def _draw_legend(
    axes: Axes, rows: pd.DataFrame, device: Device, dtypes: Sequence[str], lines: Sequence[Trajectory],
    ceilings: Sequence[Line2D],
) -> None:  # fmt: skip
    handles: list[Artist] = [*ceilings]
    counts_of = rows["phase"].value_counts()
    for phase in sorted(counts_of.index, key=lambda p: [*PHASE_COLOURS, p].index(p)):
        colour = PHASE_COLOURS.get(str(phase), OTHER_COLOUR)
        handles.append(Patch(color=colour, label=f"{phase or 'no phase'} ({counts_of[phase]})"))
    for op, marker in markers_of(rows).items():
        counts = rows.loc[rows["op"] == op, "dtype"].value_counts(sort=False)
        text = f"{op} ({', '.join(f'{short(str(d))} {n}' for d, n in counts.items())})"
        handles.append(_marker(marker, textwrap.fill(text, 42), "#444444"))
    if (rows["class"] == "overhead-bound").any():
        handles.append(_marker("o", "hollow: overhead-bound", "none"))
    if _is_baseline(rows).any():
        others = ", ".join(sorted(set(rows["provider"]) - {OWN_PROVIDER}))
        handles.append(_marker("o", textwrap.fill(f"small: {others}", 42), "#444444", size=3.5))
    if (rows["class"] == "invalid").any():
        handles.append(_marker("x", "invalid: above what is possible", "#444444"))
    for provider, style in provider_styles(lines).items() if lines else ():
        label = f"one problem, its size growing ({provider})"
        handles.append(Line2D([], [], color="#333333", linewidth=0.9, linestyle=style, label=label))  # type: ignore[arg-type]
    for kind in sets_of(device):
        text = f"{kind.kind} roofs{', dense' if kind.kind == 'datasheet' else ''}"
        handles.append(Line2D([], [], color=COLOURS[kind.kind], linewidth=1.3, label=text))
    for (low, high), names in bands(device, dtypes).items():
        text = f"ridge uncertain: {', '.join(map(short, names))} {low:.3g} to {high:.3g}"
        handles.append(Patch(color=BAND_COLOUR, alpha=0.35, label=textwrap.fill(text, 42)))
    if not handles:
        return
    rows_needed = sum(str(h.get_label()).count("\n") + 1.15 for h in handles)
    size = min(8.0, PLOT_HEIGHT_IN * 72 / rows_needed / 1.35)
    legend = axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.012, 1.0), borderaxespad=0, fontsize=size, frameon=False
    )
    for entry in legend.get_texts():
        entry.set_parse_math(False)


def _marker(marker: str, label: str, face: str, size: float = 6) -> Line2D:
    return Line2D(
        [], [], linestyle="none", marker=marker, markersize=size, color="#444444", markerfacecolor=face, label=label
    )
