"""Open loop: requests come when they come, whatever the engine does; a small event simulation, step by step.

All requests ask for the same tokens. Each step takes what waits and fits (slots, token budget) and gives every running
sequence a token; step times are those of `analysis.serving.step` with the engine's host constants, at the mean context.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What the simulation knows of an engine.

    Attributes:
        step_ms: [slots + 1, most prompts + 1] time of a step with so many decoding and so many prompts.
        prefill_first: prompts run in steps of their own.
    """

    step_ms: Array
    prefill_first: bool

    @property
    def slots(self) -> int:
        """Sequences that run at most."""
        return len(self.step_ms) - 1

    @property
    def most_prompts(self) -> int:
        """Prompts of a step at most."""
        return int(self.step_ms.shape[1]) - 1


def engine_of(deployment: Deployment, source: KernelSource, isl: int, osl: int) -> Engine:
    """The step times of a deployment for requests of `isl` + `osl` tokens.

    Raises:
        ValueError: not one request fits.
    """
    slots = int(min(MOST_SLOTS, max_concurrency(deployment, np.array([float(isl + osl)]))[0]))
    if slots < 1:
        raise ValueError(f"{deployment.model.name}: no request of {isl} + {osl} tokens fits")
    prompts = max(1, min(deployment.engine.token_budget // max(isl, 1), slots))
    running = np.unique(np.concatenate([np.array([0, slots]), np.minimum(2 ** np.arange(11), slots)])).astype(float)
    table = np.empty((slots + 1, prompts + 1))
    for count in range(prompts + 1):
        table[:, count] = np.interp(
            np.arange(slots + 1), running, _step_ms(deployment, source, running, float(count), isl, osl)
        )
    return Engine(step_ms=table, prefill_first=deployment.engine.prefill_first)


def _step_ms(
    deployment: Deployment, source: KernelSource, running: Array, prompts: float, isl: int, osl: int
) -> Array:  # fmt: skip
    host, same = deployment.host, np.ones(running.shape)
    batch = Batch(decodes=running, context=same * (isl + osl / 2), prompts=same * prompts, new=same * max(isl, 1))
    time_ms = total_us(step_ops(deployment, source, batch)) / 1e3
    if prompts:
        time_ms = np.maximum(time_ms, host.eager_layer_us * deployment.model.layers / 1e3)
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
    running: deque[tuple[int, int]] = deque()  # (tick of the last token, request), in order of both
    now, tick, admitted, done = 0.0, 0, 0, 0
    while done < len(arrivals):
        waiting = int(np.searchsorted(arrivals, now, side="right")) - admitted
        taken = min(waiting, engine.slots - len(running), engine.most_prompts)
        if not taken and not running:
            now = float(arrivals[admitted])
            continue
        alone = engine.prefill_first and taken > 0
        now += float(engine.step_ms[0 if alone else len(running), taken])
        tick += 0 if alone else 1
        while running and running[0][0] <= tick:
            last[running.popleft()[1]] = now
            done += 1
        for request in range(admitted, admitted + taken):
            first[request] = now
            running.append((tick + osl - 1, request))
        admitted += taken
        while running and running[0][0] <= tick:  # answers of one token
            last[running.popleft()[1]] = now
            done += 1
    tpot = (last - first) / (osl - 1) if osl > 1 else np.full(len(arrivals), np.nan)
    return pd.DataFrame({"ttft_ms": first - arrivals, "tpot_ms": tpot, "e2e_ms": last - arrivals})


def quantiles(requests: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Figure -> {p50, p90, p99}."""
    found: dict[str, dict[str, float]] = {}
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        values: npt.NDArray[np.float64] = requests[name].to_numpy(dtype=float)
        found[name] = {f"p{q * 100:.0f}": float(np.quantile(values, q)) for q in QUANTILES}
    return found
