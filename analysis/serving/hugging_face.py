"""Models of Hugging Face: which of ours a repository's name means, and any other from its `config.json`.

The count of parameters follows from the shapes; for the models of `kernels.models` a test holds it against theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels.models import MODELS, Model, model_named

SUFFIXES = ("-fp8", "-instruct", "-base", "-pt", "-it", "-v0.1")
"""Ends of a repository's name that change no shape."""
ARCHITECTURES = (
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM",
    "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM",
)  # fmt: skip
QK_NORM = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
QKV_BIAS = ("Qwen2ForCausalLM",)

SIZES = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "intermediate_size", "moe_intermediate_size", "n_routed_experts", "num_local_experts", "num_experts",
    "num_experts_per_tok", "first_k_dense_replace", "n_shared_experts", "sliding_window", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip
"""What is read of a configuration, where it has it."""
MAY_BE_ZERO = ("first_k_dense_replace", "n_shared_experts", "sliding_window")


def model_of_path(path: str) -> Model:
    """`meta-llama/Llama-3.1-8B-Instruct` -> llama-3.1-8b. Raises ValueError with the known names."""
    name = path.rsplit("/", 1)[-1].lower().removeprefix("meta-")
    known = {model.name for model in MODELS}
    while name not in known:
        shorter = next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), None)
        if shorter is None:
            break
        name = shorter
    return model_named(name)


def read_config(path: Path) -> Model:
    """The model of a `config.json`.

    Raises:
        ValueError: no JSON object, an architecture that is not known, or a size that is missing or none.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: a JSON object was wanted, got {type(config).__name__}")
    return model_of_config(config, path.parent.name or "model")


def model_of_config(config: Mapping[str, Any], name: str) -> Model:
    """The model that a configuration describes; raises as `read_config`."""
    named = config.get("architectures") or [config.get("model_type", "none")]
    architecture = str(named[0])
    if architecture not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {architecture!r}; known: {', '.join(ARCHITECTURES)}")
    for size in SIZES:
        value = config.get(size)
        if value is not None and (not isinstance(value, int) or value < (size not in MAY_BE_ZERO)):
            raise ValueError(f"{architecture}: {size} must be a whole number of 1 or more, got {value!r}")
    try:
        sizes = _sizes(config, architecture)
    except KeyError as error:
        raise ValueError(f"{architecture}: no {error.args[0]!r} in the configuration") from error
    model = Model(name=name, parameters=1, source=f"Hugging Face config, {architecture}", **sizes)
    biases = model.layers * (model.q_heads + 2 * model.kv_heads) * model.head_dim * (architecture in QKV_BIAS)
    total = parameters_of(model) + biases
    routed = (model.layers - model.dense_layers) * (model.experts - model.experts_active)
    idle = routed * 3 * model.hidden * model.expert_intermediate
    return Model(
        name=name, parameters=total, active_parameters=total - idle, source=model.source, **sizes
    )  # fmt: skip


def _sizes(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    layers, hidden, heads = (config[k] for k in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    sizes = {
        "layers": layers, "hidden": hidden, "q_heads": heads, "vocabulary": config["vocab_size"],
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
        "tied_head": bool(config.get("tie_word_embeddings", False)),
        "qk_norm": architecture in QK_NORM,
    }  # fmt: skip
    experts = config.get("n_routed_experts") or config.get("num_local_experts") or config.get("num_experts") or 0
    if experts:
        dense = config.get("first_k_dense_replace", 0)
        sizes |= {
            "experts": experts, "experts_active": config["num_experts_per_tok"],
            "expert_intermediate": config.get("moe_intermediate_size") or config["intermediate_size"],
            "shared_experts": config.get("n_shared_experts") or 0, "dense_layers": dense,
            "intermediate": config["intermediate_size"] if dense else 0,
        }  # fmt: skip
    else:
        sizes["intermediate"] = config["intermediate_size"]
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if window:
        sizes |= {"window": window, "window_layers": layers}
    if config.get("kv_lora_rank"):
        rope = config["qk_rope_head_dim"]
        sizes |= {
            "head_dim": config["qk_nope_head_dim"] + rope, "v_head_dim": config["v_head_dim"], "rope_head_dim": rope,
            "q_lora_rank": config["q_lora_rank"], "kv_lora_rank": config["kv_lora_rank"], "kv_heads": heads,
        }  # fmt: skip
    return sizes


def parameters_of(model: Model) -> int:
    """Weights of the shapes: matmuls, norms, router, embedding and head; no biases but the router's correction."""
    h, heads, kv = model.hidden, model.q_heads, model.kv_heads
    if model.kv_lora_rank:
        latents = model.q_lora_rank + model.kv_lora_rank
        expanded = model.head_dim - model.rope_head_dim + model.v_head_dim
        attention = h * (latents + model.rope_head_dim) + latents
        attention += model.q_lora_rank * heads * model.head_dim + model.kv_lora_rank * heads * expanded
    else:
        attention = h * (heads * model.head_dim + kv * (model.head_dim + model.v_head_dim))
        attention += 2 * model.head_dim * model.qk_norm
    attention += heads * model.v_head_dim * h
    moe_layers = model.layers - model.dense_layers
    experts = 3 * h * model.expert_intermediate * (model.experts + model.shared_experts) + h * model.experts
    experts += model.experts if model.kv_lora_rank else 0
    tables = model.vocabulary * h * (1 if model.tied_head else 2)
    layers = model.layers * (attention + 2 * h) + model.dense_layers * 3 * h * model.intermediate + moe_layers * experts
    return int(layers + h + tables)
