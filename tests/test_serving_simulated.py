"""The open-loop simulation's switches by hand: static batches, chunks, drafts, replicas, goodput."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_cmd_serve import run

from analysis.serving.deployment import Deployment
from analysis.serving.kernel_source import KernelSource
from analysis.serving.scheduling import Scheduling
from analysis.serving.simulate import Engine, engine_of, goodput_per_s, on_replicas, simulated
from analysis.serving.speculation import Speculation
from kernels.models import model_named

H100 = "H100 SXM5 80GB"
LLAMA = Deployment(model=model_named("llama-3.1-8b"), gpu=H100)
TEN_MS = Engine(step_ms=np.full((4, 2), 10.0), prefill_first=False)


def test_nothing_joins_a_static_batch_that_decodes() -> None:
    """Prompts of 10 ms at 0 and 10; tokens for both at 30 and 40. What came at 26 waits for 40 and gets its tokens at
    50, 60 and 70; without a static batch its prompt runs in the step of 30 to 40."""
    static = simulated(replace(TEN_MS, static=True, prefill_first=True), np.array([0.0, 5.0, 26.0]), osl=3)
    assert static["ttft_ms"].tolist() == [10, 15, 24]
    assert static["e2e_ms"].tolist() == [40, 35, 44]
    assert simulated(TEN_MS, np.array([0.0, 5.0, 26.0]), osl=3)["ttft_ms"].tolist() == [10, 15, 14]


def test_prompt_in_chunks_takes_a_step_each_beside_who_decodes() -> None:
    """Two chunks: the first's token comes at 20, its second at 30 beside a chunk of the other, whose first is at 40."""
    served = simulated(replace(TEN_MS, chunks=2), np.array([0.0, 5.0]), osl=2)
    assert served["ttft_ms"].tolist() == [20, 35] and served["tpot_ms"].tolist() == [10, 10]


def test_drafts_need_fewer_steps() -> None:
    """Four tokens after the first at two a step: 10, then 20 and 30 ms; a part of a step is a step."""
    for accepted, last in ((2.0, 30), (3.0, 30), (4.0, 20), (1.0, 50)):
        assert simulated(replace(TEN_MS, accepted=accepted), np.array([0.0]), osl=5)["e2e_ms"].tolist() == [last]


def test_replicas_take_turns() -> None:
    """One slot: alone the second waits 9 ms for the first; a replica of its own starts it at once, and the third waits
    for the first again."""
    one_slot = Engine(step_ms=np.full((2, 2), 10.0), prefill_first=False)
    arrivals = np.array([0.0, 1.0, 2.0])
    assert on_replicas(one_slot, 1, arrivals, 1)["ttft_ms"].tolist() == [10, 19, 28]
    assert on_replicas(one_slot, 2, arrivals, 1)["ttft_ms"].tolist() == [10, 10, 18]
    assert on_replicas(one_slot, 5, arrivals, 1)["ttft_ms"].tolist() == [10, 10, 10]


def test_goodput_counts_what_meets_both_limits() -> None:
    """Three answers, the last at 6 + 54 ms: of limits of 20 and 10 ms two meet both, 2 / 60 ms; one token has no
    TPOT to miss."""
    answers = pd.DataFrame({"ttft_ms": [10.0, 15, 34], "tpot_ms": [10.0] * 3, "e2e_ms": [30.0, 35, 54]})
    arrivals = np.array([0.0, 5.0, 6.0])
    assert goodput_per_s(answers, arrivals, (20, 10)) == pytest.approx((2 / 3, 2e3 / 60))
    assert goodput_per_s(answers, arrivals, (20, 9))[0] == 0
    assert goodput_per_s(answers.assign(tpot_ms=np.nan), arrivals, (20, 9))[0] == pytest.approx(2 / 3)


def test_engine_is_scheduled_as_asked() -> None:
    """1,024 tokens of which half are cached, in chunks of 200: three of 171. A draft of 4 at 0.8: 3.36 a step."""
    source = KernelSource(H100, "trtllm")
    plain = engine_of(LLAMA, source, 1024, 128)
    chunked = engine_of(replace(LLAMA, scheduling=Scheduling(chunk=200)), source, 1024, 128, cached=512)
    assert (plain.chunks, chunked.chunks, chunked.most_prompts) == (1, 3, 1)
    assert chunked.step_ms[8, 1] < plain.step_ms[8, 1] and chunked.step_ms[8, 0] == plain.step_ms[8, 0]
    drafted = engine_of(replace(LLAMA, speculation=Speculation(tokens=4, acceptance=0.8)), source, 1024, 128)
    assert drafted.accepted == pytest.approx(3.3616) and drafted.step_ms[64, 0] > plain.step_ms[64, 0]
    costly = Speculation(tokens=4, acceptance=0.8, draft_cost=0.25)
    dear = engine_of(replace(LLAMA, speculation=costly), source, 1024, 128)
    assert dear.step_ms[64, 0] - drafted.step_ms[64, 0] == pytest.approx(_kernels_ms(plain, 64), rel=1e-6)
    assert engine_of(replace(LLAMA, scheduling=Scheduling(batching="static")), source, 1024, 128).static


def _kernels_ms(plain: Engine, running: int) -> float:
    """Four tokens at a quarter of a plain step each are one plain step, less what the host adds to it."""
    host = LLAMA.host
    return float(plain.step_ms[running, 0] - (host.step_us + host.sequence_us * running) / 1e3)


def test_pipeline_keeps_a_prompt_from_half_of_who_decodes() -> None:
    source = KernelSource(H100, "trtllm")
    one, two = (engine_of(replace(LLAMA, pp=pp), source, 1024, 128) for pp in (1, 2))
    added = [engine.step_ms[64, 1] - engine.step_ms[64, 0] for engine in (one, two)]
    assert added[1] < 0.6 * added[0] and two.slots > one.slots
    assert two.step_ms[0, 1] > 0.95 * one.step_ms[0, 1], "alone it takes both stages in turn"


def test_command_tells_goodput_and_replicas_lower_the_tail() -> None:
    asked = ("simulate", "--rate", "10", "--requests", "300", "--slo-ttft", "100", "--slo-tpot", "20", "--json")
    one, two = (json.loads(run(*asked, "--replicas", replicas)) for replicas in ("1", "2"))
    assert two["goodput_requests_per_s"] >= one["goodput_requests_per_s"] > 0
    assert two["ttft_ms"]["p99"] < one["ttft_ms"]["p99"] and two["slo_met_share"] >= one["slo_met_share"]
    text = run("simulate", "--rate", "2", "--requests", "20", "--slo", "chat")
    assert "% of 20 requests meet TTFT 200 ms and TPOT 33 ms: goodput " in text
    assert "unknown SLO" in run("simulate", "--rate", "2", "--slo", "none", code=2)
    assert "unknown batching" in run("simulate", "--rate", "2", "--batching", "none", code=2)
