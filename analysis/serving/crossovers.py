"""Where one thing overtakes another, from the curves of measured kernels: a page for two models and two GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from analysis.serving.deployment import Deployment, host_of
from analysis.serving.kernel_source import KernelSource
from analysis.serving.load import Requests, answered, closed_loop
from analysis.serving.techniques import (
    context_of_equal_reading,
    critical_batch,
    flat_batch,
    reload_or_recompute,
    speculation_break_even,
)
from analysis.serving.tutorial import DRAFT
from kernels.models import model_named

PLACES = tuple(
    (model, gpu) for model in ("llama-3.1-8b", "llama-3.1-70b") for gpu in ("H100 SXM5 80GB", "H200 SXM 141GB")
)
TP = 4
BATCH, PROMPT = 64, 8192
Row = Callable[[Deployment, KernelSource], str]


def scaling(deployment: Deployment, source: KernelSource, sizes: tuple[int, ...] = (4, 8)) -> float:
    """How many times as fast one client's TPOT is on the second number of GPUs as on the first."""
    asked = Requests(concurrency=np.array([1.0]), isl=np.array([1024.0]), osl=np.array([512.0]))
    few, many = (
        float(answered(closed_loop(replace(deployment, tp=tp), source, asked), deployment.host)["tpot_ms"].iloc[0])
        for tp in sizes
    )
    return few / many


def _reload(deployment: Deployment, source: KernelSource) -> str:
    reload, recompute = reload_or_recompute(deployment, source, [float(PROMPT)])
    return f"{reload[0]:.0f} / {recompute[0]:.0f}"


def _break_even(deployment: Deployment, source: KernelSource) -> str:
    found = speculation_break_even(replace(deployment, speculation=DRAFT), source, 1.0)
    return "-" if found is None else f"{found:.0f}"


ROWS: tuple[tuple[str, Row], ...] = (
    ("batch of the measured ridge", lambda d, s: f"{critical_batch(d, s):.0f}"),
    ("batch up to which a step takes 25 % more than of one", lambda d, s: str(flat_batch(d, s))),
    (f"keys of each of {BATCH} at which KV is read as much as weights",
     lambda d, s: f"{context_of_equal_reading(d, BATCH):,.0f}"),
    (f"batch at which a draft of {DRAFT.tokens} (acceptance {DRAFT.acceptance}, cost {DRAFT.draft_cost}) stops paying",
     _break_even),
    (f"ms to reload / recompute a prompt of {PROMPT:,}", _reload),
    ("TPOT of one client, TP 8 against 4", lambda d, s: f"{scaling(d, s):.2f} x"),
)  # fmt: skip


def as_markdown() -> str:
    """The page."""
    deployments = [
        Deployment(model=model_named(model), gpu=gpu, tp=TP, host=host_of("trtllm")) for model, gpu in PLACES
    ]
    sources = {gpu: KernelSource(gpu, "trtllm") for _, gpu in PLACES}
    lines = [
        "# Crossovers", "", f"bfloat16, TP {TP}, TensorRT-LLM's published kernels, contexts of one key where none is "
        "told, KV of host memory over PCIe 5.0 x16 at 55 GB/s for each GPU.", "",
        "| | " + " | ".join(f"{model}, {gpu.split()[0]}" for model, gpu in PLACES) + " |",
        "|---|" + "---:|" * len(PLACES),
    ]  # fmt: skip
    lines += [f"| {what} | " + " | ".join(row(d, sources[d.gpu]) for d in deployments) + " |" for what, row in ROWS]
    return "\n".join([*lines, ""])
