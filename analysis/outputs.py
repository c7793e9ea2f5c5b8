"""The files of a report: `roofline.png`, `roofline.svg`, `table.md`, `points.csv`, each replaced as a whole.

One output that fails does not stop the others. What stands in them is left to `analysis.plots` and `analysis.tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from analysis.files import write_all
from analysis.roofline import Device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINT_COLUMNS = (
    "case_id", "op", "provider", "phase", "dtype", "technique", "M", "N", "K", "batch", "q_len", "kv_len", "q_heads",
    "kv_heads", "head_dim", "time_us", "flops", "bytes", "intensity_flops_per_byte", "tflops_per_s", "gb_per_s",
    "attainable_us", "fraction_of_datasheet", "fraction_of_measured", "fraction_of_attainable", "class", "reason",
    "device", "model", "weight_dtype", "kv_dtype", "cache", "timer", "regime", "launch", "inputs",
    "drift", "flags",
)  # fmt: skip
WHOLE = ("M", "N", "K", "batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "flops", "bytes")


def write_report(
    points: pd.DataFrame,
    devices: Sequence[Device],
    directory: Path,
    title: str,
    statuses: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> list[str]:
    """Writes the four files.

    Args:
        points: as `analysis.roofline.points` gives them; may be empty.
        devices: those the points name.
        directory: made when missing.
        title: heading of the figure and of `table.md`.
        statuses, notes: lines on how the cases ended, and further ones as runs and dates (also in the caption).

    Returns:
        One line for each file that could not be written.
    """

    @cache
    def figure() -> Figure:
        # matplotlib takes half a second to import: a broken one must not cost the tables either
        from analysis.plots import roofline_figure

        return roofline_figure(points, devices, title, notes)

    def table() -> str:
        from analysis import tables

        return tables.report_markdown(points, devices, title, statuses, notes)

    made: dict[str, Callable[[], str | bytes]] = {
        "points.csv": lambda: points_csv(points),
        "table.md": table,
    }
    return write_all({directory / name: make for name, make in (made | images("roofline", figure)).items()})


def images(name: str, figure: Callable[[], Figure]) -> dict[str, Callable[[], str | bytes]]:
    """NAME.png and NAME.svg of a figure, made when they are written."""

    def made(kind: str) -> bytes:
        from analysis import panels

        return {"png": panels.png, "svg": panels.svg}[kind](figure())

    return {f"{name}.{kind}": partial(made, kind) for kind in ("png", "svg")}


def point_columns(points: pd.DataFrame) -> pd.DataFrame:
    """The columns of `points.csv`, sizes and counts as whole numbers."""
    table = points.reindex(columns=list(POINT_COLUMNS))
    return table.assign(**{c: table[c].astype("Float64").round().astype("Int64") for c in WHOLE})


def points_csv(points: pd.DataFrame) -> str:
    """One row a point; what does not apply is empty."""
    return point_columns(points).to_csv(index=False, lineterminator="\n")
