"""What 1 % of a kernel is worth: each op made 1 % faster in every step, and the same load answered again.

A share of TPOT says where time is; this says what optimising buys. The two differ where the host bounds a step, where
an op also delays first tokens, and where time is no kernel's: the ops' gains then do not sum to 1 % of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.serving.deployment import Deployment
from analysis.serving.grids import Array
from analysis.serving.kernel_source import KernelSource
from analysis.serving.load import BATCHED, answered, batches
from analysis.serving.metrics import e2e_ms
from analysis.serving.step import step_ops

PERCENT = 0.01


@dataclass(frozen=True, slots=True)
class Gain:
    """Of 1 % of an op, one value a load: milliseconds of TPOT, and the part of E2E, and so of $ a token, it saves."""

    tpot_ms: Array
    cost: Array


def gains(deployment: Deployment, source: KernelSource, steps: pd.DataFrame, cached: float) -> dict[str, Gain]:
    """Op -> what 1 % of it is worth at each load of `steps`, as `closed_loop` gives them."""
    kinds = batches(deployment, {name: steps[name].to_numpy() for name in BATCHED}, cached)
    ops = {kind: step_ops(deployment, source, batch) for kind, batch in kinds.items()}
    draft = deployment.speculation
    drafted = draft.tokens * draft.draft_cost if draft else 0.0
    before = answered(steps, deployment.host)
    found = {}
    for op in ops["decode_ms"]:
        saved = {kind: PERCENT * cells[op].time_us / 1e3 for kind, cells in ops.items()}
        beside = saved["decode_ms"] + (saved["mixed_ms"] - saved["decode_ms"]) / deployment.pp
        faster = steps.assign(
            decode_ms=steps["decode_ms"] - saved["decode_ms"],
            mixed_ms=steps["mixed_ms"] - beside,
            prefill_ms=steps["prefill_ms"] - saved["prefill_ms"],
            draft_ms=steps["draft_ms"] - saved["plain_ms"] * drafted,
        )
        after = answered(faster, deployment.host)
        least, most = (e2e_ms(a["ttft_ms"], a["tpot_ms"], steps["osl"]) for a in (after, before))
        found[op] = Gain((before["tpot_ms"] - after["tpot_ms"]).to_numpy(), 1 - least / most)
    return found
