"""One engine step as its ops: what runs, how often, and for how long.

A step has `decodes` sequences that get one token each and `prompts` prompts that are prefilled beside them; the linear
layers run over all tokens together. Everything is an array over steps. When which step runs is left to
`analysis.serving.load`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.serving.attainable import Experts
from analysis.serving.deployment import Deployment
from analysis.serving.grids import Array
from analysis.serving.kernel_source import Cells, KernelSource
from kernels.models import Model, projections, sharded

LM_DTYPE = "bfloat16"
STATIC_FP8 = "float8_e4m3fn"
GLUE_LAUNCHES = 3
"""Small kernels of a layer: two norms with their residual, and the activation, which routed experts hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a step works on, one array each.

    Attributes:
        decodes: sequences that decode, and `context` keys of each.
        prompts: prompts, of `new` tokens each behind `cached` ones.
        queries: tokens of a decoding sequence: 1, or a draft's and one more. Attention over them reads the cache once.
    """

    decodes: Array
    context: Array
    prompts: Array
    new: Array
    cached: Array | float = 0.0
    queries: int = 1

    @property
    def tokens(self) -> Array:
        """Rows of the linear layers."""
        return np.maximum(self.decodes * self.queries + self.prompts * self.new, 1.0)

    @property
    def sequences(self) -> Array:
        """Rows that get logits."""
        return np.maximum(self.decodes * self.queries + self.prompts, 1.0)


def step_ops(deployment: Deployment, source: KernelSource, batch: Batch) -> dict[str, Cells]:
    """Op -> its time in the whole step, all layers together, in the order of a layer."""
    model, tp = deployment.model, deployment.tp
    ops = _linear(deployment, source, batch.tokens)
    ops |= _attention(deployment, source, batch)
    reduced = source.all_reduce(batch.tokens * model.hidden, tp)
    ops["all_reduce"] = reduced.times(all_reduces(deployment))
    ops["glue"] = _glue(deployment, source, batch.tokens)
    head = next(p for p in projections(model, tp) if p.name == "lm_head")
    ops["lm_head"] = source.gemm(batch.sequences, head.n, head.k, LM_DTYPE)
    ops["sampling"] = source.glue(batch.sequences * 4 * head.n, 1)
    if deployment.pp > 1:
        ops["send_recv"] = source.send(batch.tokens * model.hidden).times(deployment.pp - 1)
    return ops


def total_us(ops: dict[str, Cells]) -> Array:
    """The step's time: ops run one after another."""
    return np.asarray(np.sum([cells.time_us for cells in ops.values()], axis=0))


def all_reduces(deployment: Deployment) -> int:
    """All-reduces of a step."""
    return 2 * deployment.model.layers if deployment.tp > 1 else 0


def _linear(deployment: Deployment, source: KernelSource, tokens: Array) -> dict[str, Cells]:
    model, dtype = deployment.model, deployment.dtype
    ops, quantised = {}, np.zeros(tokens.shape)
    for name, n, k in projections(model, deployment.tp):
        if name != "lm_head":
            layers = model.dense_layers if name in ("gate_up_proj", "down_proj") else model.layers
            ops[name] = source.gemm(tokens, n, k, dtype).times(layers)
            quantised = quantised + source.quantise(tokens, k).time_us * layers
    if dtype == STATIC_FP8 and not _fuses_quantisation(deployment):
        ops["quantisation"] = Cells(quantised, source.quantise(tokens, model.hidden).how)
    if model.experts:
        ops |= _experts(deployment, source, tokens)
    return ops


def _fuses_quantisation(deployment: Deployment) -> bool:
    engine = deployment.engine
    return engine.quantised_in_gemm or deployment.model.name.startswith(engine.fuses_quantisation)


def distinct_experts(model: Model, tokens: Array) -> Array:
    """Expected routed experts that get a token, if the router is even: E (1 - (1 - k/E)^T)."""
    return np.asarray(model.experts * (1 - (1 - model.experts_active / model.experts) ** tokens))


