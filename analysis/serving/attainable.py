"""Attainable times of the ops of a step, T0 + max(FLOPs/P, bytes/BW), over arrays of sizes.

The counting is `kernels.work`'s. An all-reduce has no roof of the GPU's own: it is alpha + 2 (t-1)/t bytes / BW over
NVLink. What a kernel really takes is left to `analysis.serving.kernel_source`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.peaks import MEASURED, Peaks, table
from analysis.roofline import Roofs, datasheet_roofs, published_roofs
from analysis.serving.grids import Array
from kernels.work import MLA_LATENT, MLA_ROPE, Work, attention_work, matmul_work, mla_decode_work, storage_bytes

ACTIVATIONS = "bfloat16"
LATENT = MLA_LATENT + MLA_ROPE
"""Values that MLA caches of a token and layer."""
BLOCK_SCALED = ".block128"
"""Marks a weight dtype with a scale for each 128 x 128."""
LINK_GB_PER_S = 450.0
"""NVLink 4, one direction, of NVIDIA's H100 datasheet (900 GB/s both)."""
LINK_ALPHA_US = 2.5
"""Least time of an all-reduce in a CUDA graph: fastest row of the published tables (2.4 to 3.2 us)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The routed experts of a layer.

    Attributes:
        columns: of an expert's up or gate projection that one GPU holds.
        active: experts a token visits.
        ep: GPUs that the experts are spread over; each holds `experts / ep` of them.
    """

    hidden: int
    columns: int
    experts: int
    active: int
    ep: int = 1

    def spread(self, tokens: Array) -> Array:
        """Experts of a GPU that get one of so many tokens, spread evenly; at least one."""
        return np.maximum(np.minimum(tokens * self.active, self.experts) / self.ep, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainable:
    """Times under one set of roofs; `link_alpha_us` is 0 where a bound is wanted and not an expectation."""

    roofs: Roofs
    link_alpha_us: float

    def time_us(self, work: Work, dtype: str) -> Array:
        """T0 + max(FLOPs/P, bytes/BW) in us. Raises ValueError for a dtype without a compute roof."""
        if dtype not in self.roofs.tflops:
            raise ValueError(f"no {self.roofs.kind} compute roof for {dtype}; known: {', '.join(self.roofs.tflops)}")
        compute = np.asarray(work.flops, dtype=float) / (self.roofs.tflops[dtype] * 1e6)
        memory = np.asarray(work.bytes, dtype=float) / (self.roofs.dram_gb_per_s * 1e3)
        return np.asarray(self.roofs.launch_us + np.maximum(compute, memory))

    def gemm(self, m: Array, n: Array, k: Array, dtype: str) -> Array:
        """Activations in and out are bfloat16."""
        weights, compute = stored(dtype), computed(dtype)
        return self.time_us(matmul_work(m, n, k, dtype=ACTIVATIONS, weight_dtype=weights), compute)

    def quantise(self, m: Array, k: Array) -> Array:
        """[M, K] bfloat16 activations to fp8 with a known scale."""
        moved = np.asarray(3 * m * k, dtype=float)
        return self.roofs.launch_us + moved / (self.roofs.dram_gb_per_s * 1e3)

    def experts(self, tokens: Array, layer: Experts, distinct: Array, dtype: str) -> Array:
        """Both grouped matmuls of one GPU; `distinct` of its experts (an expectation, so a fraction too) got a row."""
        rows = tokens * layer.active / layer.ep
        up = self.grouped(rows, 2 * layer.columns, layer.hidden, distinct, dtype)
        return up + self.grouped(rows, layer.hidden, layer.columns, distinct, dtype)

    def grouped(self, rows: Array, n: float, k: float, distinct: Array, dtype: str) -> Array:
        """Rows routed to experts of [K, N], of which `distinct` got one."""
        weights = storage_bytes(distinct * n * k, stored(dtype))
        moved = storage_bytes(rows * (n + k), ACTIVATIONS) + weights
        return self.time_us(Work(flops=2 * rows * n * k, bytes=moved), computed(dtype))

    def attention(
        self, name: str, batch: Array, length: Array, *, heads: tuple[int, int], head_dim: int, dtype: str,
        cached: Array | float = 0.0, v_head_dim: int = 0,
    ) -> Array:  # fmt: skip
        """Equal sequences.

        Args:
            name: attention_prefill (`length` new tokens behind `cached` ones), attention_decode or mla_decode (one
                new token over `length` keys).
            dtype: of the cache, and in prefill of the arithmetic too.
        """
        if name == "mla_decode":
            work = mla_decode_work(
                batch=batch, q_heads=heads[0], q_len=1, kv_tokens=batch * length, pairs=batch * length,
                dtype=ACTIVATIONS, kv_dtype=dtype,
            )  # fmt: skip
            return self.time_us(work, ACTIVATIONS)
        prefill = name == "attention_prefill"
        keys = length + cached
        pairs = length * cached + length * (length + 1) / 2 if prefill else length
        work = attention_work(
            batch=batch, q_heads=heads[0], kv_heads=heads[1], q_len=length if prefill else 1, pairs=batch * pairs,
            kv_tokens=batch * keys, head_dim=head_dim, v_head_dim=v_head_dim or head_dim, dtype=ACTIVATIONS,
            kv_dtype=dtype,
        )  # fmt: skip
        return self.time_us(work, dtype if prefill else ACTIVATIONS)

    def all_reduce(self, elements: Array, gpus: int) -> Array:
        """Of bfloat16 elements."""
        moved = 2 * (gpus - 1) / gpus * np.asarray(storage_bytes(elements, ACTIVATIONS), dtype=float)
        return self.link_alpha_us + moved / (LINK_GB_PER_S * 1e3)


def stored(dtype: str) -> str:
    """The storage of weights of a dtype that may be block-scaled."""
    return dtype.removesuffix(BLOCK_SCALED)


def computed(dtype: str) -> str:
    """What weights are multiplied in: 4-bit ones in bfloat16."""
    return ACTIVATIONS if stored(dtype) == "int4" else stored(dtype)


def speed_of_light(gpu: str) -> Attainable:
    """The datasheet's roofs, no launch and no latency: no real step is faster. Raises ValueError: an unknown GPU."""
    return Attainable(roofs=datasheet_roofs(_part(gpu)), link_alpha_us=0.0)


def expected(gpu: str) -> Attainable:
    """The published measured roofs where the GPU has them, else the datasheet's. Raises ValueError: an unknown GPU."""
    part = _part(gpu)
    roofs = published_roofs(MEASURED[gpu]) if gpu in MEASURED else datasheet_roofs(part)
    return Attainable(roofs=roofs, link_alpha_us=LINK_ALPHA_US)


def _part(gpu: str) -> Peaks:
    if gpu not in table():
        raise ValueError(f"unknown GPU {gpu!r}; known: {', '.join(table())}")
    return table()[gpu]
