"""The predictor against real engines: one prediction a measured run, and its error by set.

Only what a run's label tells is read; columns with other predictions serve the comparison and may be missing. A run
is flagged when it was faster than the speed of light of its own label: its label or its measurement is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.serving.deployment import DTYPES, ENGINES, Deployment, Host, host_of
from analysis.serving.hugging_face import model_of_path
from analysis.serving.kernel_source import KernelSource
from analysis.serving.load import LIGHT, Requests, answered, closed_loop

GPU_OF_SYSTEM: Mapping[str, str] = {"h100_sxm": "H100 SXM5 80GB", "h200_sxm": "H200 SXM 141GB"}
LABEL = ("system", "model_path", "backend", "gemm_quant", "tp_size", "inferencemax_lengths_x0.9")
"""Columns that make a deployment."""
MEASURED = ("silicon_ttft_ms", "silicon_tpot_ms")
NEEDED = ("id", *LABEL, "concurrency", "isl", "osl", *MEASURED)
RUNS = Path(__file__).parents[1] / "data" / "e2e_validation.csv"
PEERS = ("aic_fp8static_tpot_ms", "aic_tpot_ms")
"""The comparison's columns, the first that a run has."""
MEAN_LENGTH = 0.9
"""Mean of lengths drawn evenly from 0.8 to 1 of the nominal ones."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of a group of runs, in percent, over those not flagged."""

    rows: int
    rows_flagged: int
    mean_ape_percent: float
    median_ape_percent: float
    bias_percent: float
    ttft_median_ape_percent: float
    peer_rows: int
    peer_mean_ape_percent: float
    mean_ape_percent_on_peer_rows: float


def read(path: Path) -> pd.DataFrame:
    """The file's runs. A measurement may be empty, and so may whether lengths are the mean ones: they are not then.

    Raises:
        ValueError: a file that is no table, a missing column, or a run without a value that a prediction needs.
    """
    try:
        runs = pd.read_csv(path)
    except ValueError as error:  # pandas' own and a wrong encoding's are
        raise ValueError(f"{path}: no table: {error}") from error
    missing = [name for name in NEEDED if name not in runs]
    if missing:
        raise ValueError(f"{path}: no column {', '.join(missing)}; needed: {', '.join(NEEDED)}")
    runs["inferencemax_lengths_x0.9"] = runs["inferencemax_lengths_x0.9"].map(_is_true)
    for name, least in (("tp_size", 1), ("concurrency", 1), ("isl", 1), ("osl", 0)):
        numbers = pd.to_numeric(runs[name], errors="coerce")
        _refuse(path, runs, numbers.isna() | (numbers < least), f"{name} of {least} or more")
        runs[name] = numbers
    for name in ("system", "model_path", "backend", "gemm_quant"):
        _refuse(path, runs, runs[name].isna(), name)
    for name in MEASURED:
        numbers = pd.to_numeric(runs[name], errors="coerce")
        _refuse(path, runs, numbers.isna() & runs[name].notna(), f"number in {name}")
        runs[name] = numbers
    return runs


def _refuse(path: Path, runs: pd.DataFrame, wrong: pd.Series[bool], wanted: str) -> None:
    if wrong.any():
        first = runs["id"][wrong.to_numpy()].iloc[0]
        raise ValueError(f"{path}: run {first} (of {int(wrong.sum())}) has no {wanted}")


def deployment_of(label: Mapping[str, Any]) -> Deployment:
    """What a run's label says was deployed. Raises ValueError for a value that is not known."""
    quantised = str(label["gemm_quant"]).rstrip("?")
    for what, value, known in (
        ("system", label["system"], GPU_OF_SYSTEM), ("gemm_quant", quantised, DTYPES),
        ("backend", label["backend"], ENGINES),
    ):  # fmt: skip
        if value not in known:
            raise ValueError(f"unknown {what} {value!r}; known: {', '.join(known)}")
    engine = ENGINES[label["backend"]]
    fp8_kv = _is_true(label["inferencemax_lengths_x0.9"]) or (quantised == "fp8" and engine.checkpoint_kv)
    return Deployment(
        model=model_of_path(str(label["model_path"])),
        gpu=GPU_OF_SYSTEM[label["system"]],
        tp=int(label["tp_size"]),
        dtype=DTYPES[quantised],
        kv_dtype="float8_e4m3fn" if fp8_kv else "bfloat16",
        engine=engine,
    )