def _experts(deployment: Deployment, source: KernelSource, tokens: Array) -> dict[str, Cells]:
    """Router, routed experts, spread over `ep` GPUs with their columns split over the rest, and shared ones."""
    model, dtype, ep = deployment.model, deployment.dtype, deployment.ep
    layers, width = model.layers - model.dense_layers, model.expert_intermediate // deployment.tp
    routed = Experts(hidden=model.hidden, columns=width * ep, experts=model.experts, active=model.experts_active, ep=ep)
    distinct = distinct_experts(model, tokens) / ep
    ops = {
        "router": source.gemm(tokens, model.experts, model.hidden, LM_DTYPE).times(layers),
        "experts": source.experts(tokens, routed, distinct, dtype).times(layers),
    }
    if model.shared_experts:
        shared = width * model.shared_experts
        ops["shared_up"] = source.gemm(tokens, 2 * shared, model.hidden, dtype).times(layers)
        ops["shared_down"] = source.gemm(tokens, model.hidden, shared, dtype).times(layers)
    return ops


def _attention(deployment: Deployment, source: KernelSource, batch: Batch) -> dict[str, Cells]:
    """Decode and prefill, of whole and of windowed layers."""
    model, shard = deployment.model, sharded(deployment.model, deployment.tp)
    heads, kv = (shard.q_heads, shard.kv_heads), deployment.kv_dtype
    latent = bool(model.kv_lora_rank)
    prefill_kv = kv if deployment.engine.quantised_attention and not latent else "bfloat16"
    ops = {}
    whole = model.layers - model.window_layers
    for suffix, layers, reach in (("", whole, np.inf), ("_window", model.window_layers, float(model.window))):
        if not layers:
            continue
        some = np.maximum(batch.decodes, 1.0), np.maximum(np.minimum(batch.context, reach), 1.0)
        decode = source.attention(
            "mla_decode" if latent else "attention_decode", *some, heads=(heads[0], 1) if latent else heads,
            head_dim=model.head_dim, dtype=kv, v_head_dim=model.v_head_dim,
        )  # fmt: skip
        ops[f"attention_decode{suffix}"] = decode.times(np.where(batch.decodes > 0, layers, 0.0))
        prefill = source.attention(
            "attention_prefill", np.ones_like(batch.new), np.maximum(batch.new, 1.0), heads=heads,
            head_dim=model.head_dim, dtype=prefill_kv, cached=batch.cached, v_head_dim=model.v_head_dim,
        )  # fmt: skip
        seen = np.minimum(1.0, 2 * reach / np.maximum(batch.new, 1.0))  # a window's pairs over a long prompt's
        ops[f"attention_prefill{suffix}"] = prefill.times(layers * batch.prompts * seen)
    return ops


def _glue(deployment: Deployment, source: KernelSource, tokens: Array) -> Cells:
    """Norms read and write the residual stream, the activation halves its rows, RoPE reads and writes Q and K."""
    model, shard = deployment.model, sharded(deployment.model, deployment.tp)
    rotated = 2 * 2 * (shard.q_heads + shard.kv_heads) * model.head_dim
    extra = sum((deployment.engine.separate_rope, model.qk_norm, model.qk_norm))  # a norm for Q, and one for K
    shared = model.shared_experts * model.expert_intermediate / deployment.tp
    total, how = np.zeros(tokens.shape), np.zeros(tokens.shape, dtype=np.int8)
    for layers, width in ((model.dense_layers, shard.intermediate), (model.layers - model.dense_layers, shared)):
        moved = 2 * (6 * model.hidden + 3 * width) + extra * rotated
        cells = source.glue(tokens * moved, GLUE_LAUNCHES - (not width) + extra)
        total, how = total + layers * cells.time_us, cells.how
    return Cells(total, how)
