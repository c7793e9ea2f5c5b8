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
from analysis.serving.crossovers import as_markdown as crossovers
from analysis.serving.deployment import ENGINES, Deployment, host_of
from analysis.serving.kernel_source import KernelSource
from analysis.serving.load import Requests
from analysis.serving.predict import Terms, served
from analysis.serving.serve_report import assumptions
from analysis.serving.tutorial import as_markdown as tutorial
from kernels.models import model_named

if TYPE_CHECKING:
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
TICKS = (10, 20, 50, 100, 200, 500, 1000)
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
    """A panel a model: tokens a second for a user against those for a GPU, the frontier of each GPU as a line."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, NullFormatter

    models = list(dict.fromkeys(rows["model"]))
    figure = Figure(figsize=(10, 7), layout="constrained")
    panels = figure.subplots(2, 2).flat
    for axes, model in zip(panels, models, strict=True):
        for gpu, colour in zip(GPUS, ("#0072B2", "#D55E00"), strict=True):
            own = rows[(rows["model"] == model) & (rows["gpu"] == gpu)]
            axes.scatter(own["tokens_per_s_user"], own["tokens_per_s_gpu"], s=9, color=colour, alpha=0.35)
            best = own[own["frontier"]].sort_values("tokens_per_s_user")
            axes.plot(best["tokens_per_s_user"], best["tokens_per_s_gpu"], color=colour, label=gpu)
        axes.set(xscale="log", yscale="log", title=model, xlabel="tokens/s/user", ylabel="tokens/s/GPU")
        axes.set_xticks([t for t in TICKS if axes.get_xlim()[0] <= t <= axes.get_xlim()[1]])
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(visible=True, which="both", alpha=0.2)
        axes.legend(fontsize=8)
    figure.suptitle(f"Predicted, {ISL} + {OSL} tokens, TP 1 to 8: lines are what nothing beats")
    return figure


def _index(rows: pd.DataFrame) -> str:
    best = rows[rows["frontier"]].sort_values(["model", "gpu", "tokens_per_s_user"], ascending=[True, True, False])
    lines = [
        "# Serving figures, predicted from measured kernels", "",
        "`validation.md`: the predictor against 465 runs of real engines, by set (`python -m analysis validate -o "
        "reports/serving`). `tutorial.md`: the numbers of tutorials, recomputed. `crossovers.md`: where one thing "
        "overtakes another. `grid.csv`: every deployment. "
        f"{ISL} + {OSL} tokens, ${USD_PER_GPU_HOUR:.2f} a GPU and hour (stated). Nothing here was measured by this "
        "suite; experts have no kernel data and are assumed as efficient as dense layers.", "",
        "![Pareto](pareto.png)", "",
        "| model | GPU | TP | clients | TTFT ms | TPOT ms | tok/s/user | tok/s/GPU | $/Mtok out |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    lines += [
        f"| {r.model} | {r.gpu} | {r.tp} | {r.concurrency} | {r.ttft_ms:.0f} | {r.tpot_ms:.2f} | "
        f"{r.tokens_per_s_user:.0f} | {r.tokens_per_s_gpu:.0f} | {r.usd_per_mtok_output:.3f} |"
        for r in best.itertuples()
    ]
    return "\n".join([*lines, "", *assumptions(Deployment(model=model_named("llama-3.1-8b"), gpu=GPUS[0]))[2:], ""])


def write_report(directory: Path) -> list[str]:
    """Writes README.md, tutorial.md, crossovers.md, grid.csv and pareto.png; a line for each that could not be."""
    from analysis import panels

    rows = grid()
    made: dict[Path, Callable[[], str | bytes]] = {
        directory / "README.md": lambda: _index(rows),
        directory / "tutorial.md": tutorial,
        directory / "crossovers.md": crossovers,
        directory / "grid.csv": lambda: rows.round(4).to_csv(index=False, lineterminator="\n"),
        directory / "pareto.png": lambda: panels.png(pareto_figure(rows)),
    }
    return write_all(made)
