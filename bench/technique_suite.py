"""Suite `techniques`: every technique of LLM serving at the sizes that tell what it buys.

Leaves what a technique means for a model to `kernels.techniques`, and the other suites to `bench.suites`.
"""

from __future__ import annotations

from dataclasses import replace

from bench.moe_suite import moe
from kernels.attention_layers import windowed_workloads
from kernels.cache_reuse import chunked_workloads, drafted_workloads, shared_prefix_workloads
from kernels.continuous import prompt_workloads, step_workloads
from kernels.fused_mlp import gate_up_workloads
from kernels.latent_attention import mla_decode_workloads, mla_prefill_workloads
from kernels.layer_glue import glue_workloads, head_norm_workloads
from kernels.models import Model, matmul_workloads, model_named
from kernels.quantised_matmuls import quantise_workloads, w8a8_workloads, weight_only_workloads
from kernels.quantised_workloads import quantised_decode_workloads
from kernels.spec import Workload
from kernels.techniques import (
    kv_append_workloads,
    kv_head_workloads,
    paged_decode_workloads,
    paged_prefill_workloads,
)

MODELS = ("llama-3.1-8b", "llama-3.1-70b")
DTYPE = "bfloat16"
STEP_BATCHES, PROMPTS, CACHED = (1, 16, 64, 256), (512, 2048, 8192), 8192
"""Of appends: sequences of a decode step, each with so many keys cached, and prompts' tokens."""
DECODE_BATCHES, DECODE_LENGTHS = (1, 16, 64), (1024, 8192)
PAGE_SIZES, USUAL_PAGE = (16, 32, 64, 128, 256), 16
PAGED_BATCHES, PAGED_PROMPTS = (16,), (1024, 8192)
"""Of every page size; the batches and lengths of decode without pages come with the usual one alone."""
RAGGED = {
    "lengths spread evenly": tuple(1000 * (i + 1) for i in range(16)),
    "one long, the others short": (65000, *(1000,) * 31),
}

REUSING = "llama-3.1-70b"
"""Whose chunks, shared prefixes and drafts are measured."""
CHUNKS, CHUNKED_TP, CACHED_BEFORE = (512, 2048), 8, (0, 2048, 8192, 32768)
SYSTEM_PROMPTS, SHARED_BY, AFTER_PROMPT = (1024, 4096, 8192), (8, 16, 64), 512
DRAFTS, DRAFT_BATCHES = (2, 4, 8, 16), (1, 16)

QUANTISED = "llama-3.1-70b"
"""Whose decode over caches in 8 bits is measured: on one GPU, with a scale a KV head too, and on one of eight."""
STORED = {
    1: (("float8_e4m3fn", "tensor"), ("float8_e4m3fn", "head"), ("int8", "head")),
    8: (("float8_e4m3fn", "tensor"),),
}
"""Tensor parallel size -> storage and scales; a KV head alone has one scale either way."""

PROMPT_BATCHES = {
    **{f"8 prompts of {n}": (n,) * 8 for n in (512, 2048, 4096)},
    "lengths spread evenly": tuple(256 * (i + 1) for i in range(16)),
    "one long, the others short": (16384, *(512,) * 31),
}
DECODING = ((1, 4096),)
STEPS = {
    **{f"{n} decode tokens": DECODING * n for n in (1, 16, 64)},
    "decode of one long, the others short": ((1, 100_000), *((1, 500),) * 63),
    "a prompt of 2048 beside 16 decode tokens": ((2048, 2048), *DECODING * 16),
    "a chunk of 512 on 8192 beside 63 decode tokens": ((512, 8704), *DECODING * 63),
    "drafts of 5 and decode tokens": ((5, 4096), (1, 4096)) * 16,
}
"""(new tokens, keys) of the sequences of one step."""
LATENT = "deepseek-v3"
"""Whose multi-head latent attention is measured: on one GPU of one, and of eight that share its heads."""
LATENT_TPS, LATENT_BATCHES, LATENT_LENGTHS, LATENT_PAGE = (1, 8), (1, 16, 64), (4096, 32768), 64
DRAFTED_BATCHES, DRAFTED = (16,), (2, 4)
"""Of several new tokens a sequence, as multi-token prediction drafts them."""
EXPANDED_PROMPTS = (1024, 8192)
WINDOWED = {"gemma-3-27b": (8192, 32768), "gemma-2-27b": (8192,), "gpt-oss-120b": (8192, 32768)}
"""Models with windows, caps on logits and sinks -> lengths of prompts and caches."""
WINDOWED_BATCHES = (1, 64)

BATCHED, PROMPT_ROWS = (1, 16, 64, 256), 4096
MLP, LAYER = ("gate_up_proj", "down_proj"), ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
E4M3, INT8 = "float8_e4m3fn", "int8"
W8A8: tuple[tuple[str, int, tuple[int, ...], str, str, tuple[str, ...]], ...] = (
    ("llama-3.1-70b", 1, BATCHED, E4M3, "token", LAYER),
    ("llama-3.1-70b", 1, (PROMPT_ROWS,), E4M3, "token", MLP),
    ("llama-3.1-70b", 8, (16, PROMPT_ROWS), E4M3, "token", MLP),
    ("llama-3.1-70b", 1, (16, PROMPT_ROWS), E4M3, "tensor", MLP[:1]),
    ("deepseek-v3", 8, (16, PROMPT_ROWS), E4M3, "block128", ("o_proj", "gate_up_proj")),
    ("llama-3.1-70b", 1, (*BATCHED, PROMPT_ROWS), INT8, "token", MLP),
)
"""Model, tensor parallel size, rows, dtype, granularity of scales, projections."""
WEIGHTS: tuple[tuple[tuple[int, ...], str, int, tuple[str, ...]], ...] = (
    (BATCHED, "int4", 128, LAYER),
    ((1, 16, PROMPT_ROWS), "uint4", 128, MLP),
    ((16,), "int4", 32, MLP[:1]),
    ((1, 16, PROMPT_ROWS), "int8", 0, MLP),
    ((1, 16, PROMPT_ROWS), "float8_e4m3fn", 0, MLP),
)
"""Rows, storage of weights, group, projections of `REUSING` with 16-bit activations."""
SPLIT_OVER = (1, 2, 4, 8)
"""Tensor parallel sizes at which every projection of `REUSING` is measured, one GPU's part of it."""
HEAD_NORM = "qwen3-8b"
"""Whose queries are normalised head by head."""
QUANTISED_FOR = (("llama-3.1-70b", ("tensor", "token")), ("deepseek-v3", ("block128",)))


