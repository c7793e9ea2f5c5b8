"""Fractions of attainable of published kernels, from the table that this suite ships.

One `Published` a GPU and framework. A framework that did not measure a dtype takes another's: the order is in
`FALLBACKS`. What the rows mean is in `analysis.serving.kernel_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import pandas as pd

from analysis.serving.attainable import Attainable, Experts
from analysis.serving.grids import EXTRAPOLATED, Array, Grid, Whole, gridded
from analysis.serving.kernel_tables import FILE, HEAD_DIM, LAYER, SIZES

FALLBACKS = ("trtllm", "vllm", "sglang")
DEVICES: Mapping[str, str] = {"H100 SXM5 80GB": "h100", "H200 SXM 141GB": "h200"}
"""Part, as `analysis.peaks` names it -> the table's device."""


@cache
def _table() -> dict[tuple[str, str, str, str], pd.DataFrame]:
    rows = pd.read_parquet(FILE)
    key = ["device", "framework", "table", "dtype"]
    found = rows.groupby(key, observed=True, sort=False)
    return {(str(d), str(f), str(t), str(n)): part for (d, f, t, n), part in found}


class Published:
    """Efficiency of a framework's kernels on one GPU, relative to the attainable times given."""

    def __init__(self, gpu: str, framework: str, attainable: Attainable) -> None:
        self._device = DEVICES.get(gpu, "")
        self._frameworks = tuple(dict.fromkeys((framework, *FALLBACKS)))
        self._attainable = attainable
        self._grids: dict[tuple[object, ...], Grid | None] = {}

    def _rows(self, table: str, dtype: str) -> pd.DataFrame | None:
        keys = ((self._device, framework, table, dtype) for framework in self._frameworks)
        return next((_table()[key] for key in keys if key in _table()), None)

    def gemm(self, m: Array, n: Array, k: Array, dtype: str) -> tuple[Array, Whole] | None:
        """[M, K] x [K, N]; None where no framework measured the dtype."""
        grid = self._kept(("gemm", dtype), self._gemm_grid)
        return None if grid is None else grid.at(m, n, k)

    def quantise(self, m: Array, k: Array) -> tuple[Array, Whole] | None:
        """Static quantisation of [M, K]; None where no framework measured it."""
        grid = self._kept(("quantise", "float8_e4m3fn"), self._quantise_grid)
        return None if grid is None else grid.at(m, k)

    def attention(
        self, table: str, batch: Array, length: Array, *, heads: tuple[int, int], head_dim: int, dtype: str
    ) -> tuple[Array, Whole] | None:
        """One of attention_prefill, attention_decode, mla_decode; heads that were not measured take the nearest."""
        rows = self._rows(table, dtype)
        if rows is None:
            return None
        near = _nearest_heads(rows, heads)
        grid = self._kept((table, dtype, near), self._attention_grid)
        if grid is None:
            return None
        fraction, how = grid.at(batch, length)
        alike = near == heads and (head_dim == HEAD_DIM or table == "mla_decode")
        return fraction, how if alike else np.maximum(how, np.int8(EXTRAPOLATED))

    def all_reduce(self, elements: Array, gpus: int) -> tuple[Array, Whole] | None:
        """Fraction of the alpha-beta time; None for a number of GPUs that was not measured."""
        grid = self._kept(("all_reduce", gpus), self._all_reduce_grid)
        return None if grid is None else grid.at(elements)

    def experts(self, tokens: Array, layer: Experts, dtype: str) -> tuple[Array, Whole] | None:
        """All experts of a layer; a layer that no framework measured takes the nearest of the first that has the
        dtype."""
        sizes = (layer.hidden, layer.columns, layer.experts, layer.active, layer.ep)
        found = self._kept(("experts", dtype, sizes), self._experts_grid)
        rows = self._rows("experts", dtype) if found is None else None
        if rows is None:
            return None if found is None else found.at(tokens)
        found = self._kept(("experts", dtype, _nearest_layer(rows, sizes)), self._experts_grid)
        if found is None:
            return None
        fraction, how = found.at(tokens)
        return fraction, np.maximum(how, np.int8(EXTRAPOLATED))

    def _kept(self, key: tuple[object, ...], make: Callable[..., Grid | None]) -> Grid | None:
        if key not in self._grids:
            self._grids[key] = make(key)
        return self._grids[key]

    def _gemm_grid(self, key: tuple[str, str]) -> Grid | None:
        rows = self._rows("gemm", key[1])
        if rows is None:
            return None
        m, n, k = (rows[axis].to_numpy(dtype=float) for axis in ("x", "y", "z"))
        fraction = self._attainable.gemm(m, n, k, key[1]) / rows["latency_us"].to_numpy(dtype=float)
        return gridded((m, n, k), fraction)

    def _quantise_grid(self, key: tuple[str, str]) -> Grid | None:
        rows = self._rows(*key)
        if rows is None:
            return None
        m, k = (rows[axis].to_numpy(dtype=float) for axis in ("x", "y"))
        return gridded((m, k), self._attainable.quantise(m, k) / rows["latency_us"].to_numpy(dtype=float))

    def _attention_grid(self, key: tuple[str, str, tuple[int, int]]) -> Grid | None:
        table, dtype, heads = key
        rows = self._rows(table, dtype)
        if rows is None:
            return None
        rows = rows[(rows["q_heads"] == heads[0]) & (rows["kv_heads"] == heads[1])]
        batch, length = rows["x"].to_numpy(dtype=float), rows["y"].to_numpy(dtype=float)
        best = self._attainable.attention(table, batch, length, heads=heads, head_dim=HEAD_DIM, dtype=dtype)
        return gridded((batch, length), best / rows["latency_us"].to_numpy(dtype=float))

    def _experts_grid(self, key: tuple[str, str, tuple[int, ...]]) -> Grid | None:
        """Of the first framework that measured these experts."""
        table, dtype, sizes = key
        for framework in self._frameworks:
            rows = _table().get((self._device, framework, table, dtype))
            if rows is None:
                continue
            rows = rows[(rows[list(LAYER)].to_numpy() == np.array(sizes)).all(axis=1)]
            if len(rows):
                layer = Experts(**dict(zip(SIZES, sizes, strict=True)))
                tokens = rows["x"].to_numpy(dtype=float)
                best = self._attainable.experts(tokens, layer, layer.spread(tokens), dtype)
                return gridded((tokens,), best / rows["latency_us"].to_numpy(dtype=float))
        return None

    def _all_reduce_grid(self, key: tuple[str, int]) -> Grid | None:
        rows = self._rows("all_reduce", "bfloat16")
        rows = rows if rows is None else rows[rows["x"] == key[1]].sort_values("y")
        if rows is None or not len(rows):
            return None
        # A spike at one size is a disturbance: more elements never take less time.
        time_us = np.minimum.accumulate(rows["latency_us"].to_numpy(dtype=float)[::-1])[::-1]
        elements = rows["y"].to_numpy(dtype=float)
        return gridded((elements,), self._attainable.all_reduce(elements, key[1]) / time_us)


