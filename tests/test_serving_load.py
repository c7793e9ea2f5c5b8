"""Closed loop, metrics, cost and audit: formulas worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from analysis.serving import metrics
from analysis.serving.audit import audited, least_bytes
from analysis.serving.cost import usd_per_mtok
from analysis.serving.deployment import ENGINES, Deployment, Host
from analysis.serving.kernel_source import KernelSource
from analysis.serving.load import LIGHT, Requests, answered, closed_loop
from kernels.models import model_named

H100 = "H100 SXM5 80GB"


def steps(**other: float | bool) -> pd.DataFrame:
    row = {
        "concurrency": 8.0, "active": 8.0, "isl": 1024.0, "osl": 101.0, "group": 2.0, "mixed_share": 0.25,
        "all_reduces": 0, "layers": 32, "prefill_first": False, "decode_ms": 10.0, "mixed_ms": 30.0,
        "prefill_ms": 40.0, "decode_ms_light": 4.0, "mixed_ms_light": 8.0, "prefill_ms_light": 5.0,
        "accepted": 1.0, "draft_ms": 0.0, "draft_ms_light": 0.0, "chunks": 1.0, "late_steps": 0.0, "reload_ms": 0.0,
    }  # fmt: skip
    return pd.DataFrame([{**row, **other}])


def test_mixed_steps_weigh_by_their_share() -> None:
    """0.75 x 10 + 0.25 x 30 = 15 ms; the first token comes with a mixed step, half a decode step late: 35 ms."""
    a = answered(steps(), Host()).iloc[0]
    assert (a["tpot_ms"], a["ttft_ms"], a["interference_ms"], a["host_ms"]) == (15, 35, 5, 0)
    assert answered(steps(), Host(step_us=9), LIGHT).iloc[0]["tpot_ms"] == 0.75 * 4 + 0.25 * 8


def test_prompts_before_decode_run_as_a_wave() -> None:
    """8 prompts in groups of 2: a TTFT holds (8 + 2) / 2 = 5 of 40 ms, the other 3 spread over 100 tokens: 1.2 ms."""
    a = answered(steps(prefill_first=True), Host()).iloc[0]
    assert a["ttft_ms"] == 200 and a["tpot_ms"] == pytest.approx(10 + 3 * 40 / 100)
    # However it is scheduled, a wave does the work of 8 prompts and 100 steps.
    assert a["ttft_ms"] + 100 * a["tpot_ms"] == pytest.approx(8 * 40 + 100 * 10)


def test_host_adds_to_every_step_and_bounds_those_with_a_prompt() -> None:
    """1 ms + 64 x 5 us + 8 x 10 us = 1.4 ms a step; 32 layers of 1.5 ms are 48 ms, more than the 30 of the kernels."""
    host = Host(step_us=1000, all_reduce_us=5, sequence_us=10, eager_layer_us=1500)
    a = answered(steps(all_reduces=64), host).iloc[0]
    assert a["host_ms"] == pytest.approx(1.4)
    assert a["tpot_ms"] == pytest.approx(0.75 * 11.4 + 0.25 * (48 + 1.4))
    alone = answered(steps(active=1.0, concurrency=1.0), host).iloc[0]
    assert alone["ttft_ms"] == 48  # its own prompt takes 40 ms of kernels


def test_a_draft_adds_to_a_step_and_its_tokens_divide_it() -> None:
    """(0.75 x (10 + 2) + 0.25 x (30 + 2)) / 2.5 = 6.8 ms; decode alone 4.8."""
    a = answered(steps(accepted=2.5, draft_ms=2.0), Host()).iloc[0]
    assert a["tpot_ms"] == pytest.approx(6.8) and a["decode_ms"] == pytest.approx(4.8)


def test_clients_beyond_memory_wait_for_a_slot() -> None:
    """16 clients on 8 slots: each waits as long as a request takes, 35 + 100 x 15 ms."""
    a = answered(steps(concurrency=16.0), Host()).iloc[0]
    assert a["waiting_ms"] == 35 + 100 * 15 and a["ttft_ms"] == 35 + 1535


def test_restarts_become_prompts_of_mixed_steps() -> None:
    """64 clients of 128 tokens: 63 / 128 prompts a step, one in 49 % of steps; of 16: 63 / 16, four in 98 %."""
    deployment = Deployment(model=model_named("llama-3.1-8b"), gpu=H100)
    asked = Requests(concurrency=np.array([64.0, 64.0, 1.0]), isl=np.full(3, 512.0), osl=np.array([128.0, 16.0, 8.0]))
    found = closed_loop(deployment, KernelSource(H100, "trtllm"), asked)
    assert found["prompts"].tolist() == [1, 4, 1]
    assert found["mixed_share"].tolist() == pytest.approx([63 / 128, 63 / 64, 0])
    assert (found["mixed_ms"] > found["decode_ms"]).all()


def test_memory_bounds_what_runs_and_preemption_counts_the_mean_length() -> None:
    """8B bf16: 72 - 16.06 - 1.1 - 2 = 52.83 GB of 131,072 B = 403,070 tokens: 49 of 8,192, 78 at the mean of 5,120."""
    asked = Requests(concurrency=np.array([128.0]), isl=np.array([2048.0]), osl=np.array([6144.0]))
    for engine, active in (("trtllm", 49), ("vllm", 78)):
        deployment = Deployment(model=model_named("llama-3.1-8b"), gpu=H100, engine=ENGINES[engine])
        assert closed_loop(deployment, KernelSource(H100, engine), asked)["active"].tolist() == [active]


@pytest.mark.parametrize("osl", [0.0, 1.0])
def test_one_output_token_has_no_tpot(osl: float) -> None:
    deployment = Deployment(model=model_named("llama-3.1-8b"), gpu=H100)
    asked = Requests(concurrency=np.array([4.0]), isl=np.array([512.0]), osl=np.array([osl]))
    a = answered(closed_loop(deployment, KernelSource(H100, "trtllm"), asked), Host()).iloc[0]
    assert math.isnan(a["tpot_ms"]) and a["ttft_ms"] > 0


def test_s18_tpot_leaves_out_the_first_token() -> None:
    """TTFT 2 s, end 6 s, 5 tokens: (6 - 2) / (5 - 1) = 1.0 s; 1.2 would hold TTFT, 0.8 would divide by 5."""
    assert metrics.tpot_ms(6000, 2000, 5) == 1000


def test_s19_tpot_divides_by_tokens_that_were_produced() -> None:
    """Asked for 100, 21 came: (10.5 - 0.5) / 20 = 0.5 s."""
    assert metrics.tpot_ms(10_500, 500, 21) == 500


def test_undefined_metrics_are_nan() -> None:
    assert np.isnan(metrics.tpot_ms(100, 100, [0, 1])).all()
    assert metrics.e2e_ms(50, np.nan, 1) == 50 and np.isnan(metrics.e2e_ms(50, 10, 0))


def test_rates_by_hand() -> None:
    """64 clients, 512 tokens in 10 s: 3,276.8 tok/s, 6.4 requests/s; 4 GPUs of $2.5 make $0.848 a million tokens."""
    assert metrics.e2e_ms(100, 10, 101) == 1100
    assert metrics.tokens_per_s_user(20) == 50
    assert metrics.tokens_per_s_system(64, 512, 10_000) == pytest.approx(3276.8)
    assert metrics.requests_per_s(64, 10_000) == pytest.approx(6.4)
    assert (
        usd_per_mtok(3276.8, 4, 2.5) == pytest.approx(4 * 2.5 / 3600 / 3276.8 * 1e6) == pytest.approx(0.8477, rel=1e-3)
    )


def test_goodput_counts_what_meets_both_limits() -> None:
    good = metrics.goodput([1.0, 2.0, 3.0], [100, 100, 300], [20, 40, 20], (200, 33))
    assert good.tolist() == [1.0, 0.0, 0.0]


def test_mfu_and_mbu_by_hand() -> None:
    """2 x 8e9 x 10,000 tok/s = 160 TFLOP/s of 2 x 1,000: 8 %. 15 GB in 10 ms = 1.5 TB/s of 3: 50 %."""
    assert metrics.mfu(10_000, 8e9, 2, 1000) == pytest.approx(0.08)
    assert metrics.mbu(15e9, 10, 1, 3000) == pytest.approx(0.5)


def test_audit_names_the_bound_and_what_would_have_to_be_true() -> None:
    """70.554e9 - 1.051e9 = 69.503e9 B over 3.35 TB/s: 48.2 tok/s; 125 need 2.6, so 3 tokens a step."""
    found = audited(Deployment(model=model_named("llama-3.1-70b"), gpu=H100, dtype="float8_e4m3fn"), 125)
    assert not found.possible and found.bound == "memory bandwidth" and found.needed_per_step == 3
    assert found.most_per_stream == pytest.approx(48.2, abs=0.05)
    assert "at most 48.2 tok/s per stream" in found.sentences[0]
    assert "unless 3 tokens or more are accepted per step" in found.sentences[0]


@pytest.mark.parametrize(("claimed", "possible"), [(24.0, True), (24.2, False), (85.0, False), (110.0, False)])
def test_audit_of_70b_bf16_on_one_h100(claimed: float, possible: bool) -> None:
    """139.0 GB over 3.35 TB/s: 24.1 tok/s. Claims of 85 to 110 have been published."""
    found = audited(Deployment(model=model_named("llama-3.1-70b"), gpu=H100), claimed)
    assert found.possible is possible
    assert any("does not fit" in sentence for sentence in found.sentences)


def test_audit_counts_streams_context_and_compute() -> None:
    """8B bf16, 64 streams of 8,192 tokens: 15.01 + 64 x 1.074 = 83.7 GB, 40.0 tok/s. 1,024 streams: 2 x 7.505e9
    x 1,024 FLOPs over 989.4e12 are 15.5 ms, 64.4 tok/s."""
    deployment = Deployment(model=model_named("llama-3.1-8b"), gpu=H100)
    assert audited(deployment, 39, streams=64, context=8192).most_per_stream == pytest.approx(40.0, rel=2e-3)
    many = audited(deployment, 100, streams=1024)
    assert many.bound == "compute" and many.most_per_stream == pytest.approx(64.4, rel=2e-3)
    assert any("drafts or not" in sentence for sentence in many.sentences)
    with pytest.raises(ValueError, match="wanted tokens/s above 0"):
        audited(deployment, 0)


def test_audit_of_experts_reads_those_that_are_visited() -> None:
    """DeepSeek-V3, one stream: the 37.55e9 active weights less the embedding of 0.927e9."""
    assert least_bytes(model_named("deepseek-v3"), "float8_e4m3fn") == pytest.approx(36.63e9, rel=1e-3)
