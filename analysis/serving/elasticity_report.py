"""What to optimise next: what 1 % of each op is worth to four models, as a page."""

from __future__ import annotations

import numpy as np

from analysis.serving.deployment import ENGINES, Deployment, host_of
from analysis.serving.kernel_source import KernelSource
from analysis.serving.load import Requests
from analysis.serving.predict import Terms, served
from analysis.serving.serve_report import ops_table
from kernels.models import model_named

GPU = "H200 SXM 141GB"
PLACES = (
    ("llama-3.1-8b", "bfloat16", "trtllm", 1), ("llama-3.1-70b", "float8_e4m3fn", "trtllm", 4),
    ("qwen3-30b-a3b", "bfloat16", "vllm", 1), ("deepseek-v3", "float8_e4m3fn.block128", "sglang", 8),
)  # fmt: skip
CLIENTS, ISL, OSL = 64, 1024, 512


def as_markdown(usd_per_gpu_hour: float) -> str:
    """The page, at a stated price."""
    lines = [
        "# What 1 % of a kernel is worth", "",
        f"{CLIENTS} clients, {ISL} + {OSL} tokens, {GPU}, ${usd_per_gpu_hour:.2f} a GPU and hour. Each op is made 1 % "
        "faster in every step and the load answered again. `ms` and `share` say where TPOT is; the last two columns "
        "what 1 % buys of it and of a million tokens, which hold first tokens too. They fall short of the share where "
        "the host bounds a step, and what they sum to is said under a table where it is not all of TPOT.", "",
    ]  # fmt: skip
    for name, dtype, engine, tp in PLACES:
        deployment = Deployment(
            model=model_named(name), gpu=GPU, tp=tp, dtype=dtype, engine=ENGINES[engine], host=host_of(engine)
        )
        requests = Requests(
            concurrency=np.array([float(CLIENTS)]), isl=np.array([float(ISL)]), osl=np.array([float(OSL)])
        )
        [told] = served(deployment, KernelSource(GPU, engine), requests, Terms(usd_per_gpu_hour=usd_per_gpu_hour))
        lines += [f"## {name}, {dtype}, TP {tp}, {engine}", "", *ops_table(told)[1:], ""]
    return "\n".join(lines)
