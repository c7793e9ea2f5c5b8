"""Techniques: golden values by hand, crossovers, and the open-loop simulation against queueing theory."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.serving.crossovers import scaling
from analysis.serving.deployment import ENGINES, Deployment, Host
from analysis.serving.kernel_source import KernelSource, LightSpeed
from analysis.serving.load import Requests, answered, closed_loop
from analysis.serving.simulate import Engine, engine_of, poisson, quantiles, simulated
from analysis.serving.speculation import Speculation
from analysis.serving.techniques import (
    context_of_equal_reading,
    critical_batch,
    crossover,
    flat_batch,
    paged_waste,
    prefix_work,
    reload_or_recompute,
    reserved_waste,
    speculation_break_even,
    static_efficiency,
)
from kernels.models import model_named

H100 = "H100 SXM5 80GB"
LLAMA = Deployment(model=model_named("llama-3.1-8b"), gpu=H100)


def test_tokens_a_draft_yields() -> None:
    """(1 - 0.8^5) / 0.2 = 0.67232 / 0.2 = 3.3616; all right: 5; none right: 1."""
    assert Speculation(tokens=4, acceptance=0.8).accepted == pytest.approx(3.3616)
    assert Speculation(tokens=4, acceptance=1.0).accepted == 5
    assert Speculation(tokens=4, acceptance=0.0).accepted == 1


def test_break_even_batch() -> None:
    """295 x (3.3616 - 4 x 0.05) / 5 = 186.5."""
    assert Speculation(tokens=4, acceptance=0.8, draft_cost=0.05).break_even_batch(295) == pytest.approx(186.5, abs=0.1)


@pytest.mark.parametrize(("tokens", "acceptance", "cost"), [(0, 0.5, 0), (4, 1.1, 0), (4, -0.1, 0), (4, 0.5, -1)])
def test_draft_that_cannot_be_is_refused(tokens: int, acceptance: float, cost: float) -> None:
    with pytest.raises(ValueError, match="wanted 1 token or more"):
        Speculation(tokens=tokens, acceptance=acceptance, draft_cost=cost)


def test_critical_batch_is_the_ridge_over_two_flops_a_weight() -> None:
    """H100's datasheet: 989.4 / 3.35 = 295.3 FLOP/B in bf16, and 590.7 / 2 in fp8: the same tokens."""
    fp8 = Deployment(model=LLAMA.model, gpu=H100, dtype="float8_e4m3fn")
    assert critical_batch(LLAMA, LightSpeed(H100)) == pytest.approx(295.3, abs=0.1)
    assert critical_batch(fp8, LightSpeed(H100)) == pytest.approx(295.3, abs=0.1)


def speculative(source: KernelSource, clients: float) -> tuple[float, float]:
    """TPOT of one load without and with a draft."""
    asked = Requests(concurrency=np.array([clients]), isl=np.array([128.0]), osl=np.array([8192.0]))
    draft = Deployment(model=LLAMA.model, gpu=H100, speculation=Speculation(tokens=4, acceptance=0.8, draft_cost=0.05))
    plain, fast = (answered(closed_loop(d, source, asked), Host()).iloc[0]["tpot_ms"] for d in (LLAMA, draft))
    return float(plain), float(fast)


def test_draft_speeds_up_a_lone_stream_by_its_tokens_over_its_costs() -> None:
    """Verifying 5 tokens reads the same weights: 3.3616 / (1 + 0.2) = 2.80 times as fast at the speed of light."""
    plain, fast = speculative(LightSpeed(H100), 1)
    assert plain / fast == pytest.approx(3.3616 / 1.2, rel=0.02)


def test_draft_stops_paying_at_the_break_even_batch_of_the_curve() -> None:
    """At the speed of light and without KV near 187 of the formula; measured kernels leave the plateau softly."""
    draft = Deployment(model=LLAMA.model, gpu=H100, speculation=Speculation(tokens=4, acceptance=0.8, draft_cost=0.05))
    found = speculation_break_even(draft, LightSpeed(H100), 1.0)
    assert found == pytest.approx(187, rel=0.1)
    real = speculation_break_even(draft, KernelSource(H100, "trtllm"), 1.0)
    assert real is not None and 90 < real < 280
    with pytest.raises(ValueError, match="without a draft"):
        speculation_break_even(LLAMA, LightSpeed(H100), 1.0)


def test_paging_wastes_part_of_a_block_and_reservations_most_of_themselves() -> None:
    """Lengths 100 and 30 in blocks of 16 hold 112 + 32: 14 of 144. Reserved 2,048 each: 3,966 of 4,096."""
    assert paged_waste([100, 30], 16) == pytest.approx(14 / 144)
    assert reserved_waste([100, 30], 2048) == pytest.approx(3966 / 4096)
    with pytest.raises(ValueError, match="3000 tokens in a reservation of 2048"):
        reserved_waste([3000], 2048)


def test_static_batch_runs_until_its_longest_answer() -> None:
    assert static_efficiency([100, 200, 300, 400]) == 250 / 400


def test_prefix_saves_linear_work_in_part_and_attention_by_the_square() -> None:
    linear, attention = prefix_work(8192, 0.5)
    assert linear == 0.5 and attention == pytest.approx(0.75, abs=1e-4)


def test_context_at_which_kv_is_read_as_much_as_weights() -> None:
    """8B bf16: 15.01 GB / 131,072 B = 114.5k tokens at batch 1, 1.79k at 64."""
    assert context_of_equal_reading(LLAMA, 1) == pytest.approx(114.5e3, rel=2e-3)
    assert context_of_equal_reading(LLAMA, 64) == pytest.approx(1.79e3, rel=2e-3)


