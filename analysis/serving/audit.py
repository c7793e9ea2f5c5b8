"""A claim against the speed of light: which bound it breaks, and what would have to be true.

The bound reads the weights once a step, all in the claimed dtype, from all GPUs at the datasheet's bandwidth, and the
KV of the context where one is told; nothing else. A step accepts one token a stream unless drafts are verified in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.peaks import table
from analysis.serving.attainable import computed, stored
from analysis.serving.deployment import Deployment
from analysis.serving.memory import budget, kept_tokens, max_concurrency, what_would_fit
from analysis.serving.step import distinct_experts
from kernels.models import Model
from kernels.work import storage_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one claim.

    Attributes:
        possible: whether no bound is broken.
        bound: name of the tightest: memory bandwidth, or compute.
        most_per_stream: tokens a second of a stream, at one token a step.
        needed_per_step: tokens a step has to accept for the claim; 1 where it is possible.
        sentences: the verdict in words, first the bound.
    """

    possible: bool
    bound: str
    most_per_stream: float
    needed_per_step: int
    sentences: tuple[str, ...]


def least_bytes(model: Model, dtype: str, streams: int = 1) -> float:
    """Weights that a step of so many tokens must read: no embedding table, no expert that nobody visits, and all
    others in the claimed dtype, whatever engines do with the head."""
    weights: float = model.parameters - (0 if model.tied_head else model.vocabulary * model.hidden)
    if model.experts:
        hit = float(distinct_experts(model, np.array([float(streams)]))[0])
        idle = (model.layers - model.dense_layers) * (model.experts - hit)
        weights -= idle * 3 * model.hidden * model.expert_intermediate
    return float(storage_bytes(int(weights), stored(dtype)))


def audited(deployment: Deployment, tokens_per_s: float, streams: int = 1, context: int = 0) -> Finding:
    """Whether `tokens_per_s` of each of `streams` can be.

    Raises:
        ValueError: a rate that is not positive, less than one stream, or a negative context.
    """
    if not (tokens_per_s > 0 and streams >= 1 and context >= 0):
        raise ValueError(f"wanted tokens/s above 0, streams of 1 or more, got {tokens_per_s}, {streams}, {context}")
    model, peaks, gpus = deployment.model, table()[deployment.gpu], deployment.gpus
    cached = streams * float(kept_tokens(model, np.array([float(context)]))[0])
    moved = least_bytes(model, deployment.dtype, streams) + cached * budget(deployment).kv_bytes_per_token * gpus
    by_memory = peaks.dram_gb_per_s * 1e9 * gpus / moved
    flops = 2 * (model.active_parameters - model.vocabulary * model.hidden * (not model.tied_head)) * streams
    by_compute = peaks.tflops[computed(deployment.dtype), "float32"] * 1e12 * gpus / flops
    # Tokens accepted together share the reading, not the arithmetic.
    most, bound = min((by_memory, "memory bandwidth"), (by_compute, "compute"))
    needed = max(1, math.ceil(tokens_per_s / by_memory - 1e-9))
    where = f"{model.name} {stored(deployment.dtype)} on {gpus} x {deployment.gpu}"
    sentences = [f"{where}: at most {most:.1f} tok/s per stream ({bound}: {moved / 1e9:.1f} GB a step)"]
    if tokens_per_s > by_compute:
        sentences.append(f"{tokens_per_s:g} tok/s x {streams} break the compute bound: {by_compute:.1f}, drafts or not")
    elif needed > 1:
        sentences[0] += f", unless {needed} tokens or more are accepted per step"
    else:
        sentences.append(f"{tokens_per_s:g} tok/s is {tokens_per_s / most:.0%} of the bound: possible")
    return Finding(
        possible=tokens_per_s <= most, bound=bound, most_per_stream=float(most), needed_per_step=needed,
        sentences=(*sentences, *_memory(deployment, streams, context)),
    )  # fmt: skip


def _memory(deployment: Deployment, streams: int, context: int) -> list[str]:
    reason = what_would_fit(deployment, max(1.0, float(context)))
    if reason:
        return [reason]
    room = int(max_concurrency(deployment, np.array([max(1.0, float(context))]))[0])
    return [f"{streams} streams of {context} tokens do not fit: {room} do"] if room < streams else []
