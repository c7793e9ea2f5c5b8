"""Shapes of published models against their own configs, their published sizes, and matmuls worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernels.attention_layers import attention_decode_workloads, attention_prefill_workloads
from kernels.models import MODELS, Model, matmul_workloads, model_named, projections, sharded, tp_sizes

CONFIG_FILES = {
    "llama-3.1-8b": "meta-llama--Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama--Meta-Llama-3.1-70B",
    "llama-3.1-405b": "meta-llama--Meta-Llama-3.1-405B",
    "qwen3-8b": "Qwen--Qwen3-8B",
    "qwen3-32b": "Qwen--Qwen3-32B",
    "qwen3-30b-a3b": "Qwen--Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen--Qwen3-235B-A22B",
    "mixtral-8x7b": "mistralai--Mixtral-8x7B-v0.1",
    "deepseek-v3": "deepseek-ai--DeepSeek-V3",
    "gpt-oss-120b": "openai--gpt-oss-120b",
}
"""The package has no config of mistral-7b and gemma-3-27b."""

# 28 heads over 8 GPUs: a user's model that no published one here stands for.
TWENTY_EIGHT_HEADS = Model(
    name="generic", layers=1, hidden=3584, q_heads=28, kv_heads=4, head_dim=128, intermediate=18816,
    vocabulary=151648, parameters=1, source="test",
)  # fmt: skip


def hugging_face_config(name: str) -> dict[str, Any]:
    package = pytest.importorskip("aiconfigurator_core")
    path = Path(package.__file__).parent / "model_configs" / f"{CONFIG_FILES[name]}_config.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return config


def first_of(config: dict[str, Any], *keys: str) -> int:
    return next((config[key] for key in keys if config.get(key) is not None), 0)


@pytest.mark.parametrize("name", CONFIG_FILES)
def test_shapes_are_those_of_the_hugging_face_config(name: str) -> None:
    config, model = hugging_face_config(name), model_named(name)
    assert model.layers == config["num_hidden_layers"]
    assert model.hidden == config["hidden_size"]
    assert model.q_heads == config["num_attention_heads"]
    assert model.kv_heads == config["num_key_value_heads"]
    assert model.vocabulary == config["vocab_size"]
    assert model.tied_head == config["tie_word_embeddings"]
    rope, nope = first_of(config, "qk_rope_head_dim"), first_of(config, "qk_nope_head_dim")
    head_dim = first_of(config, "head_dim") or rope + nope or model.hidden // model.q_heads
    assert model.head_dim == head_dim
    assert model.v_head_dim == (first_of(config, "v_head_dim") or head_dim)
    assert model.rope_head_dim == rope
    assert model.q_lora_rank == first_of(config, "q_lora_rank")
    assert model.kv_lora_rank == first_of(config, "kv_lora_rank")


@pytest.mark.parametrize("name", CONFIG_FILES)
def test_mlp_experts_and_windows_are_those_of_the_hugging_face_config(name: str) -> None:
    config, model = hugging_face_config(name), model_named(name)
    experts = first_of(config, "num_experts", "num_local_experts", "n_routed_experts")
    dense_layers = first_of(config, "first_k_dense_replace") if experts else model.layers
    assert model.dense_layers == dense_layers
    assert model.intermediate == (config["intermediate_size"] if dense_layers else 0)
    assert model.experts == experts
    assert model.experts_active == first_of(config, "num_experts_per_tok")
    assert model.shared_experts == first_of(config, "n_shared_experts")
    assert model.expert_intermediate == (first_of(config, "moe_intermediate_size", "intermediate_size") * bool(experts))
    assert model.window == first_of(config, "sliding_window")
    assert model.window_layers == config.get("layer_types", []).count("sliding_attention")


def counted_parameters(model: Model, experts: int) -> int:
    """Weights of the matmuls and the embedding, with `experts` routed experts a layer; no norms, no biases."""
    weights = {name: n * k for name, n, k in projections(model, 1)}
    head = weights.pop("lm_head")
    mlp = weights.pop("gate_up_proj", 0) + weights.pop("down_proj", 0)
    expert = 3 * model.hidden * model.expert_intermediate
    expert_layer = (experts + model.shared_experts) * expert + model.hidden * model.experts
    expert_layers = model.layers - model.dense_layers
    layers = model.layers * sum(weights.values()) + model.dense_layers * mlp + expert_layers * expert_layer
    return layers + head * (1 if model.tied_head else 2)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_published_parameters_follow_from_the_shapes(model: Model) -> None:
    assert counted_parameters(model, model.experts) == pytest.approx(model.parameters, rel=0.001)
    assert counted_parameters(model, model.experts_active) == pytest.approx(model.active_parameters, rel=0.001)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("qwen3-30b-a3b", 3.3e9),
        ("qwen3-235b-a22b", 22e9),
        ("mixtral-8x7b", 12.9e9),
        ("deepseek-v3", 37e9),
    ],
)
def test_active_parameters_round_to_what_the_authors_say(name: str, published: float) -> None:
    assert model_named(name).active_parameters == pytest.approx(published, rel=0.02)


def test_gpt_oss_active_parameters_without_the_embedding_are_the_card_s() -> None:
    model = model_named("gpt-oss-120b")
    assert model.active_parameters - model.vocabulary * model.hidden == pytest.approx(5.13e9, rel=0.001)
    assert model.parameters == pytest.approx(116.83e9, rel=0.001)


def test_a_dense_model_is_all_active() -> None:
    assert all(m.active_parameters == m.parameters and m.dense_layers == m.layers for m in MODELS if not m.experts)


def test_windowed_layers_of_models_without_a_config_here() -> None:
    # Gemma 3: five local layers, then a global one; 62 layers hold ten such groups and two local layers more.
    gemma, mistral = model_named("gemma-3-27b"), model_named("mistral-7b")
    assert (gemma.window, gemma.window_layers, gemma.head_dim) == (1024, 10 * 5 + 2, 128)
    assert (mistral.window, mistral.window_layers) == (4096, mistral.layers)


def test_names_are_unique_and_an_unknown_one_lists_them() -> None:
    names = [model.name for model in MODELS]
    assert len(set(names)) == len(names) == 13
    with pytest.raises(ValueError, match=r"unknown model 'llama-9'; known: llama-3\.1-8b, llama-3\.1-70b, .*gpt-oss"):
        model_named("llama-9")


# By hand. Llama-3.1-8B: (32 + 2*8) * 128 = 6144; 70B over 8 GPUs: (8 + 2*1) * 128 = 1280, 64*128/8 = 1024,
# 2*28672/8 = 7168, 128256/8 = 16032.
GOLDEN_PROJECTIONS = {
    ("llama-3.1-8b", 1): [
        ("qkv_proj", 6144, 4096),
        ("o_proj", 4096, 4096),
        ("gate_up_proj", 28672, 4096),
        ("down_proj", 4096, 14336),
        ("lm_head", 128256, 4096),
    ],
    ("llama-3.1-70b", 8): [
        ("qkv_proj", 1280, 8192),
        ("o_proj", 8192, 1024),
        ("gate_up_proj", 7168, 8192),
        ("down_proj", 8192, 3584),
        ("lm_head", 16032, 8192),
    ],
    # Head_dim is given, not hidden / heads: 64 * 128 = 8192 on 5120.
    ("qwen3-32b", 1): [
        ("qkv_proj", 10240, 5120),
        ("o_proj", 5120, 8192),
        ("gate_up_proj", 51200, 5120),
        ("down_proj", 5120, 25600),
        ("lm_head", 151936, 5120),
    ],
    # Attention of a mixture of experts is dense; its experts are not. 4 KV heads over 8 GPUs: one each, replicated.
    ("qwen3-30b-a3b", 8): [("qkv_proj", 768, 2048), ("o_proj", 2048, 512), ("lm_head", 18992, 2048)],
    # 1536 + 512 + 64 = 2112 on every GPU; 16 heads: 16 * 192, 16 * (128 + 128), 16 * 128.
    ("deepseek-v3", 8): [
        ("qkv_a_proj", 2112, 7168),
        ("q_b_proj", 3072, 1536),
        ("kv_b_proj", 4096, 512),
        ("o_proj", 7168, 2048),
        ("gate_up_proj", 4608, 7168),
        ("down_proj", 7168, 2304),
        ("lm_head", 16160, 7168),
    ],
}


@pytest.mark.parametrize(("name", "tp"), GOLDEN_PROJECTIONS)
def test_projections_by_hand(name: str, tp: int) -> None:
    assert projections(model_named(name), tp) == GOLDEN_PROJECTIONS[name, tp]


@pytest.mark.parametrize(("tp", "kv_heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_are_divided_and_then_replicated(tp: int, kv_heads: int) -> None:
    shard = sharded(model_named("llama-3.1-8b"), tp)
    assert (shard.q_heads, shard.kv_heads) == (32 // tp, kv_heads)


def test_a_tp_that_does_not_divide_the_heads_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"tp 8 does not divide 28 query heads; these sizes fit: 1, 2, 4, 7, 14, 28$"):
        sharded(TWENTY_EIGHT_HEADS, 8)


def test_a_tp_that_neither_divides_the_kv_heads_nor_is_a_multiple_is_refused() -> None:
    message = r"tp 14 does not divide 4 KV heads and is no multiple of them; these sizes fit: 1, 2, 4, 28$"
    with pytest.raises(ValueError, match=message):
        sharded(TWENTY_EIGHT_HEADS, 14)
    assert sharded(TWENTY_EIGHT_HEADS, 28).kv_heads == 1


@pytest.mark.parametrize(
    ("width", "size", "what"),
    [
        ("intermediate", 18818, "18818 MLP columns"),
        ("expert_intermediate", 770, "770 expert columns"),
        ("vocabulary", 151650, "151650 vocabulary entries"),
    ],
)
def test_a_width_that_does_not_divide_is_refused(width: str, size: int, what: str) -> None:
    model = replace(TWENTY_EIGHT_HEADS, **{width: size})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"tp 4 does not divide {what}; these sizes fit: 1, 2"):
        sharded(model, 4)
    assert 4 not in tp_sizes(model)


def test_a_tp_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="tp must be at least 1, got 0"):
        sharded(TWENTY_EIGHT_HEADS, 0)


@pytest.mark.parametrize("model", [*MODELS, TWENTY_EIGHT_HEADS], ids=lambda model: model.name)
def test_tp_sizes_are_those_that_sharding_accepts(model: Model) -> None:
    for tp in range(1, model.q_heads + 2):
        if tp in tp_sizes(model):
            sharded(model, tp)
        else:
            with pytest.raises(ValueError, match=f"tp {tp} does not divide"):
                sharded(model, tp)
    assert tp_sizes(TWENTY_EIGHT_HEADS) == (1, 2, 4, 28)


def test_rows_decide_between_the_two_matmuls() -> None:
    by_op = matmul_workloads(model_named("llama-3.1-8b"), 1, (1, 64, 65, 4096), "bfloat16", only=("qkv_proj",))
    assert [(w.axes["M"], w.phase) for w in by_op["matmul_decode"]] == [(1, "decode"), (64, "decode")]
    assert [(w.axes["M"], w.phase) for w in by_op["matmul"]] == [(65, "prefill"), (4096, "prefill")]
    first = by_op["matmul_decode"][0]
    assert first.key == "bfloat16/M=1,N=6144,K=4096"
    assert (first.technique, first.source) == ("dense", ("llama-3.1-8b: qkv_proj, tp 1",))


def test_techniques_of_matmuls() -> None:
    by_op = matmul_workloads(model_named("llama-3.1-70b"), 4, (8,), "float16")
    techniques = {w.source[0]: w.technique for w in by_op["matmul_decode"]}
    assert techniques["llama-3.1-70b: o_proj, tp 4"] == "tensor_parallel"
    assert techniques["llama-3.1-70b: lm_head, tp 4"] == "lm_head"


def test_the_head_sees_sequences_and_not_tokens() -> None:
    by_op = matmul_workloads(model_named("llama-3.1-8b"), 1, (1, 512, 513), "bfloat16", only=("lm_head",))
    assert [w.axes["M"] for workloads in by_op.values() for w in workloads] == [512, 1]


def test_mla_expands_its_latent_only_in_prefill() -> None:
    by_op = matmul_workloads(model_named("deepseek-v3"), 1, (8, 2048), "bfloat16", only=("kv_b_proj",))
    assert by_op["matmul_decode"] == []
    assert [w.axes for w in by_op["matmul"]] == [{"M": 2048, "N": 128 * 256, "K": 512}]


def test_attention_axes() -> None:
    model = model_named("llama-3.1-70b")
    (prefill,) = attention_prefill_workloads(model, 8, (2048,), "bfloat16")
    assert prefill.key == "bfloat16/batch=1,q_len=2048,kv_len=2048,q_heads=8,kv_heads=1,head_dim=128,causal=1"
    assert (prefill.phase, prefill.technique) == ("prefill", "dense")
    decode = attention_decode_workloads(model, 16, (1, 4), (1024, 8192), "bfloat16")
    assert decode[1].key == "bfloat16/batch=1,q_len=1,kv_len=8192,q_heads=4,kv_heads=1,head_dim=128"
    assert [(w.axes["batch"], w.axes["kv_len"]) for w in decode] == [(1, 1024), (1, 8192), (4, 1024), (4, 8192)]
    assert {(w.phase, w.technique, w.source) for w in decode} == {
        ("decode", "kv_cache", ("llama-3.1-70b: attention, tp 16",))
    }


def test_only_full_attention_layers_are_listed() -> None:
    for name in ("mistral-7b", "deepseek-v3"):
        assert attention_prefill_workloads(model_named(name), 1, (1024,), "bfloat16") == []
        assert attention_decode_workloads(model_named(name), 1, (1,), (1024,), "bfloat16") == []
    (gemma,) = attention_prefill_workloads(model_named("gemma-3-27b"), 2, (1024,), "bfloat16")
    assert gemma.source == ("gemma-3-27b: global attention, tp 2",)
    assert (gemma.axes["q_heads"], gemma.axes["kv_heads"]) == (16, 8)


def test_a_value_head_of_another_width_is_an_axis() -> None:
    model = replace(TWENTY_EIGHT_HEADS, v_head_dim=64)
    (prefill,) = attention_prefill_workloads(model, 1, (16,), "bfloat16")
    assert (prefill.axes["head_dim"], prefill.axes["v_head_dim"]) == (128, 64)
    assert projections(model, 1)[:2] == [
        ("qkv_proj", 28 * 128 + 4 * (128 + 64), 3584),
        ("o_proj", 3584, 28 * 64),
    ]
