"""`python -m analysis audit`: a claimed rate against the speed of light.

Everything heavy is imported inside the command, so that `--help` answers at once.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from analysis import serve_options as options

USAGE = 2
IMPOSSIBLE = 1


def audit(
    tokens_per_s: Annotated[float, typer.Option("--tokens-per-s", help="Claimed tokens a second of one stream.")],
    model: options.Model = "llama-3.1-70b",
    model_config: options.Config = None,
    gpu: options.Gpu = "h100",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel GPUs.")] = 1,
    dtype: options.Dtype = "bf16",
    kv_dtype: options.KvDtype = "bf16",
    streams: Annotated[int, typer.Option(help="Streams at this rate at once.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens of context that each stream reads.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Names the bound that a claim breaks and what would have to be true.

    Exit code 1: the claim is impossible at one token a step; 2: an unknown name or a size that does not fit the model.
    """
    from dataclasses import asdict

    from analysis.cmd_serve import deployed
    from analysis.serving.audit import audited

    try:
        deployment, _ = deployed((model, model_config), (gpu, tp, 1), (dtype, kv_dtype), "trtllm", "roofline", None)
        finding = audited(deployment, tokens_per_s, streams, context)
    except (ValueError, OSError) as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(USAGE) from error
    typer.echo(json.dumps(asdict(finding)) if as_json else "\n".join(finding.sentences))
    if not finding.possible:
        raise typer.Exit(IMPOSSIBLE)
