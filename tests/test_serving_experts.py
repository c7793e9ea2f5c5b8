"""Routed experts of the serving predictor: measured layers, what is left out of them, and expert parallelism."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.reference_tables import SYSTEMS
from analysis.serving.attainable import Experts, expected, speed_of_light
from analysis.serving.deployment import ENGINES, Deployment
from analysis.serving.grids import ASSUMED, EXTRAPOLATED, INTERPOLATED, MEASURED
from analysis.serving.kernel_source import KernelSource, LightSpeed
from analysis.serving.kernel_tables import FILE, LAYER, SIZES
from analysis.serving.memory import what_would_fit
from analysis.serving.step import Batch, step_ops
from kernels.models import model_named

H100, H200 = "H100 SXM5 80GB", "H200 SXM 141GB"
BF16, BLOCK = "bfloat16", "float8_e4m3fn.block128"
QWEN = Experts(hidden=2048, columns=768, experts=128, active=8)
DEEPSEEK = Experts(hidden=7168, columns=256, experts=256, active=8)


def one(value: float) -> np.ndarray:
    return np.array([float(value)])


def batch(decodes: float) -> Batch:
    return Batch(decodes=one(decodes), context=one(1024), prompts=one(0), new=one(1))


@pytest.mark.parametrize(("tokens", "how", "time_us"), [(1, MEASURED, 49), (64, MEASURED, 432), (50, INTERPOLATED, 0)])
def test_published_experts_are_told_as_they_were_measured(tokens: int, how: int, time_us: float) -> None:
    """vLLM's experts of Qwen3-30B-A3B on one H100: 0.049 and 0.432 ms for 1 and 64 tokens, spread evenly."""
    cells = KernelSource(H100, "vllm").experts(one(tokens), QWEN, QWEN.spread(one(tokens)), BF16)
    assert cells.how.tolist() == [how]
    if time_us:
        assert cells.time_us == pytest.approx([time_us], rel=1e-2)


def test_fewer_experts_than_evenly_spread_take_less() -> None:
    """16 tokens reach all 128 experts if spread evenly (0.420 ms): where only 64 get one, half of the weights move."""
    source = KernelSource(H100, "vllm")
    even, half = (source.experts(one(16), QWEN, one(hit), BF16).time_us[0] for hit in (128, 64))
    assert even == pytest.approx(420, rel=5e-3)
    assert half == pytest.approx(210, rel=0.02)


def test_bound_of_experts_is_their_weights_and_rows() -> None:
    """128 experts x 3 x 2048 x 768 x 2 bytes are 1,207,959,552; 512 rows of 2048 in and 1536 out, then 768 in and 2048
    out, are 6,553,600 more: over 3.35 TB/s 362.5 us."""
    cells = LightSpeed(H100).experts(one(64), QWEN, one(128), BF16)
    assert cells.time_us == pytest.approx([(1_207_959_552 + 6_553_600) / 3.35e6], rel=1e-9)


def test_spread_over_gpus_is_a_gpus_share() -> None:
    """4 tokens x 8 reach 32 of 128 experts, 4 of a GPU's 16; one token one of a GPU's; 100 tokens all 16."""
    assert replace(QWEN, ep=8).spread(np.array([1.0, 4.0, 100.0])).tolist() == [1.0, 4.0, 16.0]


def test_no_shipped_experts_beat_the_datasheet() -> None:
    rows = pd.read_parquet(FILE)
    rows = rows[rows["table"] == "experts"].astype({"device": "str", "dtype": "str"})
    assert len(rows) > 50_000
    for (device, dtype, *sizes), part in rows.groupby(["device", "dtype", *LAYER]):
        layer = Experts(**dict(zip(SIZES, (int(str(size)) for size in sizes), strict=True)))
        tokens, light = part["x"].to_numpy(float), speed_of_light(SYSTEMS[str(device)].part)
        bound = light.experts(tokens, layer, layer.spread(tokens), str(dtype))
        assert (part["latency_us"].to_numpy() > bound * 0.999).all(), (device, dtype, sizes)