def test_batch_stays_flat_until_kernels_leave_their_plateau() -> None:
    assert 16 <= flat_batch(LLAMA, KernelSource(H100, "trtllm")) <= flat_batch(LLAMA, LightSpeed(H100)) <= 400


def test_reload_of_a_prompt_by_hand_and_where_it_beats_recomputing() -> None:
    """8,192 tokens of 131,072 B over 55 GB/s: 19.5 ms; prefilling them takes over 100."""
    reload, recompute = reload_or_recompute(LLAMA, KernelSource(H100, "trtllm"), [8192.0])
    assert reload[0] == pytest.approx(8192 * 131_072 / 55e6) and recompute[0] > 5 * reload[0]

    def later(tokens: np.ndarray) -> np.ndarray:
        reload, recompute = reload_or_recompute(LLAMA, KernelSource(H100, "trtllm"), tokens, link_gb_per_s=4.0)
        return np.asarray(reload - recompute)

    slow = crossover(later, 16, 8192)  # a short prompt is a step's fixed time, a long one 33 us a token over the link
    assert slow is not None and later(np.array([slow / 2]))[0] < 0 < later(np.array([slow * 1.5]))[0]


def test_crossover_is_found_or_told_to_be_none() -> None:
    assert crossover(lambda x: x - 100, 1, 4096) == pytest.approx(100)
    assert crossover(lambda x: x + 1, 1, 4096) is None


def flat_engine(step_ms: float, slots: int = 1, prompts: int = 1) -> Engine:
    return Engine(step_ms=np.full((slots + 1, prompts + 1), step_ms), prefill_first=False)


def test_queue_of_single_token_answers_is_m_d_1() -> None:
    """Service 10 ms at 70 requests/s: load 0.7, mean wait 0.7 x 10 / (2 x 0.3) = 11.67 ms (Pollaczek-Khinchine)."""
    served = simulated(flat_engine(10.0), poisson(70, 40_000, seed=1), osl=1)
    assert served["ttft_ms"].mean() == pytest.approx(10 + 11.67, rel=0.05)
    assert served["tpot_ms"].isna().all() and (served["e2e_ms"] == served["ttft_ms"]).all()


def test_simulation_by_hand() -> None:
    """Steps of 10 ms, 2 slots, 3 tokens each, arrivals at 0, 5 and 6 ms. The first: tokens at 10, 20, 30. The second
    joins at 10: 20, 30, 40. The third waits for a slot, free at 30: 40, 50, 60."""
    served = simulated(flat_engine(10.0, slots=2), np.array([0.0, 5.0, 6.0]), osl=3)
    assert served["ttft_ms"].tolist() == [10, 15, 34]
    assert served["tpot_ms"].tolist() == [10, 10, 10]
    assert served["e2e_ms"].tolist() == [30, 35, 54]


def test_prompts_first_hold_up_who_decodes() -> None:
    """Prompt steps take 100 ms, decode 10. The first gets its token at 100; the second, arrived at 50, runs its prompt
    from 100 to 200; then both decode: the first's two later tokens come at 210 and 220, 60 ms each on average."""
    table = np.array([[0.0, 100.0], [10.0, 110.0], [10.0, 110.0]])
    served = simulated(Engine(step_ms=table, prefill_first=True), np.array([0.0, 50.0]), osl=3)
    assert served["ttft_ms"].tolist() == [100, 150] and served["tpot_ms"].tolist() == [60, 10]


def test_closed_form_and_simulation_agree_at_a_steady_load() -> None:
    """At the rate that the closed loop of 16 clients serves, TPOT of both agrees."""
    source, deployment = KernelSource(H100, "vllm"), Deployment(model=LLAMA.model, gpu=H100, engine=ENGINES["vllm"])
    asked = Requests(concurrency=np.array([16.0]), isl=np.array([1024.0]), osl=np.array([256.0]))
    closed = answered(closed_loop(deployment, source, asked), Host()).iloc[0]
    rate = 16e3 / (closed["ttft_ms"] + 255 * closed["tpot_ms"])
    served = simulated(engine_of(deployment, source, 1024, 256), poisson(rate, 2000, seed=3), osl=256)
    assert served["tpot_ms"].iloc[200:].mean() == pytest.approx(closed["tpot_ms"], rel=0.12)


def test_more_load_means_later_first_tokens_and_the_tail_is_told() -> None:
    engine = engine_of(LLAMA, KernelSource(H100, "trtllm"), 1024, 128)
    calm, busy = (quantiles(simulated(engine, poisson(rate, 400, seed=0), osl=128)) for rate in (1, 30))
    assert busy["ttft_ms"]["p99"] > calm["ttft_ms"]["p99"] > calm["ttft_ms"]["p50"] > 0
    with pytest.raises(ValueError, match="wanted a rate above 0"):
        poisson(0, 10, seed=0)
    with pytest.raises(ValueError, match="no request of 1024"):
        engine_of(Deployment(model=model_named("llama-3.1-70b"), gpu=H100), KernelSource(H100, "trtllm"), 1024, 128)


def test_more_gpus_help_a_lone_client_less_than_their_number() -> None:
    """At the speed of light TP 8 halves TP 4's time; kernels near their launch and all-reduces do not."""
    deployment = Deployment(model=model_named("llama-3.1-70b"), gpu=H100, tp=4)
    assert scaling(deployment, LightSpeed(H100)) == pytest.approx(2, rel=0.02)
    assert 1.2 < scaling(deployment, KernelSource(H100, "trtllm")) < 1.8
