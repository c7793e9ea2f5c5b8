"""`python -m analysis serve`: TTFT, TPOT, throughput, memory and cost of a deployment, from kernels.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from analysis import serve_options as options

if TYPE_CHECKING:
    from analysis.serving.deployment import Deployment
    from analysis.serving.kernel_source import KernelSource

USAGE = 2
NOT_FITTING = 3


def serve(
    model: options.Model = "llama-3.1-8b", model_config: options.Config = None, gpu: options.Gpu = "h100",
    tp: options.Tp = 1, pp: options.Pp = 1, ep: options.Ep = 1, replicas: options.Replicas = 1,
    dtype: options.Dtype = "bf16", kv_dtype: options.KvDtype = "bf16", engine: options.Engine = "trtllm",
    isl: options.Isl = 1024, osl: options.Osl = 512, concurrency: options.Concurrency = "1,8,64",
    kernels: options.Kernels = "reference", kernels_only: options.KernelsOnly = False, host_us: options.HostUs = 0.0,
    batching: options.Batching = "continuous", longest: options.Longest = 1.0, chunk: options.Chunk = 0,
    draft: options.Draft = 0, acceptance: options.Acceptance = 0.8, draft_cost: options.DraftCost = 0.0,
    page_size: options.PageSize = 0, reserve: options.Reserve = 0, prefix_hit_rate: options.HitRate = 0.0,
    offload: options.Offload = False, pcie: options.Pcie = 55.0, price: options.Price = None, slo: options.Slo = "",
    slo_ttft: options.SloTtft = None, slo_tpot: options.SloTpot = None, as_json: options.Json = False,
) -> None:  # fmt: skip
    """Predicts TTFT, TPOT, throughput, memory and cost of a closed loop, and where each millisecond comes from.

    Exit code 2: an unknown name or a size that does not fit the model; 3: nothing fits in memory.
    """
    host = None if kernels_only else host_us
    way = {"replicas": replicas, "batching": batching, "longest": longest, "chunk": chunk, "page": page_size,
           "reserved": reserve}  # fmt: skip
    try:
        deployment, source = deployed((model, model_config), (gpu, tp, pp), (dtype, kv_dtype), engine, kernels, host)
        deployment = scheduled(deployment, ep, (draft, acceptance, draft_cost), way)
        limits = limits_of(slo, slo_ttft, slo_tpot)
        cache = (prefix_hit_rate, _link(offload, pcie, prefix_hit_rate))
        asked = (_clients(concurrency), (isl, osl), cache, (price, limits))
        documents = _documents(deployment, source, *asked)
        _add_spread(deployment, kernels, documents, *asked)
    except (ValueError, OSError) as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE) from error
    typer.echo(_printed(deployment, documents, limits, as_json))
    if not any(d["fits"] for d in documents):
        raise typer.Exit(NOT_FITTING)


def scheduled(
    deployment: Deployment, ep: int, draft: tuple[int, float, float], way: dict[str, Any]
) -> Deployment:  # fmt: skip
    from dataclasses import replace

    from analysis.serving.scheduling import Scheduling
    from analysis.serving.speculation import Speculation

    tokens, acceptance, cost = draft
    speculation = Speculation(tokens=tokens, acceptance=acceptance, draft_cost=cost) if tokens else None
    return replace(deployment, ep=ep, speculation=speculation, scheduling=Scheduling(**way))


def _link(offload: bool, gb_per_s: float, hit: float) -> float:
    """GB/s of the link that a hit comes over, 0 where the GPU has it."""
    if not offload:
        return 0.0
    if not hit or gb_per_s <= 0:
        raise ValueError(f"--offload wants --prefix-hit-rate and --pcie above 0, got {hit:g} and {gb_per_s:g}")
    return gb_per_s


def _documents(
    deployment: Deployment, source: KernelSource, clients: list[float], lengths: tuple[int, int],
    cache: tuple[float, float], terms: tuple[float | None, tuple[float, float] | None],
) -> list[dict[str, Any]]:  # fmt: skip
    import numpy as np

    from analysis.serving.load import Requests
    from analysis.serving.predict import Terms, served

    prompt, answer = np.full(len(clients), max(lengths[0], 1.0)), np.full(len(clients), float(lengths[1]))
    requests = Requests(
        concurrency=np.array(clients), isl=prompt, osl=answer, cached=lengths[0] * cache[0], link_gb_per_s=cache[1]
    )
    return served(deployment, source, requests, Terms(usd_per_gpu_hour=terms[0], slo=terms[1]))


def _add_spread(
    deployment: Deployment, kernels: str, documents: list[dict[str, Any]], clients: list[float],
    lengths: tuple[int, int], cache: tuple[float, float], terms: tuple[float | None, tuple[float, float] | None],
) -> None:  # fmt: skip
    """Beside a run's kernels: TPOT and $/Mtok at both ends of their intervals, and with published kernels instead,
    the engine's framework's and the fastest of all."""
    from analysis.frame import load
    from analysis.serving.kernel_source import KINDS, KernelSource
    from analysis.serving.recorded import Recorded

    if kernels in KINDS:
        return
    frame, framework = load([Path(kernels)]).frame, deployment.engine.framework
    swapped = KernelSource(deployment.gpu, framework)
    sources = {
        end: KernelSource(deployment.gpu, framework, records=Recorded(frame, swapped.attainable, column=f"{end}_us"))
        for end in ("low", "high")
    }
    for name, source in (
        sources | {"reference": swapped, "fastest": KernelSource(deployment.gpu, framework, "fastest")}
    ).items():
        others = _documents(deployment, source, clients, lengths, cache, terms)
        for document, other in zip(documents, others, strict=True):
            document |= {f"{figure}_{name}": other[figure] for figure in ("tpot_ms", "usd_per_mtok_output")}


def _printed(
    deployment: Deployment, documents: list[dict[str, Any]], limits: tuple[float, float] | None, as_json: bool
) -> str:
    from analysis.serving.predict import meeting
    from analysis.serving.serve_report import as_text, assumptions, has_spread

    met = meeting(documents, limits) if limits else ""
    if not as_json:
        return as_text(deployment, documents, met)
    told = {"model": deployment.model.name, "gpu": deployment.gpu, "gpus": deployment.all_gpus, "loads": documents}
    behind = assumptions(deployment, spread=has_spread(documents))
    return json.dumps({**told, "slo": met, "assumptions": behind}, allow_nan=False)


def deployed(
    named: tuple[str, Path | None], parts: tuple[str, int, int], dtypes: tuple[str, str], engine: str, kernels: str,
    host_us: float | None,
) -> tuple[Deployment, KernelSource]:  # fmt: skip
    from dataclasses import replace

    from analysis.frame import load
    from analysis.serving.attainable import expected
    from analysis.serving.deployment import DTYPES, ENGINES, GPUS, Deployment, Host, host_of
    from analysis.serving.hugging_face import model_of_path, read_config
    from analysis.serving.kernel_source import KINDS, KernelSource
    from analysis.serving.recorded import Recorded

    for what, value, known in (
        ("dtype", dtypes[0], DTYPES),
        ("kv dtype", dtypes[1], DTYPES),
        ("engine", engine, ENGINES),
    ):
        if value not in known:
            raise ValueError(f"unknown {what} {value!r}; known: {', '.join(known)}")
    gpu, tp, pp = parts
    part = GPUS.get(gpu, gpu)
    records = None if kernels in KINDS else Recorded(load([Path(kernels)]).frame, expected(part))
    source = KernelSource(part, ENGINES[engine].framework, kernels if kernels in KINDS else "reference", records)
    deployment = Deployment(
        model=read_config(named[1]) if named[1] else model_of_path(named[0]),
        gpu=part, tp=tp, pp=pp, dtype=DTYPES[dtypes[0]], kv_dtype=DTYPES[dtypes[1]], engine=ENGINES[engine],
        host=Host() if host_us is None else replace(host_of(engine), step_us=host_us),
    )  # fmt: skip
    return deployment, source


def _clients(text: str) -> list[float]:
    try:
        clients = [float(int(part)) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--concurrency wants whole numbers, comma-separated, got {text!r}") from error
    if min(clients) < 1:
        raise ValueError(f"--concurrency wants at least 1 client, got {text!r}")
    return clients


def limits_of(slo: str, ttft: float | None, tpot: float | None) -> tuple[float, float] | None:
    from analysis.serving.predict import SLOS

    if slo and slo not in SLOS:
        raise ValueError(f"unknown SLO {slo!r}; known: {', '.join(SLOS)}")
    if not slo and ttft is None and tpot is None:
        return None
    named = SLOS.get(slo, (float("inf"), float("inf")))
    return ttft if ttft is not None else named[0], tpot if tpot is not None else named[1]
