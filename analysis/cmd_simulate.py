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
    model: options.Model = "llama-3.1-8b",
    model_config: options.Config = None,
    gpu: options.Gpu = "h100",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel GPUs.")] = 1,
    dtype: options.Dtype = "bf16",
    kv_dtype: options.KvDtype = "bf16",
    engine: options.Engine = "trtllm",
    isl: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 1024,
    osl: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 512,
    kernels: options.Kernels = "reference",
    requests: Annotated[int, typer.Option(min=1, help="Requests simulated.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the arrival times.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Simulates an open loop step by step: p50, p90 and p99 of TTFT, TPOT and E2E.

    Exit code 2: an unknown name, a size that does not fit the model or the memory, or a rate that is not positive.
    """
    from analysis.cmd_serve import deployed
    from analysis.serving.simulate import engine_of, poisson, quantiles, simulated

    try:
        deployment, source = deployed((model, model_config), (gpu, tp, 1), (dtype, kv_dtype), engine, kernels, 0.0)
        found = engine_of(deployment, source, isl, osl)
        told = quantiles(simulated(found, poisson(rate, requests, seed), osl))
    except (ValueError, OSError) as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE) from error
    if as_json:
        plain = {name: {q: None if v != v else v for q, v in values.items()} for name, values in told.items()}
        typer.echo(json.dumps({"slots": found.slots, "requests": requests, **plain}))
        return
    typer.echo("| ms | p50 | p90 | p99 |\n|---|---:|---:|---:|")
    for name, values in told.items():
        typer.echo(f"| {name.removesuffix('_ms').upper()} | " + " | ".join(f"{v:.1f}" for v in values.values()) + " |")