class Fastest:
    """The fastest of all frameworks' published kernels, cell by cell."""

    def __init__(self, gpu: str, attainable: Attainable) -> None:
        self._all = tuple(Published(gpu, framework, attainable) for framework in FALLBACKS)

    def gemm(self, m: Array, n: Array, k: Array, dtype: str) -> tuple[Array, Whole] | None:
        """As `Published`."""
        return self._fastest(lambda one: one.gemm(m, n, k, dtype))

    def quantise(self, m: Array, k: Array) -> tuple[Array, Whole] | None:
        """As `Published`."""
        return self._fastest(lambda one: one.quantise(m, k))

    def attention(
        self, table: str, batch: Array, length: Array, *, heads: tuple[int, int], head_dim: int, dtype: str
    ) -> tuple[Array, Whole] | None:
        """As `Published`."""
        return self._fastest(
            lambda one: one.attention(table, batch, length, heads=heads, head_dim=head_dim, dtype=dtype)
        )

    def experts(self, tokens: Array, layer: Experts, dtype: str) -> tuple[Array, Whole] | None:
        """As `Published`."""
        return self._fastest(lambda one: one.experts(tokens, layer, dtype))

    def all_reduce(self, elements: Array, gpus: int) -> tuple[Array, Whole] | None:
        """As `Published`."""
        return self._fastest(lambda one: one.all_reduce(elements, gpus))

    def _fastest(self, ask: Callable[[Published], tuple[Array, Whole] | None]) -> tuple[Array, Whole] | None:
        found = [cells for cells in map(ask, self._all) if cells is not None]
        if not found:
            return None
        fractions, origins = (np.stack([cells[part] for cells in found]) for part in (0, 1))
        best = fractions.argmax(axis=0)[np.newaxis]
        return np.take_along_axis(fractions, best, axis=0)[0], np.take_along_axis(origins, best, axis=0)[0]


def _nearest_layer(rows: pd.DataFrame, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The measured experts whose sizes differ least, by the sum of their logarithms' distances."""
    layers = rows[list(LAYER)].drop_duplicates().to_numpy(dtype=float)
    distance = np.abs(np.log(layers) - np.log(np.array(sizes, dtype=float))).sum(axis=1)
    return tuple(int(size) for size in layers[distance.argmin()])


def _nearest_heads(rows: pd.DataFrame, heads: tuple[int, int]) -> tuple[int, int]:
    """The measured pair nearest in queries a KV head, then in query heads (both by their logarithm)."""
    pairs = rows[["q_heads", "kv_heads"]].drop_duplicates().to_numpy(dtype=float)
    ratio = np.abs(np.log(pairs[:, 0] / pairs[:, 1]) - np.log(heads[0] / heads[1]))
    size = np.abs(np.log(pairs[:, 0]) - np.log(heads[0]))
    q_heads, kv_heads = pairs[np.lexsort((size, ratio.round(3)))[0]]
    return int(q_heads), int(kv_heads)