def _is_true(value: object) -> bool:
    return str(value).lower() in ("true", "1", "1.0")


def steps_of(runs: pd.DataFrame) -> pd.DataFrame:
    """`closed_loop` of every run, in their order, with `backend` and `set`.

    Raises:
        ValueError: a label that is no deployment; the message names the first such run.
    """
    sources: dict[tuple[str, str], KernelSource] = {}
    parts = []
    for label, rows in runs.groupby(list(LABEL), sort=False):
        try:
            deployment = deployment_of(dict(zip(LABEL, label, strict=True)))
        except ValueError as error:
            raise ValueError(f"run {rows['id'].iloc[0]}: {error}") from error
        key = (deployment.gpu, deployment.engine.framework)
        source = sources.setdefault(key, KernelSource(*key))
        scale = MEAN_LENGTH if _is_true(label[-1]) else 1.0
        asked = (rows[name].to_numpy(dtype=float) for name in ("concurrency", "isl", "osl"))
        c, isl, osl = asked
        steps = closed_loop(deployment, source, Requests(concurrency=c, isl=isl * scale, osl=osl * scale))
        parts.append(steps.set_index(rows.index).assign(backend=deployment.engine.name))
    names = runs["model_path"].str.rsplit("/").str[-1]
    return (
        pd.concat(parts)
        .reindex(runs.index)
        .assign(
            set=runs["system"].str.removesuffix("_sxm") + " " + names + " " + runs["gemm_quant"] + " " + runs["backend"]
        )
    )


def latencies(steps: pd.DataFrame, hosts: Mapping[str, Host] | None = None) -> pd.DataFrame:
    """`answered` of every run with its engine's host constants: the fitted ones unless others are given."""
    parts = []
    for backend, rows in steps.groupby("backend"):
        host = host_of(str(backend)) if hosts is None else hosts[str(backend)]
        parts.append(answered(rows, host))
    return pd.concat(parts).reindex(steps.index)


def validated(runs: pd.DataFrame, steps: pd.DataFrame, hosts: Mapping[str, Host] | None = None) -> pd.DataFrame:
    """One row a run: its label, predicted and measured latencies, the bound, whether flagged, errors in percent."""
    predicted, light = latencies(steps, hosts), answered(steps, Host(), LIGHT)
    measured = runs["silicon_tpot_ms"]
    peer = pd.Series(np.nan, index=runs.index)
    for name in PEERS:
        peer = peer.fillna(runs[name]) if name in runs else peer
    return pd.DataFrame(
        {
            "id": runs["id"],
            "set": steps["set"],
            "tp_size": runs["tp_size"].astype(int),
            "concurrency": runs["concurrency"].astype(int),
            "isl": runs["isl"],
            "osl": runs["osl"],
            "capacity": steps["capacity"].astype(int),
            "tpot_ms": predicted["tpot_ms"],
            "silicon_tpot_ms": measured,
            "speed_of_light_tpot_ms": light["tpot_ms"],
            "flagged": measured < light["tpot_ms"],
            "error_percent": (predicted["tpot_ms"] / measured - 1) * 100,
            "ttft_ms": predicted["ttft_ms"],
            "silicon_ttft_ms": runs["silicon_ttft_ms"],
            "ttft_error_percent": (predicted["ttft_ms"] / runs["silicon_ttft_ms"] - 1) * 100,
            "memory_limited": steps["capacity"] < steps["concurrency"],
            "peer_error_percent": (peer / measured - 1) * 100,
        }
    )


def summary(rows: pd.DataFrame) -> Summary:
    """Errors of the runs that are not flagged; NaN where there is none."""
    kept = rows[~rows["flagged"]]
    error, peer = kept["error_percent"], kept["peer_error_percent"].abs()
    return Summary(
        rows=len(rows),
        rows_flagged=int(rows["flagged"].sum()),
        mean_ape_percent=float(error.abs().mean()),
        median_ape_percent=float(error.abs().median()),
        bias_percent=float(error.median()),
        ttft_median_ape_percent=float(kept["ttft_error_percent"].abs().median()),
        peer_rows=int(peer.notna().sum()),
        peer_mean_ape_percent=float(peer.mean()),
        mean_ape_percent_on_peer_rows=float(error[peer.notna()].abs().mean()),
    )


def by_set(rows: pd.DataFrame) -> dict[str, Summary]:
    """Set -> its errors, by name."""
    return {str(name): summary(part) for name, part in rows.groupby("set")}
