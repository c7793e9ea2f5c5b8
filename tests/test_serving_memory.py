"""What fits: bytes by hand, the cases of others' estimators, and the answer for what does not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.serving.deployment import ENGINES, Deployment
from analysis.serving.memory import (
    block_waste,
    budget,
    kept_tokens,
    kv_bytes,
    kv_bytes_per_token,
    max_concurrency,
    read_bytes,
    weight_bytes,
    what_would_fit,
)
from analysis.serving.serve_report import assumptions
from kernels.models import Model, model_named, sharded

H100 = "H100 SXM5 80GB"
BF16, FP8 = "bfloat16", "float8_e4m3fn"
LLAMA_8B, LLAMA_70B = model_named("llama-3.1-8b"), model_named("llama-3.1-70b")
LLAMA_2_7B = Model(
    name="llama-2-7b", layers=32, hidden=4096, q_heads=32, kv_heads=32, head_dim=128, intermediate=11008,
    vocabulary=32000, parameters=6_738_415_616, source="Hugging Face config meta-llama/Llama-2-7b-hf",
)  # fmt: skip


def on_h100(model: Model, **other: object) -> Deployment:
    return Deployment(model=model, gpu=H100, **other)  # type: ignore[arg-type]


def test_s01_a_model_that_cannot_fit_says_how_many_gpus_its_weights_take() -> None:
    """405,853,388,800 x 2 B = 811.7 GB over 80 GB: 11 GPUs."""
    reason = what_would_fit(on_h100(model_named("llama-3.1-405b")), 1024)
    assert "does not fit: 811.7 GB" in reason and "at least 11 GPUs for weights alone" in reason
    assert max_concurrency(on_h100(model_named("llama-3.1-405b")), np.array([1024.0]))[0] == 0


def test_s03_needed_tp_is_told_and_not_capped() -> None:
    """70B bf16: 141.1 GB; 70.6 GB each at TP 2 leave nothing of 72 GB for KV, 35.3 GB each at TP 4 do."""
    reason = what_would_fit(on_h100(LLAMA_70B), 4096)
    assert "at least 2 GPUs for weights alone" in reason and "smallest TP that fits: 4" in reason
    assert weight_bytes(LLAMA_70B, BF16) / 2 == pytest.approx(70.55e9, rel=1e-3)
    assert what_would_fit(on_h100(LLAMA_70B, tp=4), 4096) == ""


def test_s05_mha_of_7b_with_its_workspace() -> None:
    """2 x 32 x 32 x 128 x 2 B = 524,288 B a token; 8 x 4096 tokens are 17.18 GB beside 13.5 GB of weights."""
    assert kv_bytes_per_token(LLAMA_2_7B) * 8 * 4096 == pytest.approx(17.18e9, rel=1e-3)
    assert weight_bytes(LLAMA_2_7B, BF16) == pytest.approx(13.5e9, rel=2e-3)
    b = budget(on_h100(LLAMA_2_7B))
    assert b.activations > 0 and b.context > 0
    assert b.room == pytest.approx(b.capacity * b.fraction - b.weights - b.activations - b.context)


def test_s07_mla_caches_one_latent_whatever_the_tp() -> None:
    """61 x (512 + 64) x 2 B = 70,272 B; not 4,997,120 of expanded heads, nor 124,928 of two latents."""
    assert [kv_bytes_per_token(model_named("deepseek-v3"), tp) for tp in (1, 8)] == [70_272, 70_272]


def test_s09_gqa_counts_kv_heads_and_no_hidden_size() -> None:
    """2 x 32 x 8 x 128 x 2 B = 131,072 B; 8,192 tokens are 1.074 GB."""
    assert kv_bytes_per_token(LLAMA_8B) == 131_072
    assert kv_bytes_per_token(LLAMA_8B) * 8192 == pytest.approx(1.074e9, rel=1e-3)


def test_s10_gb_are_decimal_and_the_unit_is_printed() -> None:
    """80 layers: 327,680 B; 131,072 tokens are 42.95 GB, 40.0 GiB."""
    total = kv_bytes_per_token(LLAMA_70B) * 131_072
    assert total == 40 * 2**30 and total == pytest.approx(42.95e9, rel=1e-4)
    assert "GB (1e9 bytes)" in assumptions(on_h100(LLAMA_70B, tp=4))[0]


def test_s12_layers_without_a_cache_are_not_charged() -> None:
    """16 of 64 layers, 4 heads of 256 + 256, bf16: 65,536 B; 262,144 tokens are 17.18 GB."""
    assert kv_bytes(16, 4, 512, BF16) * 262_144 == 16 * 2**30


def test_s14_tp_that_does_not_divide_lists_those_that_do() -> None:
    model = replace(LLAMA_8B, name="qwen2-7b", q_heads=28, kv_heads=4)
    with pytest.raises(ValueError, match="tp 8 does not divide 28 query heads; these sizes fit: 1, 2, 4, 7, 14, 28"):
        on_h100(model, tp=8)


def test_s16_the_kv_pool_is_divided_by_tp() -> None:
    """64 layers x 8 heads x 256 x 2 B = 262,144 B in all, 65,536 on each of 4."""
    model = model_named("qwen3-32b")
    assert kv_bytes_per_token(model) == 262_144 and kv_bytes_per_token(model, 4) == 65_536
    assert kv_bytes_per_token(model, 16) == 262_144 // 8  # fewer heads than GPUs: each holds one


def test_s23_fp8_cache_holds_twice_the_tokens_and_the_rules_are_printed() -> None:
    plain, small = (on_h100(LLAMA_8B, kv_dtype=kv) for kv in (BF16, FP8))
    assert budget(small).kv_tokens == pytest.approx(2 * budget(plain).kv_tokens, abs=1)
    told = assumptions(small)[0]
    assert "90% used" in told and "float8_e4m3fn" in told and "65,536 bytes" in told


def test_budget_by_hand() -> None:
    """8B fp8: 8,030,261,248 - 2 x 525,336,576 values of 1 B and the tables' 2 B: 9.081 GB. Activations of 8,192 tokens:
    2 B x (4 x 4096 + 3 x 14336), and 256 x 128,256 logits of 4 B: 1.104 GB. 72 - 9.081 - 1.104 - 2 = 59.815 GB."""
    b = budget(on_h100(LLAMA_8B, dtype=FP8))
    assert b.weights == pytest.approx(9.0809e9, rel=1e-4)
    assert b.activations == pytest.approx(1.1044e9, rel=1e-3)
    assert b.room == pytest.approx(59.815e9, rel=1e-4)
    assert max_concurrency(on_h100(LLAMA_8B, dtype=FP8), np.array([2048.0]))[0] == 59_815 // 268.435_456  # MB each


def test_four_bit_weights_have_scales() -> None:
    """8B: 6.9796e9 values of half a byte x 1.125, and 2.101 GB of tables."""
    assert weight_bytes(LLAMA_8B, "int4") == pytest.approx(6.9796e9 / 2 * 1.125 + 2.1013e9, rel=1e-4)


def test_windowed_layers_keep_their_window() -> None:
    """Gemma-3-27B: 52 of 62 layers keep 1,024 of 32,768 tokens: as 10 / 62 x 32,768 + 52 / 62 x 1,024 whole ones."""
    assert kept_tokens(model_named("gemma-3-27b"), np.array([32768.0]))[0] == pytest.approx((327_680 + 53_248) / 62)
    assert kept_tokens(LLAMA_8B, np.array([777.0]))[0] == 777


def test_pipeline_stages_hold_their_layers() -> None:
    one, two = budget(on_h100(LLAMA_8B)), budget(on_h100(LLAMA_8B, pp=2))
    assert two.kv_bytes_per_token == one.kv_bytes_per_token / 2 and two.weights == one.weights / 2


def test_decode_reads_no_embedding_and_no_idle_expert() -> None:
    """8B: 7.505e9 x 2 B. Qwen3-30B-A3B with all experts hit reads all but its embedding of 0.311e9."""
    assert read_bytes(LLAMA_8B, BF16) == pytest.approx(15.01e9, rel=1e-3)
    qwen = model_named("qwen3-30b-a3b")
    assert read_bytes(qwen, BF16, 128.0) == pytest.approx(2 * (30.532e9 - 0.311e9), rel=1e-3)
    assert read_bytes(qwen, BF16, 8.0) == pytest.approx(2 * (3.353e9 - 0.311e9), rel=1e-3)


def test_block_waste_is_what_the_last_block_lacks() -> None:
    assert [block_waste(n, 16) for n in (1, 16, 17)] == [15, 0, 15]


def test_smaller_dtype_that_fits_is_named() -> None:
    assert "at TP 1 int4 weights fit" in what_would_fit(on_h100(LLAMA_70B), 1024)
    assert ENGINES["vllm"].reserves_output is False
    assert sharded(LLAMA_70B, 8).kv_heads == 1
