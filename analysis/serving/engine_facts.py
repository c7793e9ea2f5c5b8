"""Where each thing that `ENGINES` says of an engine is documented; what no page was found for is assumed."""

from __future__ import annotations

from typing import NamedTuple

ASSUMED = "assumed"


class Fact(NamedTuple):
    """What an engine does, and the page or the source that says so, or `ASSUMED`."""

    engine: str
    what: str
    where: str


TRTLLM = "https://nvidia.github.io/TensorRT-LLM"
VLLM, VLLM_SOURCE = "https://docs.vllm.ai/en", "https://github.com/vllm-project/vllm/blob/main/vllm"
SGLANG = "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt"
FACTS = (
    Fact("trtllm", "90 % of the memory left free is for KV; blocks of 32 tokens",
         f"{TRTLLM}/llm-api/reference/KvCacheConfig.html"),
    Fact("trtllm", "a request starts only if its whole answer fits (GUARANTEED_NO_EVICT)",
         f"{TRTLLM}/performance/performance-tuning-guide/useful-runtime-flags.html"),
    Fact("trtllm", "an fp8 checkpoint brings its cache's dtype (`dtype: auto`)",
         f"{TRTLLM}/1.4.0rc4/features/quantization.html"),
    Fact("trtllm", "at most 8,192 tokens a step", "https://www.mintlify.com/NVIDIA/TensorRT-LLM/deployment/trtllm-serve"),
    Fact("trtllm", "Llama's norms quantise too; 90 % of all memory, as far as this goes beyond what is free; attention "
         "over an fp8 cache computes in fp8, with RoPE in it", ASSUMED),
    Fact("vllm", "what does not fit is preempted and computed anew", f"{VLLM}/v0.9.1/configuration/optimization.html"),
    Fact("vllm", "prompts in chunks beside decode", f"{VLLM}/v0.9.1/configuration/optimization.html"),
    Fact("vllm", "blocks of 16 tokens", f"{VLLM}/stable/api/vllm/config/cache/"),
    Fact("vllm", "at most 8,192 tokens a step of the server on H100 and H200", f"{VLLM_SOURCE}/engine/arg_utils.py"),
    Fact("vllm", "90 % of the memory (0.92 in later versions)",
         "https://www.mintlify.com/vllm-project/vllm/configuration/optimization"),
    Fact("vllm", "an fp8 cache only where the run's label says so", ASSUMED),
    Fact("sglang", "prompts before decode, in steps of their own", f"{SGLANG}/managers/scheduler.py"),
    Fact("sglang", "at most 8,192 tokens of prompts a step on H100 and H200; pages of one token",
         f"{SGLANG}/server_args.py"),
    Fact("sglang", "90 % of the memory (its own rule gives about 0.88); a request starts only if its whole answer fits",
         ASSUMED),
)  # fmt: skip


def as_markdown() -> str:
    """The facts as a table."""
    lines = ["| engine | what it does | from |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {f.engine} | {f.what} | {f.where} |" for f in FACTS)])
