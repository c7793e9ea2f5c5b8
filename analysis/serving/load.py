"""Closed loop: c clients, each sending its next request when the last is answered, in closed form.

During one request's O steps every other slot restarts once, so a step meets q = (c - 1) / O prompts:
TPOT = (1 - w) decode + w mixed, with w = q / ceil(q) of the steps holding ceil(q) prompts. An engine that runs
waiting prompts first keeps equal requests in step: a wave of c prompts in groups of what a step takes, then O - 1
decode steps for all; on average a request's TTFT holds (c + group) / 2 prompts and the others delay its tokens.
More clients than fit in memory wait for a slot.
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
from analysis.serving.memory import max_concurrency
from analysis.serving.step import Batch, all_reduces, step_ops, total_us

KERNELS, LIGHT = "", "_light"
"""Ends of column names: of the kernels' times, and of the speed of light's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What the clients ask for, one array each: concurrency, prompt and output tokens, tokens found in a cache."""

    concurrency: Array
    isl: Array
    osl: Array
    cached: float = 0.0


def closed_loop(deployment: Deployment, source: KernelSource, requests: Requests) -> pd.DataFrame:
    """Step times of each load from kernels and at the speed of light; `answered` makes latencies of them.

    Returns:
        Per load: concurrency, isl, osl, capacity, active (of the clients, those that fit), context, group, prompts
        of a mixed step and mixed_share of the steps that are mixed; decode_ms, mixed_ms, draft_ms (of a step) and
        prefill_ms and the same with `_light`; accepted tokens, all_reduces and layers of a step; how.
    """
    c, isl, osl = requests.concurrency, requests.isl, requests.osl
    capacity = max_concurrency(deployment, isl + osl * (1.0 if deployment.engine.reserves_output else 0.5))
    active = np.minimum(c, np.maximum(capacity, 1.0))
    draft = deployment.speculation
    accepted = draft.accepted if draft else 1.0
    restarts = (active - 1) * accepted / np.maximum(osl, 1.0)
    prompts = np.maximum(np.ceil(restarts), 1.0)
    context = isl + osl / 2
    group = np.clip(deployment.engine.token_budget // isl, 1.0, active)
    columns: dict[str, Any] = {
        "concurrency": c, "isl": isl, "osl": osl, "capacity": capacity, "active": active, "context": context,
        "prompts": prompts, "mixed_share": restarts / prompts, "group": group,
        "all_reduces": all_reduces(deployment), "layers": deployment.model.layers,
        "prefill_first": deployment.engine.prefill_first, "accepted": accepted,
    }  # fmt: skip
    for end, kernels in ((KERNELS, source), (LIGHT, LightSpeed(deployment.gpu))):
        times, how = _steps(deployment, kernels, columns, requests.cached)
        columns |= {f"{name}{end}": ms for name, ms in times.items()}
        columns |= {"how": how} if end == KERNELS else {}
    return pd.DataFrame(columns)


def batches(deployment: Deployment, columns: Mapping[str, Any], cached: float) -> dict[str, Batch]:
    """The kinds of steps: all decode, decode beside prompts, decode of a token each, and one prompt alone."""
    active, isl, prompts = (columns[name] for name in ("active", "isl", "prompts"))
    none, one, new = np.zeros(isl.shape), np.ones(isl.shape), np.maximum(isl - cached, 1.0)
    decodes = np.ceil(active / deployment.pp)
    beside = np.maximum(decodes - prompts, 0.0)
    common: dict[str, Any] = {"context": columns["context"], "new": new, "cached": cached}
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
    """The latencies: ttft_ms, tpot_ms, and of TPOT what decode alone, the host and the prompts of others take.

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
    before = (c + steps["group"]) / 2
    wave = decode / accepted + (c - before) * prefill / np.maximum(osl - 1, 1)
    tpot = np.where(steps["prefill_first"], wave, spread).astype(float)
    # A prompt joins the step after the one that runs when it comes.
    ttft = np.where(steps["prefill_first"], before * prefill, np.where(c > 1, mixed + decode / 2, prefill))
    service = ttft + (osl - 1) * tpot
    waiting = (steps["concurrency"] / c - 1) * service
    return pd.DataFrame(
        {
            "ttft_ms": ttft + waiting,
            "tpot_ms": np.where(osl > 1, tpot, np.nan),
            "decode_ms": kernels / accepted,
            "host_ms": (decode - kernels) / accepted,
            "interference_ms": tpot - decode / accepted,
            "waiting_ms": waiting,
        },
        index=steps.index,
    )
