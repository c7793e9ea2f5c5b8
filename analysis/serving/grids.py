"""Interpolation of a kernel's efficiency between the sizes that were measured.

What is interpolated is the fraction of attainable time, over logarithms of the sizes: it is far smoother than a time.
Outside the measured sizes the fraction at the edge holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import pandas as pd

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int8]

HOW = ("measured", "interpolated", "extrapolated", "assumed")
"""How a cell came to be; a cell's number is its place in here, so the greater of two is the weaker."""
MEASURED, INTERPOLATED, EXTRAPOLATED, ASSUMED = range(4)


@dataclass(frozen=True, slots=True)
class Grid:
    """Fractions of attainable at crossings of sizes.

    Attributes:
        axes: ascending sizes, one array an axis.
        fractions: one value a crossing, filled from the nearest measured one where `known` is False.
        known: whether the crossing was measured.
    """

    axes: tuple[Array, ...]
    fractions: Array
    known: npt.NDArray[np.bool_]

    def at(self, *points: Array) -> tuple[Array, Whole]:
        """Fraction, and how it came to be, at each point; `points` hold one array an axis, all of one shape."""
        low, weight, outside = zip(*map(_place, self.axes, points), strict=True)
        fraction = np.zeros(points[0].shape)
        exact = np.zeros(points[0].shape, dtype=bool)
        unknown = np.zeros(points[0].shape, dtype=bool)
        for corner in product((0, 1), repeat=len(self.axes)):
            index = tuple(np.minimum(i + c, len(a) - 1) for i, c, a in zip(low, corner, self.axes, strict=True))
            share = np.ones(points[0].shape)
            for w, c in zip(weight, corner, strict=True):
                share = share * (w if c else 1 - w)
            fraction += share * self.fractions[index]
            exact |= (share == 1) & self.known[index]
            unknown |= (share > 0) & ~self.known[index]
        beyond = np.logical_or.reduce(outside) | unknown
        how = np.where(beyond, EXTRAPOLATED, np.where(exact, MEASURED, INTERPOLATED)).astype(np.int8)
        return fraction, how


def _place(axis: Array, points: Array) -> tuple[npt.NDArray[np.intp], Array, npt.NDArray[np.bool_]]:
    """Lower neighbour of each point, the weight of the upper one, and whether the point is off the axis."""
    outside = (points < axis[0]) | (points > axis[-1])
    if len(axis) == 1:
        return np.zeros(points.shape, dtype=np.intp), np.zeros(points.shape), outside
    inside = np.clip(points, axis[0], axis[-1])
    low = np.clip(np.searchsorted(axis, inside, side="right") - 1, 0, len(axis) - 2)
    logs = np.log(axis)
    return low, (np.log(inside) - logs[low]) / (logs[low + 1] - logs[low]), outside


def gridded(sizes: Sequence[npt.ArrayLike], fractions: npt.ArrayLike) -> Grid:
    """A grid from scattered rows: one column of sizes an axis, and a fraction each; the last of equal rows wins."""
    columns = [np.asarray(column, dtype=float) for column in sizes]
    axes = tuple(np.unique(column) for column in columns)
    values = np.full([len(axis) for axis in axes], np.nan)
    values[tuple(np.searchsorted(axis, column) for axis, column in zip(axes, columns, strict=True))] = fractions
    return Grid(axes, _filled(values), ~np.isnan(values))


def _filled(values: Array) -> Array:
    """Crossings that were not measured take the nearest along the first axis, then along the last."""
    flat = pd.DataFrame(values.reshape(len(values), -1)).ffill().bfill()
    if flat.isna().to_numpy().any():
        by_last = pd.DataFrame(flat.to_numpy().reshape(-1, values.shape[-1])).ffill(axis=1).bfill(axis=1)
        flat = by_last.ffill().bfill()
    return np.asarray(flat.to_numpy().reshape(values.shape))
