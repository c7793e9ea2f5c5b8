"""What the page is drawn from: points as columns, roofs and tables, as compact JSON that is safe inside a script.

Texts that repeat are codes into a list of their values. Nothing is computed here that `analysis.roofline` has not; what
is drawn of it is left to the scripts beside this file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.compile_ceilings import CEILINGS
from analysis.methods import METHOD
from analysis.page.against import NOTE, against, geomeans
from analysis.roof_lines import flat_roofs, sets_of
from analysis.roofline import Device
from analysis.trajectories import line_numbers

FILTERS = ("op", "phase", "dtype", "provider", "technique", "model")
"""Columns that the page filters by."""
CODED = ("device", *FILTERS, "class", "run", "timer", "cache", "regime", "launch", "inputs", "flags")
NUMBERS = (
    "M", "time_us", "low_us", "high_us", "flops", "bytes", "intensity_flops_per_byte", "tflops_per_s", "gb_per_s",
    "attainable_us", "fraction_of_datasheet", "fraction_of_measured", "fraction_of_attainable", "tile_ceiling",
    "wave_ceiling", *CEILINGS,
)  # fmt: skip
TEXTS = ("case_id", "reason")
MEANS = ("family", "device", *METHOD, "provider_a", "provider_b", "same_work", "geomean", "count", "faster", "slower")
PAIRS = ("case", "provider_a", "provider_b", "cache", "same_work", "ratio", "low", "high", "a_us", "b_us")
TITLES = {"families": "Geometric mean of the ratio, a family", "pairs": "Provider against provider at the same case"}
DIGITS = 6
"""Significant digits of a number in the page: more than any clock has."""
PALETTE = {
    "light": {"prefill": "#0072B2", "decode": "#C04E00", "mixed": "#009E73", "other": "#555555"},
    "dark": {"prefill": "#56B4E9", "decode": "#E69F00", "mixed": "#C9F29B", "other": "#8A8A8A"},
}
"""Phase -> colour, told apart with any common colour blindness and standing out from its ground (tests say how far)."""


def payload(points: pd.DataFrame, devices: Sequence[Device]) -> dict[str, Any]:
    """The page's data.

    Args:
        points: as `analysis.roofline.points` gives them; may be empty.
        devices: those that the points name.

    Returns:
        count, columns (numbers, and texts as they are), codes ({values, codes} for each of CODED), line (number of the
        trajectory, -1 for none), published (0 or 1), devices with their roofs, filters, palette, and pairs: tables of
        provider against provider, their columns and rows.
    """
    return {
        "count": len(points),
        "columns": {name: [rounded(v) for v in _numbers(points, name)] for name in NUMBERS}
        | {name: points[name].astype(str).tolist() for name in TEXTS},
        "codes": {name: _codes(points[name]) for name in CODED},
        "line": line_numbers(points).tolist(),
        "published": (points["timer"] == "published").astype(int).tolist(),
        "devices": [_device(device, points) for device in devices],
        "filters": list(FILTERS),
        "palette": PALETTE,
        "pairs": _pairs(points),
    }


def _pairs(points: pd.DataFrame) -> list[dict[str, Any]]:
    pairs = against(points)
    if pairs.empty:
        return []
    tables = {"families": (MEANS, geomeans(pairs)), "pairs": (PAIRS, pairs)}
    return [
        {
            "name": name, "title": TITLES[name], "note": NOTE, "columns": list(columns),
            "numbers": [found[column].dtype.kind in "fi" for column in columns],
            "rows": list(zip(*(_cells(found[column]) for column in columns), strict=True)),
        }
        for name, (columns, found) in tables.items()
    ]  # fmt: skip


def _cells(column: pd.Series[Any]) -> list[Any]:
    if column.dtype.kind in "fi":
        return [rounded(value) for value in column.tolist()]
    return [{"True": "same", "False": "differs"}.get(value, value) for value in column.astype(str).tolist()]


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element: no character ends the element or, in old engines, the line."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def rounded(value: float) -> float | int | None:
    """The number at DIGITS significant digits; None where it is none, since JSON has no NaN."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short


def _numbers(points: pd.DataFrame, name: str) -> list[float]:
    if name not in points:
        return [math.nan] * len(points)
    return points[name].astype("Float64").fillna(math.nan).astype(float).tolist()


def _codes(texts: pd.Series[str]) -> dict[str, list[Any]]:
    codes, values = pd.factorize(texts.fillna("").astype(str), sort=True)
    return {"values": [str(v) for v in values], "codes": codes.tolist()}


def _device(device: Device, points: pd.DataFrame) -> dict[str, Any]:
    own = points[points["device"] == device.name]
    roofs = flat_roofs(device, own["dtype"].unique())
    return {
        "name": device.name,
        "sets": [
            {
                "kind": roofs_of.kind, "gb_per_s": roofs_of.dram_gb_per_s, "launch_us": roofs_of.launch_us,
                "flats": [
                    {"dtypes": list(r.dtypes), "label": r.label, "tflops": r.tflops}
                    for r in roofs if r.kind == roofs_of.kind
                ],
            }
            for roofs_of in sets_of(device)
        ],
    }  # fmt: skip
