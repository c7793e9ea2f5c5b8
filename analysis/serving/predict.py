"""The serving figures of a deployment under a load, with where each millisecond of TPOT comes from.

The ladder climbs from the speed of light of a decode step over measured kernels and the host to what prompts of
other requests add. What 1 % of an op is worth is left to `analysis.serving.elasticity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.peaks import table
from analysis.serving import metrics
from analysis.serving.attainable import computed
from analysis.serving.cost import usd_per_mtok
from analysis.serving.deployment import Deployment, Host
from analysis.serving.elasticity import Gain, gains
from analysis.serving.grids import ASSUMED, HOW, Array
from analysis.serving.kernel_source import KernelSource
from analysis.serving.load import BATCHED, LIGHT, Requests, answered, batches, closed_loop
from analysis.serving.memory import budget, held_tokens, kept_tokens, max_concurrency, read_bytes, what_would_fit
from analysis.serving.step import distinct_experts, step_ops
from analysis.serving.techniques import reload_or_recompute

FIGURES = (
    "ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s_user", "tokens_per_s_system", "requests_per_s", "mfu", "mbu",
    "usd_per_mtok_output", "waiting_ms", "longest_gap_ms", "reload_ms",
)  # fmt: skip
SLOS: Mapping[str, tuple[float, float]] = {"chat": (200.0, 33.0), "interactive": (500.0, 50.0), "batch": (10e3, 200.0)}
"""Name -> most TTFT and TPOT in ms: 200 ms and 30 tokens a second are the usual targets of a chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the caller states: dollars for a GPU and hour, and most TTFT and TPOT in ms (None: no limits)."""

    usd_per_gpu_hour: float | None = None
    slo: tuple[float, float] | None = None


def served(deployment: Deployment, source: KernelSource, requests: Requests, terms: Terms) -> list[dict[str, Any]]:
    """One document a load: fits, max_concurrency, the figures, ladder and ops.

    Figures that are undefined (a TPOT of one output token, anything of what does not fit) are None.
    """
    steps = closed_loop(deployment, source, requests)
    figures = _figures(deployment, steps, requests.concurrency, terms)
    ladder = _ladders(deployment, steps)
    shares = _op_shares(deployment, source, steps, requests.cached)
    worth = gains(deployment, source, steps, requests.cached)
    replicas, length = deployment.scheduling.replicas, requests.isl + requests.osl
    waiting = np.maximum(requests.concurrency - steps["active"].to_numpy() * replicas, 0).astype(int)
    room, held = max_concurrency(deployment, length) * replicas, held_tokens(deployment, length)
    wasted = 1 - kept_tokens(deployment.model, length) / held
    # Fewer sequences than stages leave stages without a micro-batch.
    bubble = 1 - np.minimum(steps["active"].to_numpy(), deployment.pp) / deployment.pp
    documents = []
    for i in range(len(steps)):
        reason = what_would_fit(deployment, float(length[i]))
        told: dict[str, Any] = {
            "concurrency": int(requests.concurrency[i]), "isl": float(requests.isl[i]),
            "osl": float(requests.osl[i]), "fits": not reason, "reason": reason,
            "max_concurrency": int(room[i]), "queued": 0 if reason else int(waiting[i]),
            "kv_waste": float(wasted[i]), "pipeline_bubble": float(bubble[i]),
        }  # fmt: skip
        told |= {str(name): None if reason else _plain(figures[name].iloc[i]) for name in figures}
        undefined = bool(reason) or requests.osl[i] <= 1
        told["ladder"] = None if undefined else {name: float(rung[i]) for name, rung in ladder.items()}
        told["ops"] = None if undefined else [
            {"op": op, "ms": float(ms[i]), "share": float(ms[i] / figures["tpot_ms"].iloc[i]), "how": HOW[how[i]],
             **_worth(worth.get(op), i, told["usd_per_mtok_output"])}
            for op, (ms, how) in shares.items()
        ]  # fmt: skip
        documents.append(told)
    if requests.link_gb_per_s:
        _, recomputed = reload_or_recompute(deployment, source, [requests.cached], requests.link_gb_per_s)
        documents = [{**told, "recompute_ms": float(recomputed[0])} for told in documents]
    return documents


def _worth(gain: Gain | None, load: int, usd_per_mtok: float | None) -> dict[str, float | None]:
    """Of 1 % of an op; a draft's is in the ops that it is made of."""
    tpot, cost = (0.0, 0.0) if gain is None else (float(gain.tpot_ms[load]), float(gain.cost[load]))
    usd = None if usd_per_mtok is None else cost * usd_per_mtok
    return {"tpot_ms_per_percent": tpot, "usd_per_mtok_per_percent": usd}


