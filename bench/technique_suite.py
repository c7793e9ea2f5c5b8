"""Suite `techniques`: every attention technique of LLM serving at the sizes that tell what it buys.

Leaves what a technique means for a model to `kernels.techniques`, and the other suites to `bench.suites`.
"""

from __future__ import annotations

from kernels.models import Model, model_named
from kernels.spec import Workload
from kernels.techniques import kv_append_workloads, kv_head_workloads

MODELS = ("llama-3.1-8b", "llama-3.1-70b")
DTYPE = "bfloat16"
STEP_BATCHES, PROMPTS, CACHED = (1, 16, 64, 256), (512, 2048, 8192), 8192
"""Of appends: sequences of a decode step, each with so many keys cached, and prompts' tokens."""
DECODE_BATCHES, DECODE_LENGTHS = (1, 16, 64), (1024, 8192)


def techniques() -> list[dict[str, list[Workload]]]:
    """Op name -> workloads, in parts; a key may come twice."""
    return [_of_model(model_named(name)) for name in MODELS]


def _of_model(model: Model) -> dict[str, list[Workload]]:
    return {
        "kv_append": kv_append_workloads(model, 1, STEP_BATCHES, CACHED, PROMPTS, DTYPE),
        "attention_decode": kv_head_workloads(model, 1, DECODE_BATCHES, DECODE_LENGTHS, DTYPE),
    }
