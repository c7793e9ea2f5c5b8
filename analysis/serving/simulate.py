"""Open loop: requests come when they come, whatever the engine does; a small event simulation, step by step.

All requests ask for the same tokens. Each step takes what waits and fits (slots, token budget) and gives every running
sequence a token, or with drafts the tokens that are accepted on average; step times are those of
`analysis.serving.step` with the engine's host constants, at the mean context. A static batch takes what waits when the
one before has ended, and nothing while it decodes. In chunks, prompts run one at a time, a chunk a step. Replicas take
requests in turns. Pipelines are as in `analysis.serving.load`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.serving.deployment import Deployment
from analysis.serving.grids import Array
from analysis.serving.kernel_source import KernelSource
from analysis.serving.memory import max_concurrency
from analysis.serving.step import Batch, all_reduces, step_ops, total_us

MOST_SLOTS = 1024
"""Sequences that a simulated engine runs at most."""
QUANTILES = (0.5, 0.9, 0.99)
ROUNDING = 1e-9
"""What a division of whole numbers of tokens may be above a whole number of steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What the simulation knows of an engine.

    Attributes:
        step_ms: [slots + 1, most prompts + 1] time of a step with so many decoding and so many prompts.
        prefill_first: prompts run in steps of their own.
        static: no request joins a batch that decodes.
        chunks: steps that a prompt takes; with more than one, a step holds a chunk of one prompt.
        accepted: tokens that a step gives a running sequence.
    """

    step_ms: Array
    prefill_first: bool
    static: bool = False
    chunks: int = 1
    accepted: float = 1.0

    @property
    def slots(self) -> int:
        """Sequences that run at most."""
        return len(self.step_ms) - 1

    @property
    def most_prompts(self) -> int:
        """Prompts of a step at most."""
        return int(self.step_ms.shape[1]) - 1


def engine_of(deployment: Deployment, source: KernelSource, isl: int, osl: int, cached: float = 0.0) -> Engine:
    """The step times of one replica for requests of `isl` + `osl` tokens, `cached` of a prompt's found in a cache.

    Raises:
        ValueError: not one request fits.
    """
    slots = int(min(MOST_SLOTS, max_concurrency(deployment, np.array([float(isl + osl)]))[0]))
    if slots < 1:
        raise ValueError(f"{deployment.model.name}: no request of {isl} + {osl} tokens fits")
    way, new = deployment.scheduling, max(isl - cached, 1.0)
    chunks = int(np.ceil(new / way.chunk)) if way.chunk else 1
    prompts = max(1, min(int((way.chunk or deployment.engine.token_budget) // new), slots))
    running = np.unique(np.concatenate([np.array([0, slots]), np.minimum(2 ** np.arange(11), slots)])).astype(float)
    context, past = isl + osl / 2, cached + (chunks - 1) / 2 * new / chunks
    table = np.empty((slots + 1, prompts + 1))
    for count in range(prompts + 1):
        times = _step_ms(deployment, source, running, float(count), (context, new / chunks, past))
        table[:, count] = np.interp(np.arange(slots + 1), running, times)
    return Engine(
        step_ms=table, prefill_first=deployment.engine.prefill_first or way.static, static=way.static, chunks=chunks,
        accepted=deployment.speculation.accepted if deployment.speculation else 1.0,
    )  # fmt: skip


def _step_ms(
    deployment: Deployment, source: KernelSource, running: Array, prompts: float, tokens: tuple[float, float, float]
) -> Array:  # fmt: skip
    """Of steps with so many running and so many prompts; tokens: context of a decode, new of a prompt, before them."""
    host, draft, same = deployment.host, deployment.speculation, np.ones(running.shape)
    context, new, past = (same * count for count in tokens)
    queries = draft.tokens + 1 if draft else 1

    def kernels_ms(prompts: float, queries: int) -> Array:
        decodes = np.ceil(running / deployment.pp)
        batch = Batch(decodes=decodes, context=context, prompts=same * prompts, new=new, cached=past, queries=queries)
        return total_us(step_ops(deployment, source, batch)) / 1e3

    decode = kernels_ms(0.0, queries)
    time_ms = decode
    if prompts:
        # A prompt occupies one stage of a pipeline at a time, and the others go on.
        time_ms = decode + (kernels_ms(prompts, queries) - decode) / np.where(running > 0, deployment.pp, 1)
        time_ms = np.maximum(time_ms, host.eager_layer_us * deployment.model.layers / 1e3)
    if draft:
        time_ms = time_ms + draft.tokens * draft.draft_cost * kernels_ms(0.0, 1) * (running > 0)
    extra = host.step_us + host.all_reduce_us * all_reduces(deployment) + host.sequence_us * running
    return np.asarray(time_ms + extra / 1e3)


def poisson(rate_per_s: float, requests: int, seed: int) -> Array:
    """Arrival times in ms of independent requests. Raises ValueError for a rate that is not positive."""
    if rate_per_s <= 0:
        raise ValueError(f"wanted a rate above 0 requests a second, got {rate_per_s}")
    gaps = np.random.default_rng(seed).exponential(1e3 / rate_per_s, requests)
    return np.asarray(np.cumsum(gaps))


def simulated(engine: Engine, arrivals: Array, osl: int) -> pd.DataFrame:
    """One row a request in order of arrival: ttft_ms, tpot_ms (NaN for one token) and e2e_ms. `osl` is 1 or more."""
    first, last = np.empty(len(arrivals)), np.empty(len(arrivals))
    steps = int(np.ceil((osl - 1) / engine.accepted - ROUNDING))
    running: deque[tuple[int, int]] = deque()  # (tick of the last token, request), in order of both
    now, tick, admitted, done, chunk, opened = 0.0, 0, 0, 0, 0, 0
    while done < len(arrivals):
        waiting = int(np.searchsorted(arrivals, now, side="right")) - admitted
        opened = opened if running else tick
        closed = engine.static and tick > opened
        taken = 0 if closed else min(waiting, engine.slots - len(running), engine.most_prompts)
        if not taken and not running:
            now = float(arrivals[admitted])
            continue
        alone = engine.prefill_first and taken > 0
        now += float(engine.step_ms[0 if alone else len(running), taken])
        tick += 0 if alone else 1
        while running and running[0][0] <= tick:
            last[running.popleft()[1]] = now
            done += 1
        chunk = (chunk + 1) % engine.chunks if taken else chunk
        if chunk:
            continue
        for request in range(admitted, admitted + taken):
            first[request] = now
            running.append((tick + steps, request))
        admitted += taken
        while running and running[0][0] <= tick:  # answers of one token
            last[running.popleft()[1]] = now
            done += 1
    tpot = (last - first) / (osl - 1) if osl > 1 else np.full(len(arrivals), np.nan)
    return pd.DataFrame({"ttft_ms": first - arrivals, "tpot_ms": tpot, "e2e_ms": last - arrivals})


def on_replicas(engine: Engine, replicas: int, arrivals: Array, osl: int) -> pd.DataFrame:
    """`simulated` on each of so many equal engines that take requests in turns; rows in order of arrival."""
    parts = [simulated(engine, arrivals[i::replicas], osl) for i in range(min(replicas, len(arrivals)))]
    order = [np.arange(i, len(arrivals), replicas) for i in range(len(parts))]
    return pd.concat(parts).set_index(np.concatenate(order)).sort_index()


def goodput_per_s(requests: pd.DataFrame, arrivals: Array, slo: tuple[float, float]) -> tuple[float, float]:
    """(share of requests that meet both limits, TTFT and TPOT in ms; those a second, from the first arrival to the
    last answer). A request of one token has no TPOT to miss."""
    meets = (requests["ttft_ms"] <= slo[0]) & ((requests["tpot_ms"] <= slo[1]) | requests["tpot_ms"].isna())
    took_ms = float((arrivals + requests["e2e_ms"].to_numpy()).max() - arrivals[0])
    return float(meets.mean()), float(meets.sum()) * 1e3 / took_ms


def quantiles(requests: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Figure -> {p50, p90, p99}."""
    found: dict[str, dict[str, float]] = {}
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        values: npt.NDArray[np.float64] = requests[name].to_numpy(dtype=float)
        found[name] = {f"p{q * 100:.0f}": float(np.quantile(values, q)) for q in QUANTILES}
    return found
