"""The options of `python -m analysis serve`, as typer reads them, in groups."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

DEPLOYMENT, LOAD, KERNELS = "Deployment", "Load", "Kernels and host"
SCHEDULING, CACHE, TERMS = "Scheduling", "KV cache", "Price, limits, output"


def _option(group: str, *names: str, **told: Any) -> Any:
    return typer.Option(*names, rich_help_panel=group, **told)


Model = Annotated[str, _option(DEPLOYMENT, help="A model of kernels.models, or its Hugging Face name.")]
Config = Annotated[Path | None, _option(DEPLOYMENT, help="A Hugging Face config.json instead.")]
Gpu = Annotated[str, _option(DEPLOYMENT, help="h100, h200, or a part of analysis/data/gpu_peaks.json.")]
Tp = Annotated[int, _option(DEPLOYMENT, min=1, help="Tensor-parallel GPUs.")]
Pp = Annotated[int, _option(DEPLOYMENT, min=1, help="Pipeline stages.")]
Ep = Annotated[int, _option(DEPLOYMENT, min=1, help="Of the tensor-parallel GPUs, those experts are spread over.")]
Replicas = Annotated[int, _option(DEPLOYMENT, min=1, help="Deployments that share the clients.")]
Dtype = Annotated[str, _option(DEPLOYMENT, help="Linear layers: bf16, fp8, fp8_block, int4.")]
KvDtype = Annotated[str, _option(DEPLOYMENT, help="KV cache: bf16 or fp8.")]
Engine = Annotated[str, _option(DEPLOYMENT, help="trtllm, vllm or sglang.")]
Isl = Annotated[int, _option(LOAD, min=0, help="Tokens of a prompt.")]
Osl = Annotated[int, _option(LOAD, min=0, help="Tokens of an answer.")]
Concurrency = Annotated[str, _option(LOAD, help="Clients, comma-separated.")]
Kernels = Annotated[
    str, _option(KERNELS, help="reference, fastest, roofline, or the directory of a run: its records come first.")
]
KernelsOnly = Annotated[bool, _option(KERNELS, "--kernels-only", help="Leave out the fitted host constants.")]
HostUs = Annotated[float, _option(KERNELS, min=0, help="Host time of each engine step, us.")]
Batching = Annotated[str, _option(SCHEDULING, help="continuous, or static: a batch ends with its longest answer.")]
Longest = Annotated[float, _option(SCHEDULING, min=1, help="That answer over the mean one.")]
Chunk = Annotated[int, _option(SCHEDULING, min=0, help="Most tokens of prompts in a step; 0 for whole prompts.")]
Draft = Annotated[int, _option(SCHEDULING, "--draft", "--draft-tokens", min=0, help="Tokens a draft proposes a step.")]
Acceptance = Annotated[float, _option(SCHEDULING, min=0, max=1, help="Chance that one of them is right.")]
DraftCost = Annotated[float, _option(SCHEDULING, min=0, help="Cost of one, of a plain decode step.")]
PageSize = Annotated[int, _option(CACHE, min=0, help="Tokens of a block; 0 for the engine's own.")]
Reserve = Annotated[int, _option(CACHE, min=0, help="Tokens each request reserves in one piece; 0 for blocks.")]
HitRate = Annotated[
    float, _option(CACHE, "--prefix-hit-rate", "--prefix-hit", min=0, max=1, help="Part of a prompt that is cached.")
]
Offload = Annotated[bool, _option(CACHE, "--offload", help="What is cached of a prompt is in host memory.")]
Pcie = Annotated[float, _option(CACHE, help="GB/s of each GPU's link to it (55: assumed of PCIe 5.0 x16).")]
Price = Annotated[float | None, _option(TERMS, min=0, help="Dollars for a GPU and hour.")]
Slo = Annotated[str, _option(TERMS, help="chat, interactive or batch.")]
SloTtft = Annotated[float | None, _option(TERMS, help="Most TTFT, ms.")]
SloTpot = Annotated[float | None, _option(TERMS, help="Most TPOT, ms.")]
Json = Annotated[bool, _option(TERMS, "--json", help="One JSON document on stdout.")]
