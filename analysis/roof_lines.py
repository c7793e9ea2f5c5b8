"""Roofs on a log-log picture: which to draw, where their labels stand so that none collides, and the uncertain band.

One flat roof for each plotted dtype and source; dtypes of one peak share a line. Labels stand above the diagonal at
the left end of the flat part, since the right end is where the points of prefill lie. Points are left to
`analysis.plots`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from analysis.peaks import SHORT
from analysis.roofline import Device, Roofs, ridge_band

COLOURS = {"datasheet": "black", "measured": "#808080"}
STYLES = ("-", (0, (6, 2)), (0, (6, 2, 1, 2)), (0, (1, 1.5)))
LABEL_SIZE = 7.5
BAND_COLOUR = "#F0E442"
LINE_HEIGHT_IN = LABEL_SIZE * 1.45 / 72


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The limits and the size of a log-log picture: what it takes to know how far apart two heights are drawn."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    width_in: float
    height_in: float

    @property
    def x_decade_in(self) -> float:
        """Inches that a factor of ten takes across."""
        return self.width_in / math.log10(self.x_high / self.x_low)

    @property
    def y_decade_in(self) -> float:
        """Inches that a factor of ten takes upwards."""
        return self.height_in / math.log10(self.y_high / self.y_low)

    def raised(self, y: float, inches: float) -> float:
        """The value drawn so many inches above `y`."""
        return float(y * 10 ** (inches / self.y_decade_in))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatRoof:
    """The compute roof of one or more dtypes in one set of roofs."""

    kind: str
    dtypes: tuple[str, ...]
    tflops: float
    gb_per_s: float

    @property
    def ridge(self) -> float:
        """FLOP per byte at its left end."""
        return self.tflops * 1e3 / self.gb_per_s

    @property
    def label(self) -> str:
        """What the picture writes at its left end."""
        names = ", ".join(short(d) for d in self.dtypes)
        return f"{names} {rate_text(self.tflops)} {self.kind}, ridge {self.ridge:.3g}"


def short(dtype: str) -> str:
    """bf16 for bfloat16; a name without a short form stays."""
    return SHORT.get(dtype, dtype)


def rate_text(tflops: float) -> str:
    """`989 TFLOP/s`, or GFLOP/s below one."""
    return f"{tflops:.4g} TFLOP/s" if tflops >= 1 else f"{tflops * 1e3:.3g} GFLOP/s"


def bandwidth_text(gb_per_s: float) -> str:
    """`3.35 TB/s`, or GB/s below one."""
    return f"{gb_per_s / 1e3:.3g} TB/s" if gb_per_s >= 1e3 else f"{gb_per_s:.3g} GB/s"


def sets_of(device: Device) -> list[Roofs]:
    """The sets a device has, the datasheet's first."""
    return [roofs for roofs in (device.datasheet, device.measured) if roofs is not None]


def flat_roofs(device: Device, dtypes: Iterable[str]) -> list[FlatRoof]:
    """The compute roofs of the plotted dtypes, lowest first."""
    wanted = sorted(set(dtypes))
    roofs = []
    for kind in sets_of(device):
        by_rate: dict[float, list[str]] = {}
        for dtype in wanted:
            if dtype in kind.tflops:
                by_rate.setdefault(kind.tflops[dtype], []).append(dtype)
        roofs += [
            FlatRoof(kind=kind.kind, dtypes=tuple(names), tflops=rate, gb_per_s=kind.dram_gb_per_s)
            for rate, names in by_rate.items()
        ]
    return sorted(roofs, key=lambda r: r.tflops)


def bands(device: Device, dtypes: Iterable[str]) -> dict[tuple[float, float], list[str]]:
    """Uncertain band around the ridge -> the dtypes that it holds for."""
    found: dict[tuple[float, float], list[str]] = {}
    for dtype in sorted(set(dtypes)):
        band = ridge_band(dtype, device)
        if band:
            found.setdefault(band, []).append(dtype)
    return found


def label_heights(roofs: Sequence[FlatRoof], view: View) -> list[float]:
    """Where the labels of roofs (lowest first) begin: above their roof, and a line above the label below."""
    heights: list[float] = []
    for roof in roofs:
        free = view.raised(heights[-1], LINE_HEIGHT_IN) if heights else 0.0
        heights.append(max(view.raised(roof.tflops, 0.04), free))
    return heights


