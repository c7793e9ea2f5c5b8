"""What fits: weights, KV cache, activations and graphs of one GPU, and how many requests that leaves room for.

A GB is 1e9 bytes, and a GPU has the GB it is sold with (the driver reports up to 7 % more, and keeps some).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from analysis.peaks import table
from analysis.serving.attainable import LATENT, stored
from analysis.serving.deployment import Deployment
from analysis.serving.grids import Array
from kernels.models import Model, sharded, tp_sizes
from kernels.work import storage_bytes

CONTEXT_BYTES = 2e9
"""CUDA context, NCCL buffers and captured graphs of one GPU (assumed)."""
LOGIT_ROWS = 256
"""Sequences whose float32 logits an engine makes room for (assumed)."""
SCALE_OVERHEAD = {"int4": 1.125}
"""Bytes of weights and scales over those of the weights alone: 4-bit ones with a bfloat16 scale for each 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bytes of one GPU.

    Attributes:
        room: what is left for the KV cache; negative where even the weights do not fit.
        kv_bytes_per_token: of this GPU, every layer of its stage.
    """

    capacity: float
    fraction: float
    weights: float
    activations: float
    context: float
    room: float
    kv_bytes_per_token: float

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV fits."""
        return max(0, int(self.room // self.kv_bytes_per_token))


def weight_bytes(model: Model, dtype: str) -> float:
    """Of the whole model: linear layers in `dtype`, embedding and head in bfloat16."""
    tables = model.vocabulary * model.hidden * (1 if model.tied_head else 2)
    layers = storage_bytes(model.parameters - tables, stored(dtype)) * SCALE_OVERHEAD.get(stored(dtype), 1.0)
    return float(layers + storage_bytes(tables, "bfloat16"))


def read_bytes(model: Model, dtype: str, distinct_experts: Array | float = 0.0) -> Array:
    """Weights that a decode step reads: all but the embedding table, of which it gathers a row a token, and but the
    experts that no token visits."""
    table_bytes = 0 if model.tied_head else storage_bytes(model.vocabulary * model.hidden, "bfloat16")
    idle = (model.layers - model.dense_layers) * (model.experts - np.asarray(distinct_experts, dtype=float))
    skipped = storage_bytes(idle * 3 * model.hidden * model.expert_intermediate, stored(dtype))
    return np.asarray(weight_bytes(model, dtype) - table_bytes - skipped)


def kv_bytes_per_token(model: Model, tp: int = 1, dtype: str = "bfloat16") -> int:
    """Of one GPU, all layers, for a token that every layer keeps. MLA's latent is the same on every GPU; KV heads
    fewer than the GPUs are replicated."""
    if model.kv_lora_rank:
        return model.layers * int(storage_bytes(LATENT, dtype))
    return kv_bytes(model.layers, sharded(model, tp).kv_heads, model.head_dim + model.v_head_dim, dtype)


def kv_bytes(layers: int, kv_heads: int, width: int, dtype: str) -> int:
    """Of one token: `layers` that keep K and V (of a hybrid model only those), `width` values of a head's both."""
    return layers * int(storage_bytes(kv_heads * width, dtype))


def budget(deployment: Deployment) -> Budget:
    """The memory of one GPU of the deployment, at its first token."""
    model, engine = deployment.model, deployment.engine
    capacity = table()[deployment.gpu].memory_gib * 1e9
    weights = weight_bytes(model, deployment.dtype) / deployment.gpus
    width = max(sharded(model, deployment.tp).intermediate, model.experts_active * model.expert_intermediate)
    activations = 2.0 * engine.token_budget * (4 * model.hidden + 3 * width)
    activations += 4.0 * LOGIT_ROWS * model.vocabulary / deployment.tp
    room = capacity * engine.memory_fraction - weights - activations - CONTEXT_BYTES
    return Budget(
        capacity=capacity, fraction=engine.memory_fraction, weights=weights, activations=activations,
        context=CONTEXT_BYTES, room=room,
        kv_bytes_per_token=kv_bytes_per_token(model, deployment.tp, deployment.kv_dtype) / deployment.pp,
    )  # fmt: skip


def kept_tokens(model: Model, length: Array) -> Array:
    """Tokens of the whole-cache kind that sequences of this length keep: windowed layers keep their window."""
    windowed = model.window_layers / model.layers
    return np.asarray((1 - windowed) * length + windowed * np.minimum(length, model.window or np.inf))


def held_tokens(deployment: Deployment, length: Array) -> Array:
    """Tokens of memory that sequences of this length hold: what they keep in whole pages, or their reservation.

    Raises:
        ValueError: a sequence that is longer than the reservation.
    """
    way, longest = deployment.scheduling, float(np.max(length, initial=0.0))
    if way.reserved:
        if longest > way.reserved:
            raise ValueError(f"a sequence of {longest:g} tokens in a reservation of {way.reserved}")
        return kept_tokens(deployment.model, np.full(np.shape(length), float(way.reserved)))
    page = way.page or deployment.engine.page
    return np.asarray(np.ceil(kept_tokens(deployment.model, np.maximum(length, 1.0)) / page) * page)


def max_concurrency(deployment: Deployment, length: Array) -> Array:
    """Requests of `length` tokens, prompt and output, that fit at their end; 0 where none does."""
    return np.floor(budget(deployment).kv_tokens / held_tokens(deployment, length))


def reload_ms(deployment: Deployment, tokens: npt.ArrayLike, link_gb_per_s: float) -> Array:
    """Milliseconds to bring the KV of so many tokens back from host memory, each GPU over its own link; 0 without."""
    length = np.asarray(tokens, dtype=float)
    moved = kept_tokens(deployment.model, length) * budget(deployment).kv_bytes_per_token
    return np.asarray(moved / (link_gb_per_s * 1e6) if link_gb_per_s else np.zeros(length.shape))


def what_would_fit(deployment: Deployment, length: float) -> str:
    """Numbers of what does not fit, and the smallest TP and the dtypes that do; '' where one request fits."""
    if max_concurrency(deployment, np.array([length]))[0] >= 1:
        return ""
    b = budget(deployment)
    whole = weight_bytes(deployment.model, deployment.dtype)
    least = int(-(-whole // b.capacity))
    needed = held_tokens(deployment, np.array([length]))[0] * b.kv_bytes_per_token
    parts = [
        f"does not fit: {whole / 1e9:.1f} GB of weights, {b.weights / 1e9:.1f} GB of them on each GPU, "
        f"+ {b.activations / 1e9:.1f} GB activations + {b.context / 1e9:.1f} GB context and graphs + "
        f"{needed / 1e9:.2f} GB KV of one request, and {b.fraction:.0%} of {b.capacity / 1e9:.0f} GB are "
        f"{b.capacity * b.fraction / 1e9:.1f}",
        f"at least {least} GPU{'s' if least > 1 else ''} for weights alone",
    ]
    fitting = [tp for tp in tp_sizes(deployment.model) if _fits(replace(deployment, tp=tp, ep=1), length)]
    parts.append(f"smallest TP that fits: {fitting[0]}" if fitting else "no TP of this model fits")
    smaller = [d for d in ("float8_e4m3fn", "int4") if _fits(replace(deployment, dtype=d), length)]
    parts.append(f"at TP {deployment.tp} {smaller[0]} weights fit" if smaller else "no smaller dtype fits at this TP")
    return "; ".join(parts)


def _fits(deployment: Deployment, length: float) -> bool:
    return bool(max_concurrency(deployment, np.array([length]))[0] >= 1)


def block_waste(length: float, block: int) -> float:
    """Tokens of paged KV that a sequence reserves and does not use: half a block on average over lengths."""
    return -(-length // block) * block - length
