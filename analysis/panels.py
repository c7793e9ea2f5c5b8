"""The panels of a roofline figure, one a device: where they stand, their captions, their limits, and the image files.

What is drawn in a panel is left to `analysis.plots` (one run) and `analysis.two_runs` (two). Figures are made without
pyplot and its backends, so neither a display nor MPLBACKEND matters.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Sequence

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from analysis.roof_lines import View, draw_roofs, flat_roofs, sets_of
from analysis.roofline import Device

WIDTH_IN, PLOT_LEFT_IN, PLOT_WIDTH_IN, PLOT_HEIGHT_IN = 12.6, 0.75, 8.9, 5.6
TOP_IN, PANEL_TOP_IN, AXIS_IN, CAPTION_LINE_IN = 0.4, 0.35, 0.6, 0.14
STRIP_IN = 1.55
"""Width of the strip at the left edge that holds the names of the diagonals."""
DPI = 130
CAPTION_COLUMNS = 215


VECTOR_LIMIT = 10_000
"""With more points the SVG holds them as an image: a browser does not open 100,000 markers."""


def panels_figure(
    points: pd.DataFrame,
    devices: Sequence[Device],
    title: str,
    draw: Callable[[Axes, pd.DataFrame, Device], None],
    notes: Sequence[str] = (),
) -> Figure:
    """The panels one below the other.

    Args:
        points: device, dtype, intensity_flops_per_byte, tflops_per_s, and what `draw` needs.
        devices: those that the points name; one without points has a panel only where no device has points.
        title: the heading.
        draw: draws a device's points, on axes that have its roofs already.
        notes: lines for the last caption, as run and date.
    """
    shown = [d for d in devices if (points["device"] == d.name).any()] or list(devices[:1])
    shown = shown or [Device(name="", recognised="no device")]
    parts = [_drawable(points[points["device"] == d.name]) for d in shown]
    captions = [_caption(d, *part) for d, part in zip(shown, parts, strict=True)]
    captions[-1] += _wrapped(notes)
    panel_in = [PANEL_TOP_IN + PLOT_HEIGHT_IN + AXIS_IN + CAPTION_LINE_IN * (len(c) + 1) for c in captions]
    figure = Figure(figsize=(WIDTH_IN, TOP_IN + sum(panel_in)), dpi=DPI)
    FigureCanvasAgg(figure)
    height = figure.get_figheight()
    figure.text(0.5, 1 - 0.1 / height, title, ha="center", va="top", fontsize=12, parse_math=False)
    top = height - TOP_IN
    for device, (rows, _), caption, needed in zip(shown, parts, captions, panel_in, strict=True):
        bottom = top - PANEL_TOP_IN - PLOT_HEIGHT_IN
        box = (PLOT_LEFT_IN / WIDTH_IN, bottom / height, PLOT_WIDTH_IN / WIDTH_IN, PLOT_HEIGHT_IN / height)
        axes = figure.add_axes(box)
        _prepare(axes, rows, device)
        draw(axes, rows, device)
        at = (bottom - AXIS_IN) / height
        figure.text(0.15 / WIDTH_IN, at, "\n".join(caption), va="top", fontsize=7, parse_math=False, gid="caption")
        top -= needed
    return figure


def _drawable(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Rows that a log-log picture can show, and how many it cannot."""
    x, y = rows["intensity_flops_per_byte"].astype("float64"), rows["tflops_per_s"].astype("float64")
    fits = (x > 0) & (x < math.inf) & (y > 0) & (y < math.inf)
    return rows[fits], int((~fits).sum())


def _prepare(axes: Axes, rows: pd.DataFrame, device: Device) -> None:
    dtypes = dtypes_of(rows, device)
    view = _view(rows, device, dtypes)
    axes.set(xscale="log", yscale="log", xlim=(view.x_low, view.x_high), ylim=(view.y_low, view.y_high))
    axes.set_xlabel("arithmetic intensity: useful FLOP / compulsory byte")
    axes.set_ylabel("useful TFLOP/s")
    above = int((rows["tflops_per_s"] > view.y_high).sum())
    told = f"{device.name or 'no device named'}: {len(rows)} points" + (f", {above} above the picture" if above else "")
    axes.set_title(told, fontsize=10, parse_math=False)
    axes.grid(which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    draw_roofs(axes, device, dtypes, view)
    if rows.empty:
        axes.text(
            0.5, 0.4, "nothing to draw: no measured point", transform=axes.transAxes, ha="center", fontsize=12,
            gid="placeholder", bbox={"facecolor": "white", "edgecolor": "#999999"},
        )  # fmt: skip


def dtypes_of(rows: pd.DataFrame, device: Device) -> list[str]:
    """The dtypes whose roofs a panel draws: those of its points, or two that the device has."""
    return sorted(rows["dtype"].unique()) or sorted({d for s in sets_of(device) for d in s.tflops})[:2]


def png(figure: Figure, *, colours: int = 0) -> bytes:
    """The figure as PNG, in the nearest `colours` alone unless 0: of flat ones that is a third of the bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    if not colours:
        return buffer.getvalue()
    few = io.BytesIO()
    Image.open(buffer).convert("RGB").quantize(colours).save(few, format="png", optimize=True)
    return few.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as SVG: text as text, and neither date nor random ids, so that two versions can be compared."""
    buffer = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "roofmark"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _caption(device: Device, rows: pd.DataFrame, left_out: int) -> list[str]:
    lines = [device.recognised]
    lines += [f"measured roofs: {device.measured.source}"] if device.measured else []
    if not sets_of(device):
        lines.append("no roofs are known here: points without class or percentages")
    lines += device.notes
    if left_out:
        lines.append(f"{left_out} points without a positive intensity and rate cannot stand on log axes: left out")
    return _wrapped(lines)


def _wrapped(lines: Sequence[str]) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(line, CAPTION_COLUMNS)]


def _view(rows: pd.DataFrame, device: Device, dtypes: Sequence[str]) -> View:
    """Limits that show all valid points, the ridges with room for their labels, and the diagonals with theirs."""
    roofs = flat_roofs(device, dtypes)
    x, y = rows["intensity_flops_per_byte"].tolist(), rows["tflops_per_s"]
    ridges, flats = [r.ridge for r in roofs], [r.tflops for r in roofs]
    x_high = max([2 * max(x, default=1e3), *(10 * r for r in ridges)])
    # Left of the first point lies a strip for the names of the diagonals, left of the ridges one for their labels.
    first = min([*x, *(r / 30 for r in ridges)], default=0.1)
    decade_in = (PLOT_WIDTH_IN - STRIP_IN) / math.log10(x_high / first)
    x_low = first / 10 ** (STRIP_IN / decade_in)
    # An absurd time must not squeeze everything else into a line: such points lie above the picture and are counted.
    usual = y[y <= 10 * max(flats)] if flats else y
    lowest = usual.min() / 2.5 if len(usual) else max(flats, default=1.0) / 100
    starts = [0.8 * x_low * r.gb_per_s / 1e3 for r in roofs]
    y_top = max([usual.max() if len(usual) else 1.0, *flats])
    room = 1.7 * 1.22 ** max(len(roofs), 1)
    return View(
        x_low=float(x_low), x_high=float(x_high), y_low=float(min([lowest, *starts])), y_high=float(y_top * room),
        width_in=PLOT_WIDTH_IN, height_in=PLOT_HEIGHT_IN,
    )  # fmt: skip
