"""Kernel times of the serving predictor: interpolation, the order of sources, and a step against its speed of light."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.frame import load
from analysis.serving.attainable import expected, speed_of_light
from analysis.serving.deployment import ENGINES, Deployment
from analysis.serving.grids import ASSUMED, EXTRAPOLATED, INTERPOLATED, MEASURED, gridded
from analysis.serving.kernel_source import KernelSource, LightSpeed
from analysis.serving.kernel_tables import COLUMNS, FILE, build
from analysis.serving.recorded import Recorded
from analysis.serving.step import Batch, distinct_experts, step_ops, total_us
from kernels.models import model_named

H100 = "H100 SXM5 80GB"
BF16, FP8 = "bfloat16", "float8_e4m3fn"
POINTS = Path(__file__).parents[1] / "reports" / "reference-h100"


def one(value: float) -> np.ndarray:
    return np.array([float(value)])


def batch(decodes: float, context: float, prompts: float = 0, new: float = 1) -> Batch:
    return Batch(decodes=one(decodes), context=one(context), prompts=one(prompts), new=one(new))


def test_grid_interpolates_fractions_over_logarithms() -> None:
    grid = gridded(([1, 4, 16],), [0.2, 0.4, 0.8])
    fraction, how = grid.at(np.array([4.0, 8.0, 0.5, 64.0]))
    assert fraction == pytest.approx([0.4, 0.6, 0.2, 0.8])
    assert how.tolist() == [MEASURED, INTERPOLATED, EXTRAPOLATED, EXTRAPOLATED]


def test_grid_marks_a_crossing_that_nobody_measured() -> None:
    grid = gridded(([1, 1, 4], [8, 32, 8]), [0.2, 0.5, 0.3])
    fraction, how = grid.at(np.array([4.0, 1.0]), np.array([32.0, 16.0]))
    assert how.tolist() == [EXTRAPOLATED, INTERPOLATED]
    assert fraction == pytest.approx([0.5, 0.35])


@pytest.mark.parametrize(
    ("m", "n", "how", "time_us"),
    [(1, 6144, MEASURED, 22.1), (8, 6144, MEASURED, 22.02), (64, 6144, MEASURED, 21.78), (100, 6144, INTERPOLATED, 0),
     (64, 128256, EXTRAPOLATED, 0)],
)  # fmt: skip
def test_published_gemm_is_told_as_it_was_measured(m: int, n: int, how: int, time_us: float) -> None:
    """TensorRT-LLM's bfloat16 qkv of Llama-3.1-8B: 22.1, 22.02 and 21.78 us at 1, 8 and 64 tokens."""
    cells = KernelSource(H100, "trtllm").gemm(one(m), n, 4096, BF16)
    assert cells.how.tolist() == [how]
    if time_us:
        assert cells.time_us == pytest.approx([time_us], rel=1e-3)


def test_published_attention_agrees_with_the_committed_report() -> None:
    points = pd.read_csv(POINTS / "points.csv")
    rows = points[(points["op"] == "attention_decode") & (points["provider"] == "trtllm") & (points["q_heads"] == 32)]
    rows = rows[(rows["kv_heads"] == 8) & rows["kv_dtype"].isna() & (rows["kv_len"] <= 8192)]
    assert len(rows) > 10
    cells = KernelSource(H100, "trtllm").attention(
        "attention_decode", rows["batch"].to_numpy(float), rows["kv_len"].to_numpy(float), heads=(32, 8),
        head_dim=128, dtype=BF16,
    )  # fmt: skip
    assert set(cells.how) == {MEASURED}
    assert cells.time_us == pytest.approx(rows["time_us"].to_numpy(), rel=1e-3)


def test_heads_that_nobody_measured_are_extrapolated() -> None:
    source = KernelSource(H100, "trtllm")
    asked = {"head_dim": 128, "dtype": BF16}
    odd = source.attention("attention_decode", one(8), one(1024), heads=(28, 4), **asked)  # type: ignore[arg-type]
    assert odd.how.tolist() == [EXTRAPOLATED]


def test_own_records_come_first_and_only_where_they_reach() -> None:
    """Records of TensorRT-LLM stand for ours: at their own sizes they are told, beyond them vLLM's rows are."""
    loaded = load([POINTS])
    records = Recorded(loaded.frame, expected(H100), provider="trtllm")
    both, published = KernelSource(H100, "vllm", records=records), KernelSource(H100, "vllm")
    here, there = one(64), one(30_000)
    ours = both.gemm(here, 6144, 4096, BF16)
    assert ours.time_us == pytest.approx([21.78], rel=1e-3) and ours.how.tolist() == [MEASURED]
    assert ours.time_us != pytest.approx(published.gemm(here, 6144, 4096, BF16).time_us, rel=0.01)
    assert both.gemm(there, 6144, 4096, BF16).time_us == published.gemm(there, 6144, 4096, BF16).time_us


def test_records_without_a_kernel_are_refused() -> None:
    frame = load([POINTS]).frame
    with pytest.raises(ValueError, match="no usable record"):
        Recorded(frame.assign(status="FAILED"), expected(H100))


