"""The host constants: fitted to measured engines, and what they are worth on sets they have not seen.

Four numbers for all engines and models together: what an all-reduce costs beside its kernel, what a sequence costs
vLLM's and SGLang's host in a step, and the host-bound time of a TensorRT-LLM layer that no CUDA graph holds. Every set
counts alike, whatever its rows. The kernels' times are never fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from analysis.serving.deployment import Host
from analysis.serving.validate import by_set, latencies, summary, validated

START = (5.0, 30.0, 30.0, 500.0)
"""all_reduce_us, sequence_us of vLLM and of SGLang, eager_layer_us of TensorRT-LLM."""

MOSTLY = 0.5
"""A set with a greater share of flagged runs is mislabelled, and its other runs teach nothing either."""


def hosts(values: Sequence[float]) -> dict[str, Host]:
    """The constants as engines take them."""
    all_reduce, vllm, sglang, layer = (abs(float(value)) for value in values)
    return {
        "trtllm": Host(all_reduce_us=all_reduce, eager_layer_us=layer),
        "vllm": Host(all_reduce_us=all_reduce, sequence_us=vllm),
        "sglang": Host(all_reduce_us=all_reduce, sequence_us=sglang),
    }


def fitted(runs: pd.DataFrame, steps: pd.DataFrame, flagged: pd.Series[bool]) -> dict[str, Host]:
    """The constants with the least mean relative error, mean over sets."""
    from scipy.optimize import minimize

    mislabelled = flagged.groupby(steps["set"]).transform("mean") > MOSTLY
    kept = ~flagged & ~mislabelled
    steps, measured = steps[kept], runs.loc[kept, "silicon_tpot_ms"]
    weights = 1 / steps.groupby("set")["set"].transform("size")

    def error(values: Sequence[float]) -> float:
        predicted = latencies(steps, hosts(values))["tpot_ms"]
        return float(((predicted / measured - 1).abs() * weights).sum() / weights.sum())

    values: Any = START
    for _ in range(2):  # from where the first search ended, with a fresh simplex
        values = minimize(error, values, method="Nelder-Mead", options={"xatol": 1e-2, "fatol": 1e-6}).x
    return hosts(values)


def cross_validated(runs: pd.DataFrame, steps: pd.DataFrame) -> tuple[dict[str, Host], pd.DataFrame]:
    """The constants of all sets, and `validated` rows where each set is predicted by constants of the others."""
    flagged = validated(runs, steps, hosts([0.0] * len(START)))["flagged"]
    parts = []
    for name in steps["set"].unique():
        own = steps["set"] == name
        unseen = fitted(runs[~own], steps[~own], flagged[~own])
        parts.append(validated(runs[own], steps[own], unseen))
    return fitted(runs, steps, flagged), pd.concat(parts).reindex(runs.index)


def document(constants: Mapping[str, Host], unseen: pd.DataFrame, source: str) -> dict[str, Any]:
    """What `analysis/data/serving_constants.json` holds."""
    engines = {
        name: {key: round(value, 2) for key, value in asdict(host).items() if value} for name, host in constants.items()
    }
    overall = summary(unseen)
    return {
        "fitted_to": source,
        "engines": engines,
        "cross_validated_over_sets": {
            "mean_ape_percent": round(overall.mean_ape_percent, 2),
            "median_ape_percent": round(overall.median_ape_percent, 2),
            "sets": {
                name: round(s.mean_ape_percent, 2)
                for name, s in by_set(unseen).items()
                if not np.isnan(s.mean_ape_percent)
            },
        },
    }