def test_experts_that_were_timed_too_fast_take_another_frameworks() -> None:
    """SGLang's of DeepSeek-V3 beat the datasheet; TensorRT-LLM's take 0.5069 ms for 64 tokens at TP 8 on H200."""
    source = KernelSource(H200, "sglang")
    cells = source.experts(one(64), DEEPSEEK, DEEPSEEK.spread(one(64)), BLOCK)
    assert cells.time_us == pytest.approx([506.9], rel=1e-3) and cells.how.tolist() == [MEASURED]


def test_experts_that_nobody_measured_are_told_as_such() -> None:
    source = KernelSource(H100, "vllm")
    odd = replace(QWEN, columns=700)
    near, known = (source.experts(one(64), e, one(128), BF16) for e in (odd, QWEN))
    assert near.how.tolist() == [EXTRAPOLATED]
    ratio = [expected(H100).experts(one(64), e, one(128), BF16)[0] for e in (odd, QWEN)]
    assert near.time_us[0] / known.time_us[0] == pytest.approx(ratio[0] / ratio[1])
    for assumed in (KernelSource("A100 80GB SXM4", "vllm"), KernelSource(H100, "vllm", kind="roofline")):
        assert assumed.experts(one(64), QWEN, one(128), BF16).how.tolist() == [ASSUMED]


@pytest.mark.parametrize(
    ("model", "dtype", "engine", "gpu"),
    [
        ("qwen3-30b-a3b", BF16, "vllm", H100),
        ("deepseek-v3", BLOCK, "sglang", H200),
        ("mixtral-8x7b", BF16, "trtllm", H100),
    ],
)
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_steps_of_models_with_experts_are_measured_or_interpolated(
    model: str, dtype: str, engine: str, gpu: str, tp: int
) -> None:
    deployment = Deployment(model=model_named(model), gpu=gpu, tp=tp, dtype=dtype, engine=ENGINES[engine])
    experts = step_ops(deployment, KernelSource(gpu, engine), batch(37))["experts"]
    assert experts.how.tolist() == [INTERPOLATED] and experts.time_us[0] > 0


def test_expert_parallelism_moves_the_same_weights() -> None:
    """Many tokens hit every expert: 8 GPUs read an eighth of the weights, by columns or by experts."""
    columns = Deployment(model=model_named("deepseek-v3"), gpu=H200, tp=8, dtype=BLOCK)
    both = [step_ops(replace(columns, ep=ep), LightSpeed(H200), batch(256))["experts"].time_us[0] for ep in (1, 2, 8)]
    weights = 58 * 256 * 3 * 7168 * 2048 / 8 / 4.8e6
    assert both[0] > weights and both == pytest.approx([weights] * 3, rel=0.05)
    assert both[2] < both[1] < both[0]  # a GPU's rows are fewer where it holds whole experts


@pytest.mark.parametrize(
    ("model", "tp", "ep", "part"),
    [
        ("deepseek-v3", 8, 3, "ep 3 does not divide tp 8"),
        ("llama-3.1-8b", 4, 2, "ep 2"),
        ("mixtral-8x7b", 8, 0, "ep 0"),
    ],
)
def test_ep_that_does_not_divide_is_refused(model: str, tp: int, ep: int, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Deployment(model=model_named(model), gpu=H100, tp=tp, ep=ep)


def test_what_does_not_fit_with_ep_names_a_tp_that_does() -> None:
    """DeepSeek-V3's 671 GB of fp8 on 8 x 80 GB: 16 GPUs hold them, however the experts are spread."""
    deployment = Deployment(model=model_named("deepseek-v3"), gpu=H100, tp=8, ep=8, dtype=BLOCK)
    assert "smallest TP that fits: 16" in what_would_fit(deployment, 1024.0)


def test_experts_hold_their_own_activation() -> None:
    """Qwen3-30B-A3B in vLLM: two norms, RoPE and a norm each of Q and K are 5 launches of 2 us in 48 layers, and one
    token moves 2 x 6 x 2048 + 3 x 4 x (32 + 4) x 128 bytes in each, over 0.8 x 3.35 TB/s."""
    deployment = Deployment(model=model_named("qwen3-30b-a3b"), gpu=H100, engine=ENGINES["vllm"])
    glue = step_ops(deployment, KernelSource(H100, "vllm"), batch(1))["glue"].time_us[0]
    assert glue == pytest.approx(48 * (10 + (24_576 + 55_296) / (0.8 * 3.35e6)))
