"""Replicas, static batches, chunks, reservations, offload and what 1 % of a kernel is worth."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from analysis.__main__ import app
from analysis.serving.deployment import ENGINES, Deployment, Host
from analysis.serving.elasticity import gains
from analysis.serving.kernel_source import KernelSource
from analysis.serving.load import Requests, answered, closed_loop
from analysis.serving.memory import held_tokens, max_concurrency, reload_ms
from analysis.serving.scheduling import Scheduling
from analysis.serving.speculation import Speculation
from kernels.models import model_named

H100 = "H100 SXM5 80GB"
VLLM = Deployment(model=model_named("llama-3.1-8b"), gpu=H100, engine=ENGINES["vllm"])
SOURCE = KernelSource(H100, "vllm")


def asked(clients: float, isl: float = 1024, osl: float = 512, **other: float) -> Requests:
    return Requests(concurrency=np.array([clients]), isl=np.array([isl]), osl=np.array([osl]), **other)


def loop(deployment: Deployment, requests: Requests, host: Host | None = None) -> pd.Series[Any]:
    """The steps of one load with their latencies."""
    steps = closed_loop(deployment, SOURCE, requests)
    return pd.concat([steps, answered(steps, host or Host())], axis=1).iloc[0]


def scheduled(**way: Any) -> Deployment:
    return replace(VLLM, scheduling=Scheduling(**way))


def serve(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["serve", *arguments, "--json"])
    assert done.exit_code == code, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["loads"]
    return found


@pytest.mark.parametrize(
    ("way", "part"),
    [({"batching": "dynamic"}, "unknown batching 'dynamic'; known: continuous, static"), ({"replicas": 0}, "1 replica"),
     ({"chunk": -1}, "sizes of 0"), ({"longest": 0.5, "batching": "static"}, "longest answer of 1 mean"),
     ({"longest": 2.0}, "only a static batch")],
)  # fmt: skip
def test_scheduling_that_cannot_be_is_refused(way: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Scheduling(**way)


def test_replicas_share_the_clients_and_multiply_gpus_and_tokens() -> None:
    """64 clients on 4 replicas are 16 on each: a client sees the same, the system gives 4 times the tokens."""
    [alone] = serve("--concurrency", "16", "--price", "2")
    [four] = serve("--concurrency", "64", "--price", "2", "--replicas", "4")
    for same in ("ttft_ms", "tpot_ms", "usd_per_mtok_output", "mfu", "mbu"):
        assert four[same] == pytest.approx(alone[same]), same
    assert four["tokens_per_s_system"] == pytest.approx(4 * alone["tokens_per_s_system"])
    assert four["max_concurrency"] == 4 * alone["max_concurrency"]


def test_idle_replicas_cost_and_give_nothing() -> None:
    [one], [spread] = (serve("--concurrency", "1", "--price", "2", "--replicas", n) for n in ("1", "4"))
    assert spread["tokens_per_s_system"] == pytest.approx(one["tokens_per_s_system"])
    assert spread["usd_per_mtok_output"] == pytest.approx(4 * one["usd_per_mtok_output"])


def test_queue_of_replicas_is_what_all_lack() -> None:
    [d] = serve("--isl", "8192", "--osl", "8192", "--concurrency", "512", "--replicas", "2")
    assert d["queued"] == 512 - d["max_concurrency"] > 0


def test_static_batch_prefills_all_then_decodes_all() -> None:
    """64 clients: 64 prompts one after another, then 511 steps that no prompt disturbs."""
    d = loop(scheduled(batching="static"), asked(64))
    assert d["ttft_ms"] == pytest.approx(64 * d["prefill_ms"]) and d["tpot_ms"] == pytest.approx(d["decode_ms"].iloc[0])
    assert loop(VLLM, asked(64))["ttft_ms"] < d["ttft_ms"] / 4


def test_static_batch_waits_for_its_longest_answer() -> None:
    """Answers of 512 on average and 1,536 at most: a slot idles for 1,024 steps before the next batch."""
    equal, spread = (loop(scheduled(batching="static", longest=longest), asked(8)) for longest in (1.0, 3.0))
    assert spread["ttft_ms"] - equal["ttft_ms"] == pytest.approx(1024 * equal["tpot_ms"])
    assert spread["tpot_ms"] == equal["tpot_ms"]


def test_chunks_of_a_prompt_bound_the_gap_and_delay_the_first_token() -> None:
    """8,192 tokens in chunks of 1,024 are 8 steps; 3 other clients bring 3 x 8 / 512 chunks a step."""
    whole, parts = (loop(scheduled(chunk=chunk), asked(4, isl=8192)) for chunk in (0, 1024))
    assert (parts["chunks"], parts["prompts"]) == (8, 1) and parts["mixed_share"] == pytest.approx(24 / 512)
    assert parts["longest_gap_ms"] < whole["longest_gap_ms"] / 4
    assert parts["ttft_ms"] == pytest.approx(8 * parts["mixed_ms"] + parts["decode_ms"].iloc[0] / 2)
    assert parts["ttft_ms"] > whole["ttft_ms"]


def test_chunks_do_the_attention_of_the_whole_prompt() -> None:
    """Causal pairs of n equal chunks are those of the prompt, whatever n: at the speed of light the times agree."""
    whole, parts = (loop(scheduled(chunk=chunk), asked(1, isl=16384)) for chunk in (0, 2048))
    assert parts["prefill_ms_light"] * 8 == pytest.approx(whole["prefill_ms_light"], rel=0.02)


def test_a_chunk_holds_as_many_prompts_as_fit() -> None:
    """64 clients of 16 tokens: 63 / 16 prompts a step, four whole ones in a chunk of 4,096, and two in one of 2,048."""
    four, two = (loop(scheduled(chunk=chunk), asked(64, osl=16)) for chunk in (4096, 2048))
    assert (four["prompts"], four["late_steps"]) == (4, 0) and four["mixed_share"] == pytest.approx(63 / 64)
    # A cycle is 64 / 2 steps of two prompts each, of which a request needs 1 + 16: it waits 63 / 2 - 16.
    assert (two["prompts"], two["mixed_share"], two["late_steps"]) == (2, 1, 15.5)
    assert two["held_back"] == 31 and two["decode_ms"].iloc[0] < four["decode_ms"].iloc[0]
    assert two["ttft_ms"] + 16 * two["tpot_ms"] == pytest.approx((63 / 2 + 1) * two["mixed_ms"], rel=0.02)


def test_blocks_round_up_and_reservations_replace_them() -> None:
    """1,000 tokens: 63 blocks of 16 are 1,008; 2 of 512 are 1,024; a reservation is whole, and of 999 too small."""
    length = np.array([1000.0])
    assert held_tokens(VLLM, length) == 1008 and held_tokens(scheduled(page=512), length) == 1024
    assert held_tokens(scheduled(reserved=4096), length) == 4096
    paged, reserved = (max_concurrency(d, length)[0] for d in (VLLM, scheduled(reserved=4096)))
    assert paged / reserved == pytest.approx(4096 / 1008, rel=0.02)
    with pytest.raises(ValueError, match="a sequence of 1000 tokens in a reservation of 999"):
        held_tokens(scheduled(reserved=999), length)


def test_waste_is_told_and_lessens_what_fits() -> None:
    """1,536 tokens in 4,096: 62.5 % empty; in blocks of 32 none."""
    [paged], [reserved] = (serve("--concurrency", "8", "--reserve", tokens) for tokens in ("0", "4096"))
    assert (paged["kv_waste"], reserved["kv_waste"]) == (0.0, 0.625)
    assert reserved["max_concurrency"] == pytest.approx(paged["max_concurrency"] * 0.375, abs=1)


def test_offloaded_hit_comes_over_the_link_before_the_prompt() -> None:
    """Half of 8,192 tokens at 131,072 bytes are 0.537 GB: 9.76 ms over 55 GB/s, and 19.5 over 27.5."""
    hit = ("--isl", "8192", "--concurrency", "1", "--prefix-hit-rate", "0.5")
    [cached], [offloaded], [slow] = (
        serve(*hit, *more) for more in ((), ("--offload",), ("--offload", "--pcie", "27.5"))
    )
    assert reload_ms(VLLM, 4096, 55.0) == pytest.approx(4096 * 131_072 / 55e6)
    assert offloaded["reload_ms"] == pytest.approx(9.76, rel=1e-3) and cached["reload_ms"] == 0
    assert offloaded["ttft_ms"] - cached["ttft_ms"] == pytest.approx(9.76, rel=1e-3)
    assert slow["reload_ms"] == pytest.approx(19.52, rel=1e-3)
    assert offloaded["recompute_ms"] > offloaded["reload_ms"]


def test_offload_without_a_hit_is_refused() -> None:
    done = CliRunner().invoke(app, ["serve", "--offload"])
    assert done.exit_code == 2 and "--offload wants --prefix-hit-rate and --pcie above 0" in done.stderr


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("way", [(), ("--chunk", "256"), ("--batching", "static"), ("--chunk", "128", "--osl", "32")])
def test_ops_and_their_gains_sum_to_tpot_where_kernels_are_all(engine: str, way: tuple[str, ...]) -> None:
    """With neither host nor drafts all of TPOT is kernels, and 1 % of each is 1 % of it."""
    [d] = serve("--engine", engine, "--kernels-only", "--concurrency", "64", "--price", "2", *way)
    assert sum(op["ms"] for op in d["ops"]) == pytest.approx(d["tpot_ms"])
    assert sum(op["tpot_ms_per_percent"] for op in d["ops"]) == pytest.approx(d["tpot_ms"] / 100)
    assert sum(op["usd_per_mtok_per_percent"] for op in d["ops"]) == pytest.approx(d["usd_per_mtok_output"] / 100)


def test_a_kernel_that_the_host_hides_is_worth_nothing() -> None:
    """A layer with a prompt takes 5 ms on the host whatever its kernels take: only decode steps gain."""
    requests = asked(64)
    steps = closed_loop(VLLM, SOURCE, requests)
    free, bound = (gains(replace(VLLM, host=host), SOURCE, steps, 0.0) for host in (Host(), Host(eager_layer_us=5000)))
    assert free["attention_prefill"].tpot_ms[0] > 0 and bound["attention_prefill"].tpot_ms[0] == 0
    assert 0 < bound["gate_up_proj"].tpot_ms[0] < free["gate_up_proj"].tpot_ms[0]


def test_gain_of_a_drafted_step_holds_the_drafts_part() -> None:
    """A draft costs 4 x 10 % of a plain step, which the same kernels make: a lone stream's gains sum to 1 %."""
    drafted = replace(VLLM, speculation=Speculation(tokens=4, acceptance=0.8, draft_cost=0.1))
    steps = closed_loop(drafted, SOURCE, asked(1))
    tpot = answered(steps, Host())["tpot_ms"].iloc[0]
    found = gains(drafted, SOURCE, steps, 0.0)
    assert sum(gain.tpot_ms[0] for gain in found.values()) == pytest.approx(tpot / 100)


def test_text_says_that_gains_do_not_sum() -> None:
    done = CliRunner().invoke(app, ["serve", "--tp", "8", "--concurrency", "64"])
    assert "1 % of every kernel is 0." in done.stdout
    alone = CliRunner().invoke(app, ["serve", "--kernels-only", "--concurrency", "64"])
    assert "1 % of every kernel" not in alone.stdout


def test_fastest_takes_the_fastest_framework_of_each_cell() -> None:
    n, m = 6144.0, np.array([1.0, 64.0, 8192.0])
    times = np.stack([KernelSource(H100, f).gemm(m, n, 4096, "bfloat16").time_us for f in ("trtllm", "vllm", "sglang")])
    best = KernelSource(H100, "trtllm", "fastest").gemm(m, n, 4096, "bfloat16").time_us
    assert best == pytest.approx(times.min(axis=0)) and (times.argmin(axis=0) != times.argmin(axis=0)[0]).any()
