"""Where the time of an op comes from: our records, published kernels, or the roofline, in that order for each cell.

Each source tells a fraction of attainable; a cell takes the first source that covers it. What an op is in a step is
left to `analysis.serving.step`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.serving.attainable import Experts, expected, speed_of_light
from analysis.serving.grids import ASSUMED, EXTRAPOLATED, Array, Whole
from analysis.serving.published import DEVICES, Fastest, Published
from analysis.serving.recorded import Recorded

KINDS = ("reference", "fastest", "roofline")
GLUE_LAUNCH_US = 2.0
"""Period of a small elementwise kernel in a CUDA graph (assumed; the published all-reduce floor is 2.4)."""
GLUE_BANDWIDTH = 0.8
"""Fraction of the datasheet bandwidth that an elementwise kernel reaches (assumed)."""
Found = tuple[Array, Whole] | None


@dataclass(frozen=True, slots=True)
class Cells:
    """Times of one op over an array of sizes: microseconds, and how each came to be (a place in `grids.HOW`)."""

    time_us: Array
    how: Whole

    def times(self, count: float | Array) -> Cells:
        """So many in a row."""
        return Cells(self.time_us * count, self.how)


class KernelSource:
    """Times of ops on one GPU with one framework's kernels.

    Args:
        kind: `reference` (the framework's published kernels, roofline where there are none), `fastest` (the fastest
            framework's for each cell) or `roofline`.
        records: measurements of our own, asked first.

    Raises:
        ValueError: an unknown GPU or kind.
    """

    def __init__(self, gpu: str, framework: str, kind: str = "reference", records: Recorded | None = None) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown kernel source {kind!r}; known: {', '.join(KINDS)}, or a run's directory")
        self.attainable = expected(gpu)
        published: Published | Fastest | None = None
        if gpu in DEVICES and kind != "roofline":
            fastest = kind == "fastest"
            published = Fastest(gpu, self.attainable) if fastest else Published(gpu, framework, self.attainable)
        self._tables: tuple[Recorded | Published | Fastest, ...] = tuple(
            t for t in (records, published) if t is not None
        )
        self._bandwidth = speed_of_light(gpu).roofs.dram_gb_per_s * GLUE_BANDWIDTH

    def gemm(self, m: Array, n: float | Array, k: float, dtype: str) -> Cells:
        """[M, K] x [K, N]."""
        m, n_, k_ = np.broadcast_arrays(m, np.asarray(n, dtype=float), np.float64(k))
        return self._cells(self.attainable.gemm(m, n_, k_, dtype), lambda t: t.gemm(m, n_, k_, dtype))

    def quantise(self, m: Array, k: float) -> Cells:
        """[M, K] activations to fp8 with a static scale, as a kernel of its own."""
        m, k_ = np.broadcast_arrays(m, np.float64(k))
        return self._cells(self.attainable.quantise(m, k_), lambda t: t.quantise(m, k_))

    def experts(self, tokens: Array, layer: Experts, distinct: Array, dtype: str) -> Cells:
        """All routed experts of a layer, `distinct` of a GPU's with a token; measured ones had their tokens spread
        evenly. Where nobody measured any: as efficient as a dense matmul over the columns of those that got one."""
        best = self.attainable.experts(tokens, layer, distinct, dtype)
        cells = self._cells(best, lambda t: t.experts(tokens, layer, dtype))
        each = np.maximum(tokens * layer.active / layer.ep / np.maximum(distinct, 1), 1)
        wide, hidden = np.maximum(distinct, 1) * 2 * layer.columns, np.full(tokens.shape, float(layer.hidden))
        fraction = self.attainable.gemm(each, wide, hidden, dtype) / self.gemm(each, wide, layer.hidden, dtype).time_us
        return Cells(np.where(cells.how == ASSUMED, best / fraction, cells.time_us), cells.how)

    def attention(
        self, name: str, batch: Array, length: Array, *, heads: tuple[int, int], head_dim: int, dtype: str,
        cached: Array | float = 0.0, v_head_dim: int = 0,
    ) -> Cells:  # fmt: skip
        """As `Attainable.attention`; with `cached` tokens before, as efficient as a whole prompt of that length."""
        batch, length = np.broadcast_arrays(batch, length)
        best = self.attainable.attention(
            name, batch, length, heads=heads, head_dim=head_dim, dtype=dtype, cached=cached, v_head_dim=v_head_dim
        )
        cells = self._cells(
            best,
            lambda t: t.attention(name, batch, length + cached, heads=heads, head_dim=head_dim, dtype=dtype),
        )
        return Cells(cells.time_us, np.maximum(cells.how, np.int8(EXTRAPOLATED))) if np.any(cached) else cells

    def all_reduce(self, elements: Array, gpus: int) -> Cells:
        """Of bfloat16 elements; nothing on one GPU."""
        if gpus == 1:
            return Cells(np.zeros(elements.shape), np.zeros(elements.shape, dtype=np.int8))
        return self._cells(self.attainable.all_reduce(elements, gpus), lambda t: t.all_reduce(elements, gpus))

    def send(self, elements: Array) -> Cells:
        """Of bfloat16 elements to the next stage over the link."""
        time_us = self.attainable.all_reduce(elements, 2)
        return Cells(time_us, np.full(elements.shape, ASSUMED, dtype=np.int8))

    def glue(self, moved_bytes: Array, launches: int) -> Cells:
        """Elementwise kernels."""
        time_us = launches * GLUE_LAUNCH_US + moved_bytes / (self._bandwidth * 1e3)
        return Cells(time_us, np.full(moved_bytes.shape, ASSUMED, dtype=np.int8))

    def _cells(self, best: Array, ask: Callable[[Recorded | Published | Fastest], Found]) -> Cells:
        fraction = np.full(best.shape, np.nan)
        how = np.full(best.shape, ASSUMED, dtype=np.int8)
        for table in self._tables:
            found = ask(table)
            if found is not None:
                take = np.isnan(fraction) & ~np.isnan(found[0])
                fraction, how = np.where(take, found[0], fraction), np.where(take, found[1], how)
        return Cells(best / np.where(np.isnan(fraction), 1.0, fraction), how)


class LightSpeed(KernelSource):
    """The bound: every op at the datasheet's roofs, with no launch, no latency and no inefficiency."""

    def __init__(self, gpu: str) -> None:
        self.attainable = speed_of_light(gpu)
        self._tables = ()

    def quantise(self, m: Array, k: float) -> Cells:
        """It could be fused into the kernel before."""
        return self.glue(m * k, 1)

    def glue(self, moved_bytes: Array, launches: int) -> Cells:
        """Elementwise kernels could all be fused into their neighbours."""
        nothing: npt.NDArray[np.float64] = np.zeros(moved_bytes.shape)
        return Cells(nothing, np.full(moved_bytes.shape, ASSUMED, dtype=np.int8))
