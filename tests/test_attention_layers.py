"""The attention layers of models with windows, sinks and caps on logits, against their configs and work by hand."""

from __future__ import annotations

import pytest

from kernels import attention_decode, attention_prefill
from kernels.attention_layers import full_attention, variant_layers, windowed_workloads
from kernels.models import model_named

HEADS_27B = {"q_heads": 32, "kv_heads": 16, "head_dim": 128}


def test_gemma_3_has_windows_beside_plain_global_layers() -> None:
    gemma = model_named("gemma-3-27b")
    assert variant_layers(gemma, 1) == [(HEADS_27B, {"window": 1024}, ("gemma-3-27b: windowed attention, tp 1",))]
    assert [heads for heads, _ in full_attention(gemma, 1)] == [HEADS_27B]


def test_gemma_2_caps_logits_in_both_kinds_of_layer() -> None:
    kinds = variant_layers(model_named("gemma-2-27b"), 1)
    assert [variant for _, variant, _ in kinds] == [{"window": 4096, "softcap": 50}, {"softcap": 50}]
    assert [heads for heads, _, _ in kinds] == [HEADS_27B] * 2


def test_gpt_oss_has_sinks_in_both_kinds_of_layer_and_shards_them() -> None:
    kinds = variant_layers(model_named("gpt-oss-120b"), 4)
    assert [variant for _, variant, _ in kinds] == [{"window": 128, "sinks": 1}, {"sinks": 1}]
    assert [heads for heads, _, _ in kinds] == [{"q_heads": 16, "kv_heads": 2, "head_dim": 64}] * 2


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3"])
def test_other_models_have_no_such_layers(name: str) -> None:
    assert not any(windowed_workloads(model_named(name), 1, (8,), (1,), (8,), "bfloat16").values())


def test_a_model_of_windows_alone_has_no_global_layers() -> None:
    assert [variant for _, variant, _ in variant_layers(model_named("mistral-7b"), 1)] == [{"window": 4096}]


def test_a_windowed_prompt_counts_its_window() -> None:
    """The first 1,024 queries see 1 .. 1,024 keys, the other 7,168 see 1,024 each; every key is read once."""
    [prompt] = windowed_workloads(model_named("gemma-3-27b"), 1, (8192,), (), (), "bfloat16")["attention_prefill"]
    work = attention_prefill.OP.work(prompt)
    pairs = 1024 * 1025 // 2 + 7168 * 1024
    assert work.flops == 2 * 32 * pairs * 256
    assert work.bytes == 2 * 8192 * (2 * 32 * 128 + 2 * 16 * 128)
    assert (prompt.technique, prompt.phase) == ("window", "prefill")


def test_a_windowed_decode_costs_the_same_at_any_length() -> None:
    """Q and O of 32 heads, K and V of 16 over 1,024 keys."""
    made = windowed_workloads(model_named("gemma-3-27b"), 1, (), (1,), (8192, 32768), "bfloat16")["attention_decode"]
    assert [workload.axes["kv_len"] for workload in made] == [8192, 32768]
    assert {attention_decode.OP.work(w).bytes for w in made} == {2 * (2 * 32 * 128 + 1024 * 2 * 16 * 128)}
    assert {workload.technique for workload in made} == {"window"}


def test_a_layer_without_a_window_is_labelled_as_plain_attention_is() -> None:
    made = windowed_workloads(model_named("gpt-oss-120b"), 1, (64,), (1,), (64,), "bfloat16")
    assert [w.technique for w in made["attention_prefill"]] == ["window", "dense"]
    assert [w.technique for w in made["attention_decode"]] == ["window", "kv_cache"]
    assert all(w.axes["sinks"] == 1 for workloads in made.values() for w in workloads)
