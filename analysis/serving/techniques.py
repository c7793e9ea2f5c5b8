"""What each serving technique does to memory, work and time, as formulas; some cross over, from curves and not peaks.

Speculation has `analysis.serving.speculation`, continuous batching `analysis.serving.load`. Everything here is a
plain number of a deployment, with the formula beside it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from analysis.serving.attainable import computed, stored
from analysis.serving.deployment import Deployment
from analysis.serving.grids import Array
from analysis.serving.kernel_source import KernelSource
from analysis.serving.memory import budget, read_bytes, reload_ms
from analysis.serving.step import Batch, step_ops, total_us
from kernels.work import storage_bytes

PCIE_GB_PER_S = 55.0
"""What pinned memory reaches over PCIe 5.0 x16, of 63 in theory (assumed)."""
FLAT = 1.25
"""A step is flat in the batch as long as it takes up to so many times what one sequence takes."""


def paged_waste(lengths: npt.ArrayLike, block: int) -> float:
    """Part of paged memory that holds no token: what each sequence's last block lacks."""
    used = np.asarray(lengths, dtype=float)
    held = np.ceil(used / block) * block
    return float(1 - used.sum() / held.sum())


def reserved_waste(lengths: npt.ArrayLike, reserved: int) -> float:
    """Part that holds no token where each sequence gets room for `reserved`. Raises ValueError for a longer one."""
    used = np.asarray(lengths, dtype=float)
    if used.max() > reserved:
        raise ValueError(f"a sequence of {used.max():g} tokens in a reservation of {reserved}")
    return float(1 - used.sum() / (len(used) * reserved))


def static_efficiency(outputs: npt.ArrayLike) -> float:
    """Useful tokens over slots x steps of a static batch: it runs until its longest answer ends. Continuous: 1."""
    tokens = np.asarray(outputs, dtype=float)
    return float(tokens.mean() / tokens.max())


def prefix_work(prompt: float, hit: float) -> tuple[float, float]:
    """Parts of a prompt's linear and of its attention work that stay when `hit` of it is cached: 1 - h and 1 - h^2."""
    cached = prompt * hit
    pairs = prompt * (prompt + 1) / 2
    return 1 - hit, 1 - cached * (cached + 1) / 2 / pairs


def critical_batch(deployment: Deployment, source: KernelSource) -> float:
    """Tokens at which a linear layer's arithmetic takes as long as its weights' reading under the source's roofs:
    P x bytes of a weight / (2 BW)."""
    dtype = deployment.dtype
    return source.attainable.roofs.ridge(computed(dtype)) * float(storage_bytes(1000, stored(dtype))) / 1000 / 2


def flat_batch(deployment: Deployment, source: KernelSource, context: float = 1.0) -> int:
    """The largest batch whose decode step takes up to FLAT times the step of one sequence, from the curve."""
    sizes = np.arange(1, 1025, dtype=float)
    time_us = _decode_us(deployment, source, sizes, np.full(sizes.shape, context))
    return int(sizes[time_us <= FLAT * time_us[0]].max())


def context_of_equal_reading(deployment: Deployment, batch: int) -> float:
    """Keys of each sequence at which a step reads as many bytes of KV as of weights: N w / (B x KV bytes)."""
    per_token = budget(deployment).kv_bytes_per_token * deployment.gpus
    whole = float(read_bytes(deployment.model, deployment.dtype, float(deployment.model.experts)))
    return whole / (batch * per_token)


def reload_or_recompute(
    deployment: Deployment, source: KernelSource, tokens: npt.ArrayLike, link_gb_per_s: float = PCIE_GB_PER_S
) -> tuple[Array, Array]:
    """Milliseconds to bring a prompt's KV back from host memory, each GPU over its own link, and to prefill it."""
    length = np.asarray(tokens, dtype=float)
    reload = reload_ms(deployment, length, link_gb_per_s)
    none, one = np.zeros(length.shape), np.ones(length.shape)
    prefill = step_ops(deployment, source, Batch(decodes=none, context=one, prompts=one, new=length))
    return reload, total_us(prefill) / 1e3


def crossover(difference: Callable[[Array], Array], low: float, high: float) -> float | None:
    """Where a function of sizes changes its sign between two of them, by halving in logarithms; None where not."""
    ends = difference(np.array([low, high]))
    if ends[0] * ends[1] > 0:
        return None
    for _ in range(60):
        middle = float(np.sqrt(low * high))
        if difference(np.array([middle]))[0] * ends[0] > 0:
            low = middle
        else:
            high = middle
    return low


def speculation_break_even(deployment: Deployment, source: KernelSource, context: float) -> float | None:
    """The batch at which a draft stops paying, from the step's curve; None where it pays up to 4,096 or never.

    Raises:
        ValueError: a deployment without a draft.
    """
    draft = deployment.speculation
    if draft is None:
        raise ValueError("a deployment without a draft has no batch at which it stops paying")

    def lost(batch: Array) -> Array:
        keys = np.full(batch.shape, context)
        plain = _decode_us(deployment, source, batch, keys)
        verify = _decode_us(deployment, source, batch, keys, draft.tokens + 1)
        return np.asarray((verify + draft.tokens * draft.draft_cost * plain) / draft.accepted - plain)

    return crossover(lost, 1.0, 4096.0)


def _decode_us(
    deployment: Deployment, source: KernelSource, batch: Array, context: Array, queries: int = 1
) -> Array:  # fmt: skip
    none, one = np.zeros(batch.shape), np.ones(batch.shape)
    step = Batch(decodes=batch, context=context, prompts=none, new=one, queries=queries)
    return total_us(step_ops(deployment, source, step))