def draw_roofs(axes: Axes, device: Device, dtypes: Iterable[str], view: View) -> None:
    """Draws the band, the diagonals, the flat roofs, their ridges and all labels."""
    dtypes = list(dtypes)
    roofs = flat_roofs(device, dtypes)
    _draw_bands(axes, bands(device, dtypes), view)
    _draw_diagonals(axes, device, roofs, view)
    style = {names: STYLES[i % len(STYLES)] for i, names in enumerate(dict.fromkeys(r.dtypes[0] for r in roofs))}
    for roof, height in zip(roofs, label_heights(roofs, view), strict=True):
        colour = COLOURS[roof.kind]
        axes.plot(
            [roof.ridge, view.x_high], [roof.tflops] * 2, color=colour, linewidth=1.3,
            linestyle=style[roof.dtypes[0]], zorder=2,
        )  # fmt: skip
        tick = 10 ** (0.06 / view.y_decade_in)
        axes.plot([roof.ridge] * 2, [roof.tflops / tick, roof.tflops * tick], color=colour, linewidth=1.3, zorder=4)
        _draw_label(axes, roof, height, view, widest=max(s.dram_gb_per_s for s in sets_of(device)))


def _draw_bands(axes: Axes, found: dict[tuple[float, float], list[str]], view: View) -> None:
    end = 0.0
    for (low, high), names in sorted(found.items()):
        axes.axvspan(low, high, color=BAND_COLOUR, alpha=0.22, linewidth=0, zorder=0)
        middle = (low * high) ** 0.5
        # Bands that overlap keep one name; the legend has them all.
        if low >= end:
            axes.text(
                middle, view.raised(view.y_low, 0.06), f"ridge {', '.join(map(short, names))}", rotation=90,
                ha="center", va="bottom", fontsize=6.5, color="#555555", gid="band-label", zorder=1,
            )  # fmt: skip
            end = high


def _draw_label(axes: Axes, roof: FlatRoof, height: float, view: View, widest: float) -> None:
    """The label ends left of every diagonal; a hair line leads from it to the roof."""
    right = 0.93 * min(height * 1e3 / widest, roof.ridge)
    axes.text(
        right, height, roof.label, ha="right", va="bottom", fontsize=LABEL_SIZE, color=COLOURS[roof.kind],
        gid="roof-label", zorder=6, bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.4},
    )  # fmt: skip
    middle = view.raised(height, LINE_HEIGHT_IN / 2)
    axes.plot([right, roof.ridge], [middle, roof.tflops], color=COLOURS[roof.kind], linewidth=0.5, zorder=3)


def _draw_diagonals(axes: Axes, device: Device, roofs: Sequence[FlatRoof], view: View) -> None:
    angle = math.degrees(math.atan2(view.y_decade_in, view.x_decade_in))
    drawn = [s for s in sets_of(device) if any(r.kind == s.kind for r in roofs)]
    fastest = max(drawn, key=lambda s: s.dram_gb_per_s, default=None)
    for kind in drawn:
        tb_per_s = kind.dram_gb_per_s / 1e3
        end = max(r.ridge for r in roofs if r.kind == kind.kind)
        axes.plot(
            [view.x_low, end],
            [view.x_low * tb_per_s, end * tb_per_s],
            color=COLOURS[kind.kind],
            linewidth=1.3,
            zorder=2,
        )
        # The faster set's label stands above its diagonal and the other's below, so that neither is crossed.
        above = kind is fastest
        start = 1.15 * max(view.x_low, view.y_low / tb_per_s)
        axes.annotate(
            f"DRAM {bandwidth_text(kind.dram_gb_per_s)} {kind.kind}", (start, start * tb_per_s),
            xytext=(-2, 3) if above else (4, -3), textcoords="offset points", rotation=angle, rotation_mode="anchor",
            ha="left", va="bottom" if above else "top", fontsize=LABEL_SIZE, color=COLOURS[kind.kind],
            gid="dram-label", zorder=6,
        )  # fmt: skip
