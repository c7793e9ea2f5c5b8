"""The numbers that tutorials on LLM inference give, recomputed: each right, wrong, or right under what.

Every figure comes from the predictor or from a formula of `analysis.serving.techniques`; the verdict compares it with
the claimed range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.serving.deployment import ENGINES, Deployment, host_of
from analysis.serving.kernel_source import KernelSource, LightSpeed
from analysis.serving.load import Requests, answered, closed_loop
from analysis.serving.memory import kv_bytes_per_token, weight_bytes
from analysis.serving.speculation import Speculation
from analysis.serving.techniques import (
    critical_batch,
    paged_waste,
    prefix_work,
    reserved_waste,
    speculation_break_even,
)
from kernels.models import model_named

GPU, BF16, FP8 = "H100 SXM5 80GB", "bfloat16", "float8_e4m3fn"
DRAFT = Speculation(tokens=4, acceptance=0.8, draft_cost=0.05)
LENGTHS = np.linspace(16, 2048, 128) * 0.6
"""Lengths of sequences, of which the longest takes 60 % of a reservation of 2,048."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What is said, what comes out here, and the verdict: right, wrong, or right under a condition."""

    said: str
    ours: str
    verdict: str


def claims() -> list[Claim]:
    """All claims, in the order tutorials make them."""
    base = Deployment(model=model_named("llama-3.1-70b"), gpu=GPU, tp=4, host=host_of("trtllm"))
    return [*_of_memory(base), *_of_techniques(base), *_of_targets(base)]


def _within(value: float, low: float, high: float, otherwise: str = "wrong") -> str:
    return "right" if low <= value <= high else otherwise


def tpot_ms(
    deployment: Deployment, clients: float, isl: float = 1024, osl: float = 512, cached: float = 0.0
) -> tuple[float, float]:
    """TTFT and TPOT of one load."""
    source = KernelSource(deployment.gpu, deployment.engine.framework)
    asked = Requests(concurrency=np.array([clients]), isl=np.array([isl]), osl=np.array([osl]), cached=cached)
    a = answered(closed_loop(deployment, source, asked), deployment.host).iloc[0]
    return float(a["ttft_ms"]), float(a["tpot_ms"])


def _of_memory(base: Deployment) -> list[Claim]:
    weights = weight_bytes(base.model, BF16) / 1e9
    ridge = critical_batch(base, LightSpeed(GPU))
    tokens = 20e9 / kv_bytes_per_token(base.model)
    before, after = reserved_waste(LENGTHS, 2048), paged_waste(LENGTHS, 16)
    return [
        Claim("70B in fp16 takes 140 GB", f"{weights:.1f} GB", _within(weights, 138, 142)),
        Claim("the ridge of an H100 is 295 FLOP/byte", f"{ridge:.1f}", _within(ridge, 294, 296.5)),
        Claim(
            "one request takes 20 GB of KV", f"{kv_bytes_per_token(base.model):,} B a token",
            f"right for 70B with 8 KV heads at {tokens:,.0f} tokens, and for no shorter request",
        ),
        Claim("reservations waste 60 to 80 %", f"{before:.0%} of 2,048 reserved, {np.mean(LENGTHS):.0f} used",
              _within(before, 0.6, 0.8) + " where so much is reserved for such answers"),
        Claim("paging saves 96 % of the waste", f"{after:.1%} left in blocks of 16: {1 - after / before:.0%} saved",
              _within(1 - after / before, 0.96, 1.0)),
    ]  # fmt: skip


def _of_techniques(base: Deployment) -> list[Claim]:
    alone, busy = tpot_ms(base, 1)[1], tpot_ms(base, 256)[1]
    drafted = replace(base, speculation=DRAFT)
    gain, loss = alone / tpot_ms(drafted, 1)[1], busy / tpot_ms(drafted, 256)[1]
    stops = speculation_break_even(drafted, KernelSource(GPU, "trtllm"), 1280.0)
    small = replace(base, dtype=FP8, kv_dtype=FP8)
    saved = 1 - weight_bytes(base.model, FP8) / weight_bytes(base.model, BF16)
    faster = alone / tpot_ms(small, 1)[1]
    linear, _ = prefix_work(1024, 0.6)
    ttft, hit = tpot_ms(base, 1)[0], tpot_ms(base, 1, cached=1024 * 0.6)[0]
    together = alone / tpot_ms(replace(small, speculation=DRAFT), 1)[1]
    until = "it pays at any" if stops is None else f"it stops paying at {stops:.0f} by the curve of the kernels"
    return [
        Claim("speculation is 2 to 3 times as fast", f"{gain:.2f} x for one client, {loss:.2f} x for 256",
              _within(gain, 2, 3) + f" for one client; {until}"),
        Claim("prefix caching saves over 60 %", f"60 % cached: {1 - linear:.0%} of the linear work, TTFT "
              f"{ttft:.0f} -> {hit:.0f} ms", "right of the work from a hit rate of 60 %; a short TTFT gains less"),
        Claim("quantisation halves memory", f"{saved:.0%} of 70B's bytes", _within(saved, 0.47, 0.53)),
        Claim("quantisation is 1.6 times as fast", f"{faster:.2f} x for one client at TP {base.tp}",
              _within(faster, 1.5, 1.7, "right in kind")),
        Claim("all combined are 5 to 8 times as fast", f"fp8 weights and cache with a draft: {together:.2f} x TPOT",
              _within(together, 5, 8, "wrong for the TPOT of one client; more is throughput of batching")),
    ]  # fmt: skip


def _of_targets(base: Deployment) -> list[Claim]:
    ttft, tpot = tpot_ms(base, 64)
    output, e2e = 512, ttft + 511 * tpot
    return [
        Claim("200 ms of TTFT and 30 tokens a second", f"64 clients: {ttft:.0f} ms, {1e3 / tpot:.0f} tok/s",
              ("right" if ttft <= 200 and tpot <= 1e3 / 30 else "wrong") + f" as a target of 70B on {base.tp} H100"),
        Claim("E2E = TTFT + output x TPOT", f"{ttft + output * tpot:.0f} ms for {e2e:.0f}",
              f"wrong by one TPOT, {tpot:.0f} ms: TTFT holds the first token"),
    ]  # fmt: skip


def as_markdown() -> str:
    """The page."""
    lines = [
        "# A tutorial's numbers, recomputed", "",
        f"Llama-3.1-70B, {ENGINES['trtllm'].name} on 4 x {GPU} unless said otherwise, 1,024 + 512 tokens.", "",
        "| said | here | verdict |", "|---|---|---|",
    ]  # fmt: skip
    return "\n".join([*lines, *(f"| {c.said} | {c.ours} | {c.verdict} |" for c in claims()), ""])
