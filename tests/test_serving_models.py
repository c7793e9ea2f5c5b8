"""Models from Hugging Face: names, configurations, and the count of parameters that follows from the shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.serving.hugging_face import model_of_config, model_of_path, parameters_of, read_config
from kernels.models import MODELS, Model, model_named

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
QWEN_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "use_sliding_window": False,
    "sliding_window": None,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": 7168,
    "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 129280,
}  # fmt: skip
MISTRAL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": 4096,
}  # fmt: skip


def shapes(model: Model) -> dict[str, Any]:
    return {name: getattr(model, name) for name in Model.__dataclass_fields__ if name not in ("name", "source")}


@pytest.mark.parametrize(
    ("config", "name"),
    [(LLAMA, "llama-3.1-8b"), (QWEN_MOE, "qwen3-30b-a3b"), (DEEPSEEK, "deepseek-v3"), (MISTRAL, "mistral-7b")],
)
def test_published_configuration_gives_our_model(config: dict[str, Any], name: str) -> None:
    assert shapes(model_of_config(config, name)) == shapes(model_named(name))


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_shapes_imply_the_published_count_of_parameters(model: Model) -> None:
    if model.name in ("gemma-2-27b", "gemma-3-27b", "gpt-oss-120b"):  # four norms a layer; sinks and biases
        assert parameters_of(model) == pytest.approx(model.parameters, rel=5e-4)
    else:
        assert parameters_of(model) == model.parameters


def test_biases_of_qwen2_count() -> None:
    """Qwen2-7B: 7,615,616,512 parameters, 28 x (3,584 + 2 x 512) of them biases of Q, K and V."""
    config = {
        "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
        "sliding_window": 131072, "use_sliding_window": False,
    }  # fmt: skip
    model = model_of_config(config, "qwen2-7b")
    assert model.parameters == 7_615_616_512 and model.window_layers == 0


@pytest.mark.parametrize(
    ("path", "name"),
    [("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"), ("meta-llama/Meta-Llama-3.1-70B", "llama-3.1-70b"),
     ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b"), ("Qwen/Qwen3-32B", "qwen3-32b"),
     ("mistralai/Mistral-7B-v0.1", "mistral-7b"), ("deepseek-v3", "deepseek-v3")],
)  # fmt: skip
def test_name_of_a_repository_means_a_model(path: str, name: str) -> None:
    assert model_of_path(path).name == name


def test_configuration_that_cannot_be_used_is_told_why(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text, part in (
        (
            json.dumps({**LLAMA, "architectures": ["GPT2LMHeadModel"]}),
            "unknown architecture 'GPT2LMHeadModel'; known: L",
        ),
        (json.dumps({k: v for k, v in LLAMA.items() if k != "hidden_size"}), "no 'hidden_size'"),
        ("{", "no JSON"),
        ("[]", "a JSON object was wanted, got list"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=part.replace("[", r"\[")):
            read_config(path)
    with pytest.raises(ValueError, match="unknown model 'gpt-9'"):
        model_of_path("openai/gpt-9")


@pytest.mark.parametrize(
    ("size", "value"), [("hidden_size", "4096"), ("num_hidden_layers", -3), ("vocab_size", 0), ("head_dim", 1.5)]
)
def test_size_of_nothing_is_named(size: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{size} must be a whole number of 1 or more, got {value!r}"):
        model_of_config({**LLAMA, size: value}, "llama")
