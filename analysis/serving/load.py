"""Closed loop: c clients, each sending its next request when the last is answered, in closed form.

During one request's O steps every other slot restarts once, so a step meets q = (c - 1) / O prompts:
TPOT = (1 - w) decode + w mixed, with w = q / ceil(q) of the steps holding ceil(q) prompts. An engine that runs
waiting prompts first keeps equal requests in step: a wave of c prompts in groups of what a step takes, then O - 1
decode steps for all; on average a request's TTFT holds (c + group) / 2 prompts and the others delay its tokens.
More clients than fit in memory wait for a slot.

A static batch is a wave of all clients that ends with its longest answer. In chunks a prompt takes n steps, and a
step holds one chunk, or as many whole prompts as fit in one: where a request's steps are too few for the prompts of
the others, every step is mixed and prompts wait for their turn. Replicas share the clients. Cached tokens of host
memory are brought back before a prompt starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.serving.deployment import Deployment, Host
from analysis.serving.grids import Array, Whole
from analysis.serving.kernel_source import KernelSource, LightSpeed
from analysis.serving.memory import max_concurrency, reload_ms
from analysis.serving.scheduling import Scheduling
from analysis.serving.step import Batch, all_reduces, step_ops, total_us

KERNELS, LIGHT = "", "_light"
"""Ends of column names: of the kernels' times, and of the speed of light's."""
BATCHED = ("active", "held_back", "isl", "context", "prompts", "chunks")
"""Columns that `batches` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What the clients ask for, one array each: concurrency, prompt and output tokens, tokens found in a cache.

    Attributes:
        link_gb_per_s: of the link over which cached tokens come back from host memory; 0 where the GPU holds them.
    """

    concurrency: Array
    isl: Array
    osl: Array
    cached: float = 0.0
    link_gb_per_s: float = 0.0


def closed_loop(deployment: Deployment, source: KernelSource, requests: Requests) -> pd.DataFrame:
    """Step times of each load from kernels and at the speed of light; `answered` makes latencies of them.

    Returns:
        Per load and replica: concurrency, isl, osl, capacity, active (of the clients, those that fit), held_back (of
        these, prompts waiting for their turn), context, group, chunks of a prompt, prompts of a mixed step and
        mixed_share of the steps that are mixed, late_steps before a prompt's turn; decode_ms, mixed_ms, draft_ms (of
        a step) and prefill_ms (of a chunk) and the same with `_light`; reload_ms; accepted tokens, all_reduces and
        layers of a step; how.
    """
    way, isl, osl = deployment.scheduling, requests.isl, requests.osl
    c = np.maximum(requests.concurrency / way.replicas, 1.0)
    capacity = max_concurrency(deployment, isl + osl * (1.0 if deployment.engine.reserves_output else 0.5))
    active = np.minimum(c, np.maximum(capacity, 1.0))
    accepted = deployment.speculation.accepted if deployment.speculation else 1.0
    waves = deployment.engine.prefill_first or way.static
    group = active if way.static else np.clip(deployment.engine.token_budget // isl, 1.0, active)
    columns: dict[str, Any] = {
        "concurrency": c, "isl": isl, "osl": osl, "capacity": capacity, "active": active, "context": isl + osl / 2,
        "group": group, "all_reduces": all_reduces(deployment), "layers": deployment.model.layers,
        "prefill_first": waves, "accepted": accepted,
        "reload_ms": reload_ms(deployment, requests.cached, requests.link_gb_per_s),
        **_meetings(way, waves, active, np.maximum(isl - requests.cached, 1.0), osl / accepted),
    }  # fmt: skip
    for end, kernels in ((KERNELS, source), (LIGHT, LightSpeed(deployment.gpu))):
        times, how = _steps(deployment, kernels, columns, requests.cached)
        columns |= {f"{name}{end}": ms for name, ms in times.items()}
        columns |= {"how": how} if end == KERNELS else {}
    return pd.DataFrame(columns)


def _meetings(way: Scheduling, waves: bool, active: Array, new: Array, steps: Array) -> dict[str, Array]:
    """How often one of a request's `steps` meets prompts of `new` tokens, and how long those wait."""
    nothing, one = np.zeros(active.shape), np.ones(active.shape)
    chunks = np.ceil(new / way.chunk) if way.chunk else one
    if waves:
        late = (way.longest - 1) * steps
        return {"chunks": chunks, "prompts": one, "mixed_share": nothing, "late_steps": late, "held_back": nothing}
    restarts = (active - 1) * chunks / np.maximum(steps, 1.0)
    most = np.maximum(way.chunk // new, 1.0) if way.chunk else np.maximum(restarts, 1.0) + 1
    prompts = np.minimum(np.maximum(np.ceil(restarts), 1.0), most)
    late = np.maximum((active - 1) * chunks / most - steps, 0.0)
    return {
        "chunks": chunks, "prompts": prompts, "mixed_share": np.minimum(restarts / prompts, 1.0), "late_steps": late,
        "held_back": late * most / chunks,
    }  # fmt: skip


def batches(deployment: Deployment, columns: Mapping[str, Any], cached: float) -> dict[str, Batch]:
    """The kinds of steps: all decode, decode beside prompts, decode of a token each, and one prompt (chunk) alone."""
    active, isl, prompts, chunks = (columns[name] for name in ("active", "isl", "prompts", "chunks"))
    none, one, new = np.zeros(isl.shape), np.ones(isl.shape), np.maximum(isl - cached, 1.0) / chunks
    decodes = np.ceil((active - columns["held_back"]) / deployment.pp)
    beside = np.maximum(decodes - prompts, 0.0)
    # On average half of a prompt's other chunks are before one, and are cached.
    common: dict[str, Any] = {"context": columns["context"], "new": new, "cached": cached + (chunks - 1) / 2 * new}
    queries = deployment.speculation.tokens + 1 if deployment.speculation else 1
    return {
        "decode_ms": Batch(decodes=decodes, prompts=none, queries=queries, **common),
        "mixed_ms": Batch(decodes=beside, prompts=prompts, queries=queries, **common),
        "plain_ms": Batch(decodes=decodes, prompts=none, **common),
        "prefill_ms": Batch(decodes=none, prompts=one, **common),
    }


def _steps(
    deployment: Deployment, source: KernelSource, columns: Mapping[str, Any], cached: float
) -> tuple[dict[str, Array], Whole]:
    times, origins = {}, []
    for name, batch in batches(deployment, columns, cached).items():
        if name == "plain_ms" and not deployment.speculation:
            continue
        ops = step_ops(deployment, source, batch)
        times[name] = total_us(ops) / 1e3
        # Glue and sampling are assumed in every step; what differs is the kernels.
        origins += [ops[op].how for op in ops if op not in ("glue", "sampling", "send_recv")]
    plain, draft = times.pop("plain_ms", times["decode_ms"]), deployment.speculation
    times["draft_ms"] = plain * (draft.tokens * draft.draft_cost if draft else 0.0)
    # A prompt occupies one stage of a pipeline at a time, and the others go on.
    times["mixed_ms"] = times["decode_ms"] + (times["mixed_ms"] - times["decode_ms"]) / deployment.pp
    return times, np.maximum.reduce(origins)


def answered(steps: pd.DataFrame, host: Host, end: str = KERNELS) -> pd.DataFrame:
    """The latencies: ttft_ms, tpot_ms, and of TPOT what decode alone, the host and the prompts of others take; waiting
    for memory, and the longest gap between two steps of a request.

    Args:
        host: ignored at the speed of light.
        end: KERNELS or LIGHT.
    """
    host = Host() if end == LIGHT else host
    c, osl, accepted = steps["active"], steps["osl"], steps["accepted"]
    kernels = steps[f"decode_ms{end}"] + steps[f"draft_ms{end}"]
    extra = host.step_us + host.all_reduce_us * steps["all_reduces"] + host.sequence_us * c
    eager = host.eager_layer_us * steps["layers"] / 1e3
    decode = kernels + extra / 1e3
    mixed = np.maximum(steps[f"mixed_ms{end}"] + steps[f"draft_ms{end}"], eager) + extra / 1e3
    prefill = np.maximum(steps[f"prefill_ms{end}"], eager) + host.all_reduce_us * steps["all_reduces"] / 1e3
    spread = ((1 - steps["mixed_share"]) * decode + steps["mixed_share"] * mixed) / accepted
    before, chunks = (c + steps["group"]) / 2, steps["chunks"]
    wave = decode / accepted + (c - before) * prefill * chunks / np.maximum(osl - 1, 1)
    tpot = np.where(steps["prefill_first"], wave, spread).astype(float)
    # A prompt joins the step after the one that runs when it comes.
    joined = np.where(c > 1, mixed * chunks + decode / 2, prefill * chunks)
    ttft = np.where(steps["prefill_first"], before * prefill * chunks, joined) + steps["reload_ms"]
    ttft = ttft + steps["late_steps"] * spread * accepted
    service = ttft + (osl - 1) * tpot
    waiting = (steps["concurrency"] / c - 1) * service
    paused = np.where(steps["prefill_first"], (c - steps["group"]) * prefill * chunks + decode, mixed)
    return pd.DataFrame(
        {
            "ttft_ms": ttft + waiting,
            "tpot_ms": np.where(osl > 1, tpot, np.nan),
            "decode_ms": kernels / accepted,
            "host_ms": (decode - kernels) / accepted,
            "interference_ms": tpot - decode / accepted,
            "waiting_ms": waiting,
            "longest_gap_ms": np.where(osl > 1, np.where(c > 1, paused, decode), np.nan),
        },
        index=steps.index,
    )
