"""Which points belong on one line: the same problem, kernel and method of measuring, with one size growing.

A line runs over M (same N, K, dtype and provider), over batch (same cached length and heads), over q_len = kv_len
(prefill of growing prompts), over the tokens of a draft, or over the keys that a chunk of a prompt attends to.
Everything else that a case id holds stays equal along it, so two dtypes, windows or devices never share a line. Drawing
is left to `analysis.plots`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.methods import METHOD

GROWING = {
    "M": ("M", "M"),
    "draft": ("q_len", "q_len"),
    "kv_len": ("kv_len", "kv_len"),
    "q_len": ("q_len", "(?:q_len|kv_len)"),
    "batch": ("batch", "batch"),
}
"""Name of a line's size -> its column, and what of the case id it changes: `q_len` stands for q_len = kv_len.

A row is on the line of the first that applies to it.
"""
KEPT = ("device", "run", "technique", *METHOD)
"""What must be equal along a line besides the case id without the growing size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One line.

    Attributes:
        axis: the size that grows.
        sizes: its values, ascending.
        intensity: FLOP per byte at each.
        rate: TFLOP/s at each.
    """

    op: str
    provider: str
    dtype: str
    axis: str
    sizes: np.ndarray
    intensity: np.ndarray
    rate: np.ndarray

    @property
    def end_labels(self) -> tuple[str, str]:
        """The smallest and the largest size, as the plot writes them."""
        return f"{self.axis}={self.sizes[0]}", f"{self.axis}={self.sizes[-1]}"


def growing_axis(points: pd.DataFrame) -> pd.Series[str]:
    """The axis that a row's line runs over; '' where none applies."""
    is_prompt = (points["q_len"] == points["kv_len"]).fillna(False).astype(bool)
    conditions = {
        "M": points["M"].notna(),
        "draft": points["technique"] == "speculative",
        "kv_len": points["technique"] == "chunked",
        "q_len": is_prompt & points["q_len"].notna(),
        "batch": points["batch"].notna() & points["kv_len"].notna(),
    }
    names = np.select([c.to_numpy(dtype=bool) for c in conditions.values()], list(conditions), default="")
    return pd.Series(names, index=points.index, dtype="str")


def trajectories(points: pd.DataFrame) -> list[Trajectory]:
    """All lines of two sizes or more; invalid points and points off a log axis are on none."""
    rows = _drawable(points)
    axis = growing_axis(rows)
    return [line for name in GROWING for line in _over(rows[axis == name], name)]


def line_numbers(points: pd.DataFrame) -> pd.Series[int]:
    """For each point the number of its line, the same for all points on it; -1 where it is on none."""
    rows = _drawable(points)
    axis = growing_axis(rows)
    numbers = pd.Series(-1, index=points.index, dtype="int64")
    for name in GROWING:
        part = rows[axis == name]
        if not part.empty:
            numbers[part.index] = _same_line(part, name) + numbers.max() + 1
    alone = numbers.map(numbers.value_counts()) == 1
    return numbers.where(~alone, -1)


def _drawable(points: pd.DataFrame) -> pd.DataFrame:
    above_zero = (points["intensity_flops_per_byte"] > 0) & (points["tflops_per_s"] > 0)
    return points[above_zero & (points["class"] != "invalid")]


def _same_line(rows: pd.DataFrame, axis: str) -> pd.Series[int]:
    rest = rows["case_id"].str.replace(rf"\b{GROWING[axis][1]}=\d+", axis, regex=True)
    return rows.groupby([rest, *(rows[c] for c in KEPT)], dropna=False).ngroup()


def _over(rows: pd.DataFrame, axis: str) -> list[Trajectory]:
    if rows.empty:
        return []
    column = GROWING[axis][0]
    rows = rows.assign(line=_same_line(rows, axis))
    rows = rows.sort_values(["line", column], kind="stable").drop_duplicates(["line", column], keep="last")
    line = rows["line"].to_numpy()
    cuts = np.flatnonzero(np.diff(line)) + 1
    columns = ("op", "provider", "dtype", column, "intensity_flops_per_byte", "tflops_per_s")
    parts = zip(*(np.split(rows[c].to_numpy(), cuts) for c in columns), strict=True)
    return [
        Trajectory(
            op=op[0], provider=provider[0], dtype=dtype[0], axis=axis,
            sizes=sizes.astype(np.int64), intensity=intensity, rate=rate,
        )
        for op, provider, dtype, sizes, intensity, rate in parts
        if len(sizes) > 1
    ]  # fmt: skip


def longest(lines: list[Trajectory], most: int) -> list[Trajectory]:
    """One line for each op and growing axis: the widest range of sizes, then the highest rate; `most` at most."""
    by_kind: dict[tuple[str, str], Trajectory] = {}
    for line in sorted(lines, key=lambda t: (-t.sizes[-1] / max(t.sizes[0], 1), -t.rate.max())):
        by_kind.setdefault((line.op, line.axis), line)
    return list(by_kind.values())[:most]
