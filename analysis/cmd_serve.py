"""`python -m analysis serve`: TTFT, TPOT, throughput, memory and cost of a deployment, from kernels.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from analysis.serving.deployment import Deployment
    from analysis.serving.kernel_source import KernelSource

USAGE = 2
NOT_FITTING = 3

ModelOption = Annotated[str, typer.Option("--model", help="A model of kernels.models, or its Hugging Face name.")]
ConfigOption = Annotated[Path | None, typer.Option("--model-config", help="A Hugging Face config.json instead.")]
GpuOption = Annotated[str, typer.Option("--gpu", help="h100, h200, or a part of analysis/data/gpu_peaks.json.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="Linear layers: bf16, fp8, fp8_block, int4.")]
KvOption = Annotated[str, typer.Option("--kv-dtype", help="KV cache: bf16 or fp8.")]
EngineOption = Annotated[str, typer.Option("--engine", help="trtllm, vllm or sglang.")]
LoadOption = Annotated[str, typer.Option("--concurrency", help="Clients, comma-separated.")]
KernelsOption = Annotated[
    str, typer.Option("--kernels", help="reference, roofline, or the directory of a run: its records come first.")
]
OnlyOption = Annotated[bool, typer.Option("--kernels-only", help="Leave out the fitted host constants.")]
HostOption = Annotated[float, typer.Option("--host-us", min=0, help="Host time of each engine step, us.")]
CachedOption = Annotated[float, typer.Option("--prefix-hit", min=0, max=1, help="Part of a prompt found in a cache.")]
DraftOption = Annotated[int, typer.Option("--draft-tokens", min=0, help="Tokens a draft proposes each step.")]
AcceptanceOption = Annotated[float, typer.Option("--acceptance", min=0, max=1, help="Chance that one is right.")]
DraftCostOption = Annotated[float, typer.Option("--draft-cost", min=0, help="Cost of one, of a plain decode step.")]
PriceOption = Annotated[float | None, typer.Option("--price", min=0, help="Dollars for a GPU and hour.")]
SloOption = Annotated[str, typer.Option("--slo", help="chat, interactive or batch.")]
TtftOption = Annotated[float | None, typer.Option("--slo-ttft", help="Most TTFT, ms.")]
TpotOption = Annotated[float | None, typer.Option("--slo-tpot", help="Most TPOT, ms.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Tokens = Annotated[int, typer.Option(min=0, help="Tokens.")]


def serve(
    model: ModelOption = "llama-3.1-8b",
    model_config: ConfigOption = None,
    gpu: GpuOption = "h100",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel GPUs.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 1,
    dtype: DtypeOption = "bf16",
    kv_dtype: KvOption = "bf16",
    engine: EngineOption = "trtllm",
    isl: Tokens = 1024,
    osl: Tokens = 512,
    concurrency: LoadOption = "1,8,64",
    kernels: KernelsOption = "reference",
    kernels_only: OnlyOption = False,
    host_us: HostOption = 0.0,
    prefix_hit: CachedOption = 0.0,
    draft_tokens: DraftOption = 0,
    acceptance: AcceptanceOption = 0.8,
    draft_cost: DraftCostOption = 0.0,
    price: PriceOption = None,
    slo: SloOption = "",
    slo_ttft: TtftOption = None,
    slo_tpot: TpotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predicts TTFT, TPOT, throughput, memory and cost of a closed loop, and where each millisecond comes from.

    Exit code 2: an unknown name or a size that does not fit the model; 3: nothing fits in memory.
    """
    try:
        deployment, source = deployed(
            (model, model_config), (gpu, tp, pp), (dtype, kv_dtype), engine, kernels, None if kernels_only else host_us
        )
        deployment = _drafted(deployment, draft_tokens, acceptance, draft_cost)
        limits = _limits(slo, slo_ttft, slo_tpot)
        asked = (_clients(concurrency), (isl, osl, prefix_hit), (price, limits))
        documents = _documents(deployment, source, *asked)
        _add_spread(deployment, kernels, documents, *asked)
    except (ValueError, OSError) as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE) from error
    typer.echo(_printed(deployment, documents, limits, as_json))
    if not any(d["fits"] for d in documents):
        raise typer.Exit(NOT_FITTING)


def _drafted(deployment: Deployment, tokens: int, acceptance: float, cost: float) -> Deployment:
    from dataclasses import replace

    from analysis.serving.speculation import Speculation

    draft = Speculation(tokens=tokens, acceptance=acceptance, draft_cost=cost) if tokens else None
    return replace(deployment, speculation=draft)


def _documents(
    deployment: Deployment, source: KernelSource, clients: list[float], lengths: tuple[int, int, float],
    terms: tuple[float | None, tuple[float, float] | None],
) -> list[dict[str, Any]]:  # fmt: skip
    import numpy as np

    from analysis.serving.load import Requests
    from analysis.serving.predict import Terms, served

    isl, osl, hit = lengths
    prompt, answer = np.full(len(clients), max(isl, 1.0)), np.full(len(clients), float(osl))
    requests = Requests(concurrency=np.array(clients), isl=prompt, osl=answer, cached=isl * hit)
    return served(deployment, source, requests, Terms(usd_per_gpu_hour=terms[0], slo=terms[1]))


def _add_spread(
    deployment: Deployment, kernels: str, documents: list[dict[str, Any]], clients: list[float],
    lengths: tuple[int, int, float], terms: tuple[float | None, tuple[float, float] | None],
) -> None:  # fmt: skip
    """Beside a run's kernels: TPOT and $/Mtok at both ends of their intervals, and with published kernels instead."""
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
    for name, source in (sources | {"reference": swapped}).items():
        others = _documents(deployment, source, clients, lengths, terms)
        for document, other in zip(documents, others, strict=True):
            document |= {f"{figure}_{name}": other[figure] for figure in ("tpot_ms", "usd_per_mtok_output")}


def _printed(
    deployment: Deployment, documents: list[dict[str, Any]], limits: tuple[float, float] | None, as_json: bool
) -> str:
    from analysis.serving.predict import meeting
    from analysis.serving.serve_report import as_text, assumptions

    met = meeting(documents, limits) if limits else ""
    if not as_json:
        return as_text(deployment, documents, met)
    told = {"model": deployment.model.name, "gpu": deployment.gpu, "gpus": deployment.gpus, "loads": documents}
    return json.dumps({**told, "slo": met, "assumptions": assumptions(deployment)}, allow_nan=False)


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


def _limits(slo: str, ttft: float | None, tpot: float | None) -> tuple[float, float] | None:
    from analysis.serving.predict import SLOS

    if slo and slo not in SLOS:
        raise ValueError(f"unknown SLO {slo!r}; known: {', '.join(SLOS)}")
    if not slo and ttft is None and tpot is None:
        return None
    named = SLOS.get(slo, (float("inf"), float("inf")))
    return ttft if ttft is not None else named[0], tpot if tpot is not None else named[1]
