"""Fractions of attainable of kernels that this suite measured, from the records of a run.

A gemm is looked up by (N, K) over M, an attention by its heads over batch and length. Only what lies within the
measured sizes is answered; the rest is left to the next source.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.serving.attainable import Attainable, Experts
from analysis.serving.grids import EXTRAPOLATED, Array, Grid, Whole, gridded

GEMMS = ("matmul", "matmul_decode")


class Recorded:
    """Usable records of one device: status OK, a positive time, the fastest provider of a case.

    Args:
        frame: as `analysis.frame.load` gives it.
        provider: only this one's; the fastest of each case when empty.
        column: which time: the median, or an end of its interval.

    Raises:
        ValueError: no usable record of a gemm or an attention.
    """

    def __init__(
        self, frame: pd.DataFrame, attainable: Attainable, provider: str = "", column: str = "time_us"
    ) -> None:
        usable = (frame["status"] == "OK") & (frame["time_us"] > 0)
        ops = (*GEMMS, "attention_prefill", "attention_decode")
        rows = frame[usable & frame["op"].isin(ops) & ((provider == "") | (frame["provider"] == provider))]
        if not len(rows):
            raise ValueError(f"no usable record of {', '.join(ops)}" + (f" by {provider}" if provider else ""))
        plain = (rows["weight_dtype"] == "") & (rows["scale"] == "") & rows["window"].isna()
        self._rows = rows[plain].sort_values("time_us", kind="stable", ascending=False)
        self._column = column
        self._attainable = attainable
        self._grids: dict[tuple[Any, ...], Grid | None] = {}

    def gemm(self, m: Array, n: Array, k: Array, dtype: str) -> tuple[Array, Whole] | None:
        """Fraction and how, NaN where (N, K) was not measured or M is outside of what was."""
        key = ("gemm", dtype, float(n.flat[0]), float(k.flat[0]))
        if key not in self._grids:
            self._grids[key] = self._gemm_grid(dtype, key[2], key[3])
        return _within(self._grids[key], m)

    def quantise(self, m: Array, k: Array) -> tuple[Array, Whole] | None:
        """This suite measures none."""
        return None

    def experts(self, tokens: Array, layer: Experts, dtype: str) -> tuple[Array, Whole] | None:
        """This suite measures none."""
        return None

    def attention(
        self, table: str, batch: Array, length: Array, *, heads: tuple[int, int], head_dim: int, dtype: str
    ) -> tuple[Array, Whole] | None:
        """Fraction and how, NaN outside of what was measured."""
        key = (table, dtype, heads, head_dim)
        if key not in self._grids:
            self._grids[key] = self._attention_grid(table, dtype, heads, head_dim)
        return _within(self._grids[key], batch, length)

    def all_reduce(self, elements: Array, gpus: int) -> tuple[Array, Whole] | None:
        """This suite measures none."""
        return None

    def _gemm_grid(self, dtype: str, n: float, k: float) -> Grid | None:
        rows = self._rows[self._rows["op"].isin(GEMMS) & (self._rows["dtype"] == dtype)]
        rows = rows[(rows["N"] == n) & (rows["K"] == k)]
        if not len(rows):
            return None
        m = rows["M"].to_numpy(dtype=float)
        best = self._attainable.gemm(m, np.full(m.shape, n), np.full(m.shape, k), dtype)
        return gridded((m,), best / rows[self._column].to_numpy(dtype=float))

    def _attention_grid(self, table: str, dtype: str, heads: tuple[int, int], head_dim: int) -> Grid | None:
        rows = self._rows[self._rows["op"] == table]
        cached = rows["kv_dtype"].where(rows["kv_dtype"] != "", rows["dtype"])
        alike = (rows["q_heads"] == heads[0]) & (rows["kv_heads"] == heads[1]) & (rows["head_dim"] == head_dim)
        whole = (rows["q_len"] == rows["kv_len"]) if table == "attention_prefill" else (rows["q_len"] == 1)
        rows = rows[(alike & whole & (cached == dtype)).fillna(False).astype(bool)]
        if not len(rows):
            return None
        batch, length = rows["batch"].to_numpy(dtype=float), rows["kv_len"].to_numpy(dtype=float)
        best = self._attainable.attention(table, batch, length, heads=heads, head_dim=head_dim, dtype=dtype)
        return gridded((batch, length), best / rows[self._column].to_numpy(dtype=float))


def _within(grid: Grid | None, *points: Array) -> tuple[Array, Whole] | None:
    if grid is None:
        return None
    fraction, how = grid.at(*points)
    return np.where(how < EXTRAPOLATED, fraction, np.nan), how
