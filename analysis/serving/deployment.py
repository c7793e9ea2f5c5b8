"""What is deployed: a model on GPUs with an engine, and what is known of each engine.

What an engine does is documented by its makers; what was fitted to measured engines is `Host`, read from a file with
its cross-validation (`analysis.serving.fit`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from analysis.serving.scheduling import Scheduling
from analysis.serving.speculation import Speculation
from kernels.models import Model, sharded

CONSTANTS = Path(__file__).parents[1] / "data" / "serving_constants.json"
GPUS: Mapping[str, str] = {"h100": "H100 SXM5 80GB", "h200": "H200 SXM 141GB", "a100": "A100 80GB SXM4"}
"""Short names -> parts of `analysis.peaks`."""
DTYPES: Mapping[str, str] = {
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp8_block": "float8_e4m3fn.block128",
    "int4": "int4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Time of a step that no kernel accounts for. All 0: kernels alone.

    Attributes:
        step_us: each engine step.
        all_reduce_us: each all-reduce of a step, since ranks arrive at different times.
        sequence_us: each sequence of a step: sampling, scheduling, streaming.
        eager_layer_us: least time of a layer in a step with a prompt, which no CUDA graph holds.
    """

    step_us: float = 0.0
    all_reduce_us: float = 0.0
    sequence_us: float = 0.0
    eager_layer_us: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A serving engine.

    Attributes:
        framework: whose published kernels it runs.
        prefill_first: waiting prompts run before, and not beside, decode: requests of equal length stay in step.
        token_budget: most tokens of a step.
        memory_fraction: of the GPU that the engine may fill.
        page: tokens of a block of its KV cache.
        reserves_output: a request starts only if its whole answer fits; else when its prompt does, and what grows
            beyond memory is put off, so that the mean length counts.
        checkpoint_kv: an fp8 checkpoint brings an fp8 cache, unless told otherwise.
        fuses_quantisation: models (by the start of their name) whose static fp8 quantisation is part of the kernel
            before it.
        quantised_in_gemm: the framework's published fp8 gemms hold it.
        separate_rope: rotation and split of Q, K, V are kernels of their own.
        quantised_attention: prefill over an fp8 cache computes in fp8.
        source: where this is documented.
    """

    name: str
    framework: str
    prefill_first: bool = False
    token_budget: int = 8192
    memory_fraction: float = 0.9
    page: int = 1
    reserves_output: bool = True
    checkpoint_kv: bool = False
    fuses_quantisation: tuple[str, ...] = ()
    quantised_in_gemm: bool = False
    separate_rope: bool = True
    quantised_attention: bool = False
    source: str


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            name="trtllm", framework="trtllm", page=32, separate_rope=False, quantised_attention=True,
            checkpoint_kv=True, fuses_quantisation=("llama",),
            source="TensorRT-LLM: max_num_tokens 8192, kv_cache_free_gpu_memory_fraction 0.9, GUARANTEED_NO_EVICT, "
            "kv_cache_dtype auto follows the ModelOpt checkpoint; modeling_llama.py fuses norm and quantisation",
        ),
        Engine(
            name="vllm", framework="vllm", page=16, reserves_output=False,
            source="vLLM: max_num_batched_tokens 8192 on H100 and H200, gpu_memory_utilization 0.9, chunked prefill, "
            "preemption",
        ),
        Engine(
            name="sglang", framework="sglang", prefill_first=True, quantised_in_gemm=True,
            source="SGLang: chunked_prefill_size 8192, mem_fraction_static about 0.88, prefill before decode",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model on `tp` x `pp` GPUs.

    Attributes:
        gpu: a part of `analysis.peaks`.
        ep: of the `tp` GPUs, those that experts are spread over; the rest split their columns.
        dtype: of the linear layers, a value of `DTYPES`; embedding and head stay bfloat16.
        kv_dtype: of the cache.

    Raises:
        ValueError: `tp` does not divide the model, or `pp` its layers, or `ep` neither; the message tells what does.
    """

    model: Model
    gpu: str
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    engine: Engine = field(default_factory=lambda: ENGINES["trtllm"])
    host: Host = Host()
    speculation: Speculation | None = None
    scheduling: Scheduling = field(default_factory=Scheduling)

    def __post_init__(self) -> None:
        sharded(self.model, self.tp)
        if self.pp < 1 or self.pp > self.model.layers:
            raise ValueError(f"{self.model.name}: pp {self.pp} is not from 1 to {self.model.layers} layers")
        if self.ep < 1 or self.tp % self.ep or self.model.experts % self.ep or (self.ep > 1 and not self.model.experts):
            raise ValueError(
                f"{self.model.name}: ep {self.ep} does not divide tp {self.tp} and {self.model.experts} experts"
            )

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp

    @property
    def all_gpus(self) -> int:
        """GPUs of every replica."""
        return self.gpus * self.scheduling.replicas


@cache
def constants() -> Mapping[str, Mapping[str, float]]:
    """Engine -> its fitted host constants, as `Host` takes them."""
    read: Mapping[str, Mapping[str, float]] = json.loads(CONSTANTS.read_text(encoding="utf-8"))["engines"]
    return read


def host_of(engine: str) -> Host:
    """The fitted constants of an engine; all 0 for one that has none."""
    return Host(**constants().get(engine, {}))
