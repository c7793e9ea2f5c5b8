"""Deployments of four models over GPUs, TP and load, and which of them nothing beats.

A row is on the frontier of its model and GPU when no other gives both more tokens a second to a user and more for a
GPU; dollars a token are those for a GPU turned round, so the same frontier.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.files import write_all
from analysis.serving.cost import usd_per_mtok
from analysis.serving.crossovers import as_markdown as crossovers
from analysis.serving.deployment import ENGINES, Deployment, host_of
from analysis.serving.elasticity_report import as_markdown as elasticity
from analysis.serving.grids import Array
from analysis.serving.kernel_source import KernelSource
from analysis.serving.load import Requests
from analysis.serving.predict import Terms, served
from analysis.serving.serve_report import trust
from analysis.serving.tutorial import as_markdown as tutorial
from kernels.models import model_named

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

CHOICES = (
    ("llama-3.1-8b", "bfloat16", "trtllm"), ("llama-3.1-70b", "float8_e4m3fn", "trtllm"),
    ("qwen3-30b-a3b", "bfloat16", "vllm"), ("deepseek-v3", "float8_e4m3fn.block128", "sglang"),
)  # fmt: skip
"""Model, dtype of its linear layers, engine."""
GPUS = ("H100 SXM5 80GB", "H200 SXM 141GB")
SIZES = (1, 2, 4, 8)
CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ISL, OSL = 1024, 512
USD_PER_GPU_HOUR = 2.5
"""Stated, not found: a round price of renting an H100 or an H200."""
COLUMNS = (
    "model", "gpu", "tp", "dtype", "engine", "concurrency", "max_concurrency", "ttft_ms", "tpot_ms", "e2e_ms",
    "tokens_per_s_user", "tokens_per_s_system", "tokens_per_s_gpu", "usd_per_mtok_output", "mfu", "mbu", "frontier",
)  # fmt: skip


def grid() -> pd.DataFrame:
    """One row a deployment and load that fits in memory without a queue."""
    rows = []
    sources = {(gpu, engine): KernelSource(gpu, engine) for gpu in GPUS for engine in ENGINES}
    for model, dtype, engine in CHOICES:
        for gpu in GPUS:
            for tp in SIZES:
                deployment = Deployment(
                    model=model_named(model), gpu=gpu, tp=tp, dtype=dtype, engine=ENGINES[engine], host=host_of(engine)
                )
                same = {"model": model, "gpu": gpu, "tp": tp, "dtype": dtype, "engine": engine}
                rows += [{**same, **told} for told in _served(deployment, sources[gpu, engine])]
    frame = pd.DataFrame(rows).assign(tokens_per_s_gpu=lambda f: f["tokens_per_s_system"] / f["tp"])
    return frame.assign(frontier=_frontier(frame))[list(COLUMNS)]


def _served(deployment: Deployment, source: KernelSource) -> list[dict[str, object]]:
    clients = np.array(CLIENTS, dtype=float)
    same = np.ones(clients.shape)
    requests = Requests(concurrency=clients, isl=same * ISL, osl=same * OSL)
    documents = served(deployment, source, requests, Terms(usd_per_gpu_hour=USD_PER_GPU_HOUR))
    return [d for d in documents if d["fits"] and not d["queued"]]


def _frontier(frame: pd.DataFrame) -> pd.Series[bool]:
    """Rows that no row of the same model and GPU beats in both rates."""
    on = pd.Series(False, index=frame.index)
    for _, rows in frame.groupby(["model", "gpu"]):
        ordered = rows.sort_values(["tokens_per_s_user", "tokens_per_s_gpu"], ascending=False)
        best = ordered["tokens_per_s_gpu"].astype(float).cummax().shift(fill_value=-np.inf)
        on[ordered.index[ordered["tokens_per_s_gpu"] > best]] = True
    return on


def pareto_figure(rows: pd.DataFrame) -> Figure:
    """A panel a model: tokens a second for a user against those for a GPU and dollars a million, the frontier of each
    GPU as a line."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(rows["model"]))
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(2, 2).flat
    for axes, model in zip(panels, models, strict=True):
        for gpu, colour in zip(GPUS, ("#0072B2", "#D55E00"), strict=True):
            own = rows[(rows["model"] == model) & (rows["gpu"] == gpu)]
            axes.scatter(own["tokens_per_s_user"], own["tokens_per_s_gpu"], s=9, color=colour, alpha=0.35)
            best = own[own["frontier"]].sort_values("tokens_per_s_user")
            label = gpu if len(own) else f"{gpu}: not on {max(SIZES)} GPUs"
            axes.plot(best["tokens_per_s_user"], best["tokens_per_s_gpu"], color=colour, label=label)
        axes.set(xscale="log", yscale="log", title=model, xlabel="tokens/s/user", ylabel="tokens/s/GPU")
        dollars = axes.secondary_yaxis("right", functions=(_usd_per_mtok, _usd_per_mtok))
        dollars.set_ylabel("$/Mtok of output")
        for axis in (axes.xaxis, axes.yaxis, dollars.yaxis):
            _plain_ticks(axis)
        axes.grid(visible=True, alpha=0.2)
        axes.legend(fontsize=8)
    figure.suptitle(
        f"Predicted, {ISL} + {OSL} tokens, TP 1 to 8, ${USD_PER_GPU_HOUR:.2f} a GPU and hour; nothing beats the lines"
    )
    return figure