def _plain(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def _figures(deployment: Deployment, steps: pd.DataFrame, c: Array, terms: Terms) -> pd.DataFrame:
    """Of all replicas and their `c` clients together; MBU of a replica that has any."""
    answers = answered(steps, deployment.host)
    isl, osl, gpus = steps["isl"], steps["osl"], deployment.all_gpus
    ttft, tpot = answers["ttft_ms"], answers["tpot_ms"]
    e2e = metrics.e2e_ms(ttft, tpot, osl)
    system = metrics.tokens_per_s_system(c, osl, e2e)
    per_s = metrics.requests_per_s(c, e2e)
    peaks, model = table()[deployment.gpu], deployment.model
    peak = peaks.tflops[computed(deployment.dtype), "float32"]
    active, context = (steps["active"] - steps["held_back"]).to_numpy(), steps["context"].to_numpy()
    hit = distinct_experts(model, active) if model.experts else 0.0
    cache = active * kept_tokens(model, context) * budget(deployment).kv_bytes_per_token * deployment.gpus
    read = read_bytes(model, deployment.dtype, hit) + cache
    figures = {
        "ttft_ms": ttft, "tpot_ms": tpot, "e2e_ms": e2e,
        "tokens_per_s_user": metrics.tokens_per_s_user(tpot), "tokens_per_s_system": system, "requests_per_s": per_s,
        "mfu": metrics.mfu(per_s * (isl + osl), model.active_parameters, gpus, peak),
        "mbu": metrics.mbu(read, tpot * steps["accepted"], deployment.gpus, peaks.dram_gb_per_s),
        "usd_per_mtok_output": np.nan, "waiting_ms": answers["waiting_ms"],
        "longest_gap_ms": answers["longest_gap_ms"], "reload_ms": steps["reload_ms"],
    }  # fmt: skip
    if terms.usd_per_gpu_hour is not None:
        figures["usd_per_mtok_output"] = usd_per_mtok(system, gpus, terms.usd_per_gpu_hour)
    frame = pd.DataFrame(figures, index=steps.index)[list(FIGURES)]
    if terms.slo is not None:
        frame["goodput_requests_per_s"] = metrics.goodput(per_s, ttft, tpot, terms.slo)
    return frame


def _ladders(deployment: Deployment, steps: pd.DataFrame) -> dict[str, np.ndarray]:
    """Rung -> milliseconds of TPOT up to it."""
    answers = answered(steps, deployment.host)
    decode = answers["decode_ms"].to_numpy()
    with_host = decode + answers["host_ms"].to_numpy()
    return {
        "speed_of_light": answered(steps, Host(), LIGHT)["decode_ms"].to_numpy(),
        "measured_kernels": decode,
        "launch_and_host": with_host,
        "batching": with_host + answers["interference_ms"].to_numpy(),
        "predicted": answers["tpot_ms"].to_numpy(),
    }


def _op_shares(
    deployment: Deployment, source: KernelSource, steps: pd.DataFrame, cached: float
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Op -> its ms of TPOT, in decode and in what prompts of others add, and how its cells came to be."""
    columns = {name: steps[name].to_numpy() for name in BATCHED}
    kinds = batches(deployment, columns, cached)
    decode, mixed, prefill = (
        step_ops(deployment, source, kinds[name]) for name in ("decode_ms", "mixed_ms", "prefill_ms")
    )
    share = steps["mixed_share"].to_numpy() / deployment.pp
    before, accepted = (steps["active"] + steps["group"]) / 2, float(steps["accepted"].iloc[0])
    waves: np.ndarray = ((steps["active"] - before) * steps["chunks"] / np.maximum(steps["osl"] - 1, 1)).to_numpy()
    in_waves = bool(steps["prefill_first"].iloc[0])
    shares: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for op, cells in decode.items():
        others = mixed[op].time_us - cells.time_us
        added = waves * prefill[op].time_us if in_waves else share * others / accepted
        shares[op] = ((cells.time_us / accepted + added) / 1e3, np.maximum(cells.how, mixed[op].how))
    if deployment.speculation:
        drafted = (steps["draft_ms"] / accepted).to_numpy()
        shares["draft"] = (drafted, np.full(drafted.shape, ASSUMED, dtype=np.int8))
    return shares


def meeting(documents: list[dict[str, Any]], slo: tuple[float, float]) -> str:
    """Which loads meet the limits; where none does, that, and the nearest one."""
    usable = [d for d in documents if d["fits"] and d["tpot_ms"] is not None]
    met = [d for d in usable if d["ttft_ms"] <= slo[0] and d["tpot_ms"] <= slo[1]]
    limits = f"TTFT {slo[0]:g} ms and TPOT {slo[1]:g} ms"
    if met:
        best = max(met, key=lambda d: float(d["concurrency"]))
        return f"meets {limits} up to concurrency {best['concurrency']}"
    if not usable:
        return f"none meets {limits}"
    near = min(usable, key=lambda d: max(float(d["ttft_ms"]) / slo[0], float(d["tpot_ms"]) / slo[1]))
    return (
        f"none meets {limits}; nearest: concurrency {near['concurrency']} with TTFT {near['ttft_ms']:.0f} ms and "
        f"TPOT {near['tpot_ms']:.1f} ms"
    )