def techniques() -> list[dict[str, list[Workload]]]:
    """Op name -> workloads, in parts; a key may come twice."""
    return [
        *(_of_model(model_named(name)) for name in MODELS),
        *_reuse(model_named(REUSING)),
        *(matmul_workloads(model_named(REUSING), tp, (*BATCHED, PROMPT_ROWS), DTYPE) for tp in SPLIT_OVER),
        matmul_workloads(model_named(MODELS[0]), 1, BATCHED, DTYPE, ("lm_head",)),
        *_eight_bits(),
        *(glue_workloads(model_named(name), (*BATCHED, PROMPT_ROWS), DTYPE) for name in MODELS),
        head_norm_workloads(model_named(HEAD_NORM), 16, DTYPE),
        *(gate_up_workloads(model_named(name), 1, (*BATCHED, PROMPT_ROWS), DTYPE) for name in MODELS),
        {"matmul_weight_only": _weight_only(model_named(REUSING))},
        moe(),
        *(_quantised(model_named(QUANTISED), tp) for tp in STORED),
        *(part for tp in LATENT_TPS for part in _latent(model_named(LATENT), tp)),
        *(
            windowed_workloads(model_named(name), 1, lengths, WINDOWED_BATCHES, lengths, DTYPE)
            for name, lengths in WINDOWED.items()
        ),
    ]


def _of_model(model: Model) -> dict[str, list[Workload]]:
    return {
        "kv_append": kv_append_workloads(model, 1, STEP_BATCHES, CACHED, PROMPTS, DTYPE),
        "attention_decode": kv_head_workloads(model, 1, DECODE_BATCHES, DECODE_LENGTHS, DTYPE),
        "attention_paged_decode": [
            *paged_decode_workloads(model, 1, DECODE_BATCHES, DECODE_LENGTHS, (USUAL_PAGE,), DTYPE),
            *paged_decode_workloads(model, 1, PAGED_BATCHES, DECODE_LENGTHS, PAGE_SIZES, DTYPE),
            *_ragged(model),
        ],
        "attention_paged_prefill": paged_prefill_workloads(model, 1, PAGED_PROMPTS, PAGE_SIZES, DTYPE),
        "attention_varlen": prompt_workloads(model, 1, PROMPT_BATCHES, DTYPE),
        "attention_mixed": step_workloads(model, 1, STEPS, USUAL_PAGE, DTYPE),
    }


def _ragged(model: Model) -> list[Workload]:
    """Batches of lengths that are no whole pages, with the usual page size."""
    return [
        replace(workload, kv_lens=lens, source=tuple(f"{line}, {what}" for line in workload.source))
        for what, lens in RAGGED.items()
        for workload in paged_decode_workloads(model, 1, (len(lens),), (max(lens),), (USUAL_PAGE,), DTYPE)
    ]


def _reuse(model: Model) -> list[dict[str, list[Workload]]]:
    return [
        {"attention_prefill": chunked_workloads(model, CHUNKED_TP, CHUNKS, CACHED_BEFORE, DTYPE)},
        shared_prefix_workloads(model, 1, SHARED_BY, SYSTEM_PROMPTS, AFTER_PROMPT, DTYPE),
        {"attention_decode": drafted_workloads(model, 1, DRAFT_BATCHES, DRAFTS, CACHED, DTYPE)},
    ]


def _quantised(model: Model, tp: int) -> dict[str, list[Workload]]:
    lengths = DECODE_LENGTHS if tp == 1 else DECODE_LENGTHS[-1:]
    return {"attention_decode": quantised_decode_workloads(model, tp, DECODE_BATCHES, lengths, STORED[tp], DTYPE)}


def _latent(model: Model, tp: int) -> list[dict[str, list[Workload]]]:
    decode = [
        *mla_decode_workloads(model, tp, LATENT_BATCHES, LATENT_LENGTHS, (1,), LATENT_PAGE, DTYPE),
        *mla_decode_workloads(model, tp, DRAFTED_BATCHES, LATENT_LENGTHS[:1], DRAFTED, LATENT_PAGE, DTYPE),
    ]
    prefill = mla_prefill_workloads(model, tp, EXPANDED_PROMPTS, DTYPE)
    return [{"attention_mla_decode": decode}, {"attention_prefill": prefill}]


def _eight_bits() -> list[dict[str, list[Workload]]]:
    projections = [
        w8a8_workloads(model_named(name), tp, rows, dtype, scale, only) for name, tp, rows, dtype, scale, only in W8A8
    ]
    fed = [quantise_workloads(model_named(name), (16, PROMPT_ROWS), scales, DTYPE) for name, scales in QUANTISED_FOR]
    return [*projections, *({"quantise_fp8": workloads} for workloads in fed)]


def _weight_only(model: Model) -> list[Workload]:
    return [
        workload
        for rows, stored, group, only in WEIGHTS
        for workload in weight_only_workloads(model, 1, rows, stored, group, only, DTYPE)
    ]