def _usd_per_mtok(tokens_per_s_gpu: Array) -> Array:
    """Of one GPU; its own inverse."""
    return usd_per_mtok(np.maximum(tokens_per_s_gpu, 1e-9), 1, USD_PER_GPU_HOUR)


def _plain_ticks(axis: Axis) -> None:
    """1, 2 and 5 of each decade as plain numbers, and no other ticks."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=30))
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.set_minor_locator(NullLocator())


def _index(rows: pd.DataFrame) -> str:
    best = rows[rows["frontier"]].sort_values(["model", "gpu", "tokens_per_s_user"], ascending=[True, True, False])
    lines = [
        "# Serving figures, predicted from measured kernels", "",
        "`validation.md`: the predictor against 465 runs of real engines, by set (`python -m analysis validate -o "
        "reports/serving`). `tutorial.md`: the numbers of tutorials, recomputed. `crossovers.md`: where one thing "
        "overtakes another. `elasticity.md`: what 1 % of a kernel is worth. `grid.csv`: every deployment. "
        f"{ISL} + {OSL} tokens, ${USD_PER_GPU_HOUR:.2f} a GPU and hour (stated). Nothing here was measured by this "
        "suite. Experts: published layers with their tokens spread evenly, scaled to the experts that an even router "
        "is expected to hit; SGLang's and vLLM's rows of DeepSeek-V3 beat the datasheet and TensorRT-LLM's stand in.",
        "",
        "![Pareto](pareto.png)", "",
        "| model | GPU | TP | clients | TTFT ms | TPOT ms | tok/s/user | tok/s/GPU | $/Mtok out |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    lines += [
        f"| {r.model} | {r.gpu} | {r.tp} | {r.concurrency} | {r.ttft_ms:.0f} | {r.tpot_ms:.2f} | "
        f"{r.tokens_per_s_user:.0f} | {r.tokens_per_s_gpu:.0f} | {r.usd_per_mtok_output:.3f} |"
        for r in best.itertuples()
    ]
    for engine in dict.fromkeys(engine for _, _, engine in CHOICES):
        lines += ["", f"{engine}: " + ". ".join(trust(ENGINES[engine], host_of(engine)))]
    return "\n".join([*lines, ""])


def write_report(directory: Path) -> list[str]:
    """Writes the pages, grid.csv and pareto.png; a line for each that could not be."""
    from analysis import panels

    rows = grid()
    made: dict[Path, Callable[[], str | bytes]] = {
        directory / "README.md": lambda: _index(rows),
        directory / "tutorial.md": tutorial,
        directory / "crossovers.md": crossovers,
        directory / "elasticity.md": lambda: elasticity(USD_PER_GPU_HOUR),
        directory / "grid.csv": lambda: rows.round(4).to_csv(index=False, lineterminator="\n"),
        directory / "pareto.png": lambda: panels.png(pareto_figure(rows)),
    }
    return write_all(made)
