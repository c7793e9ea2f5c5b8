"""`python -m analysis simulate`: requests that come at a rate, with the tail of their latencies.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from analysis import serve_options as options
from analysis.cmd_serve import USAGE


def simulate(
    rate: Annotated[float, typer.Option("--rate", help="Requests a second, independent of each other.")],
    model: options.Model = "llama-3.1-8b", model_config: options.Config = None, gpu: options.Gpu = "h100",
    tp: options.Tp = 1, pp: options.Pp = 1, ep: options.Ep = 1, replicas: options.Replicas = 1,
    dtype: options.Dtype = "bf16", kv_dtype: options.KvDtype = "bf16", engine: options.Engine = "trtllm",
    isl: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 1024,
    osl: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 512,
    kernels: options.Kernels = "reference", batching: options.Batching = "continuous", chunk: options.Chunk = 0,
    draft: options.Draft = 0, acceptance: options.Acceptance = 0.8, draft_cost: options.DraftCost = 0.0,
    prefix_hit_rate: options.HitRate = 0.0, slo: options.Slo = "", slo_ttft: options.SloTtft = None,
    slo_tpot: options.SloTpot = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests simulated.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the arrival times.")] = 0, as_json: options.Json = False,
) -> None:  # fmt: skip
    """Simulates an open loop step by step: p50, p90 and p99 of TTFT, TPOT and E2E; with limits, goodput.

    Exit code 2: an unknown name, a size that does not fit the model or the memory, or a rate that is not positive.
    """
    from analysis.cmd_serve import deployed, limits_of, scheduled
    from analysis.serving.simulate import engine_of, goodput_per_s, on_replicas, poisson, quantiles

    way = {"replicas": replicas, "batching": batching, "chunk": chunk}
    try:
        deployment, source = deployed((model, model_config), (gpu, tp, pp), (dtype, kv_dtype), engine, kernels, 0.0)
        found = engine_of(
            scheduled(deployment, ep, (draft, acceptance, draft_cost), way), source, isl, osl, isl * prefix_hit_rate
        )
        limits, arrivals = limits_of(slo, slo_ttft, slo_tpot), poisson(rate, requests, seed)
    except (ValueError, OSError) as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE) from error
    answers = on_replicas(found, replicas, arrivals, osl)
    met = goodput_per_s(answers, arrivals, limits) if limits else None
    typer.echo(_printed(quantiles(answers), {"slots": found.slots, "requests": requests}, limits, met, as_json))


def _printed(
    told: dict[str, dict[str, float]], sizes: dict[str, int], limits: tuple[float, float] | None,
    met: tuple[float, float] | None, as_json: bool,
) -> str:  # fmt: skip
    if as_json:
        plain = {name: {q: None if v != v else v for q, v in values.items()} for name, values in told.items()}
        goodput = {} if met is None else {"slo_met_share": met[0], "goodput_requests_per_s": met[1]}
        return json.dumps({**sizes, **plain, **goodput})
    rows = [
        f"| {name.removesuffix('_ms').upper()} | " + " | ".join(f"{v:.1f}" for v in values.values()) + " |"
        for name, values in told.items()
    ]
    if limits is not None and met is not None:
        met_by = f"{100 * met[0]:.1f} % of {sizes['requests']} requests meet"
        rows.append(f"{met_by} TTFT {limits[0]:g} ms and TPOT {limits[1]:g} ms: goodput {met[1]:.3g} requests/s")
    return "\n".join(["| ms | p50 | p90 | p99 |", "|---|---:|---:|---:|", *rows])