def test_roofline_source_is_attainable_and_assumed() -> None:
    """64 x 6144 x 4096 in bfloat16: 51.64 MB over 2.75 TB/s is 18.78 us, and 3.0 us of launch."""
    cells = KernelSource(H100, "trtllm", kind="roofline").gemm(one(64), 6144, 4096, BF16)
    assert cells.time_us == pytest.approx([3.0 + 51.642_368 / 2.75], rel=1e-6)
    assert cells.how.tolist() == [ASSUMED]
    with pytest.raises(ValueError, match="unknown kernel source"):
        KernelSource(H100, "trtllm", kind="guess")
    with pytest.raises(ValueError, match="unknown GPU"):
        speed_of_light("H1000")


def test_speed_of_light_of_a_decode_step_is_its_weights() -> None:
    """Llama-3.1-8B reads 8.030 - 0.525 = 7.505e9 weights a step: 15.01 GB over 3.35 TB/s is 4.48 ms."""
    deployment = Deployment(model=model_named("llama-3.1-8b"), gpu=H100)
    ops = step_ops(deployment, LightSpeed(H100), batch(1, 1))
    assert total_us(ops)[0] / 1e3 == pytest.approx(4.48, rel=2e-3)


def test_s22_per_gpu_work_is_divided_by_tp() -> None:
    """140 GB of weights at TP 8 over 3.35 TB/s: 5.22 ms (41.8 ms on one). The embedding, 2.1 GB, is not read."""
    whole, eighth = (
        total_us(
            step_ops(Deployment(model=model_named("llama-3.1-70b"), gpu=H100, tp=tp), LightSpeed(H100), batch(1, 1))
        )
        for tp in (1, 8)
    )
    assert whole[0] / 1e3 == pytest.approx(41.8 * 139.0 / 140, rel=5e-3)
    assert eighth[0] / 1e3 == pytest.approx(5.22 * 139.0 / 140, rel=5e-3)


def test_prefill_of_the_speed_of_light_is_its_flops() -> None:
    """8B, 8192 tokens: 2 x 6.98e9 x 8192 FLOPs of the layers, 4 x 32 x 4096 x 8192 x 8193 / 2 of causal attention and
    one row of logits, over 989.4 TFLOP/s: 115.6 + 17.8 ms, and 0.3 for the head's weights."""
    deployment = Deployment(model=model_named("llama-3.1-8b"), gpu=H100)
    time_ms = total_us(step_ops(deployment, LightSpeed(H100), batch(0, 1, prompts=1, new=8192)))[0] / 1e3
    assert time_ms == pytest.approx(115.6 + 17.8 + 0.31, rel=5e-3)


def test_expected_distinct_experts() -> None:
    """One token visits its 8; two visit 8 + 8 x 120 / 128 = 15.5; very many visit all 128."""
    model = model_named("qwen3-30b-a3b")
    assert distinct_experts(model, np.array([1.0, 2.0, 1e5])) == pytest.approx([8.0, 15.5, 128.0])


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-30b-a3b", "gemma-3-27b", "gpt-oss-120b", "mistral-7b"])
def test_step_of_every_kind_of_attention_and_mlp_is_slower_than_light(name: str) -> None:
    deployment = Deployment(model=model_named(name), gpu=H100, tp=8, engine=ENGINES["sglang"])
    for load_ in (batch(16, 4000), batch(8, 2000, prompts=1, new=2048)):
        ours = step_ops(deployment, KernelSource(H100, "sglang"), load_)
        light = step_ops(deployment, LightSpeed(H100), load_)
        assert ours.keys() == light.keys()
        for op in ours:
            assert (ours[op].time_us >= light[op].time_us * 0.95).all(), op


def test_window_bounds_what_decode_reads() -> None:
    """Mistral-7B keeps 4,096 keys: a longer context takes no longer."""
    deployment = Deployment(model=model_named("mistral-7b"), gpu=H100)
    short, long = (total_us(step_ops(deployment, LightSpeed(H100), batch(64, c))) for c in (4096, 32768))
    assert short == long


def test_pipeline_sends_between_stages() -> None:
    deployment = Deployment(model=model_named("llama-3.1-70b"), gpu=H100, tp=4, pp=2)
    assert step_ops(deployment, KernelSource(H100, "trtllm"), batch(8, 1024))["send_recv"].time_us[0] > 0
    with pytest.raises(ValueError, match="pp 81"):
        Deployment(model=model_named("llama-3.1-70b"), gpu=H100, pp=81)


def test_static_quantisation_is_fused_where_the_engine_does() -> None:
    fused = Deployment(model=model_named("llama-3.1-8b"), gpu=H100, dtype=FP8)
    apart = Deployment(model=model_named("qwen3-8b"), gpu=H100, dtype=FP8)
    source = KernelSource(H100, "trtllm")
    assert "quantisation" not in step_ops(fused, source, batch(8, 1024))
    assert step_ops(apart, source, batch(8, 1024))["quantisation"].time_us[0] > 36 * 4


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is None, reason="needs the extra `reference`")
def test_shipped_table_is_what_the_package_gives() -> None:
    shipped, built = pd.read_parquet(FILE), build()
    texts = list(COLUMNS[:4])
    pd.testing.assert_frame_equal(
        shipped.astype(dict.fromkeys(texts, "str")), built.astype(dict.fromkeys(texts, "str"))
    )
