"""attention_prefill: out = softmax(Q K^T / sqrt(D)) V over many query tokens, causal or full.

Works for any head_dim, for fewer KV heads than query heads, and for q_len != kv_len (a chunk of a prompt over its
cached prefix), aligned bottom-right; with the windows, sinks and caps on logits of `kernels.attention_variants`.
Useful FLOPs are 2 Hq pairs (D + Dv) with the unmasked pairs counted exactly.
Bound: arithmetic from a few hundred tokens on; the exponentials share the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kernels.attention import (
    CUDA_ONLY,
    NO_LOWER_RIGHT,
    masked_attention,
    padded_width,
    sdpa,
    sdpa_backend,
    too_wide,
    visible_keys,
)
from kernels.attention_part import part_of
from kernels.attention_variants import (
    NO_WINDOW,
    VARIANT_AXES,
    only_present,
    refused_by_flash_attn,
    refused_by_sdpa,
    variant_inputs,
    variant_of,
)
from kernels.inputs import Sampler, torch_dtype
from kernels.optional import flash_attn
from kernels.spec import TRITON_ON_CPU, Inputs, Op, Outputs, UnsupportedError, Workload
from kernels.work import Work, attention_work, keys_read, unmasked_pairs

CHECK_IN_FULL = 2**22
"""Scores up to which the float64 reference is computed whole; above it a sample of queries and heads."""
SAMPLED_QUERIES = 64


def attention_prefill_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    window: int = 0,
    provider: str = "torch",
) -> torch.Tensor:
    """torch's SDPA with the backend that `provider` names; [B, Sq, Hq, Dv]. See `kernels.attention.sdpa`.

    Raises:
        UnsupportedError: a window, or a problem that the backend refuses.
    """
    if window:
        raise UnsupportedError(NO_WINDOW)
    return sdpa(provider, q, k, v, causal=causal)


def attention_prefill_triton(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: Any) -> Outputs:
    """The Triton kernel: see `kernels.attention_prefill_triton.attention_prefill`."""
    from kernels import attention_prefill_triton as kernel

    return kernel.attention_prefill(q, k, v, **how)


def attention_prefill_flash_attn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, window: int = 0, softcap: int = 0
) -> torch.Tensor:
    """The flash-attn package's forward, bottom-right causal; [B, Sq, Hq, Dv].

    Raises:
        UnsupportedError: the package cannot be loaded here.
    """
    reach = (window - 1, 0) if window else (-1, -1)
    attend = flash_attn().flash_attn_func
    out: torch.Tensor = attend(q, k, v, causal=causal, window_size=reach, softcap=float(softcap))
    return out


def attention_prefill_eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    window: int = 0,
    softcap: int = 0,
    sinks: torch.Tensor | None = None,
    q_positions: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [B, Sq, Hq, Dv], lse [B, Hq, Sq]) by plain torch in the inputs' precision.

    Args:
        q_positions: [Sq] places of the queries among the keys, where q holds only some of them.
    """
    B, Sq, Skv = q.shape[0], q.shape[1], k.shape[1]
    if q_positions is None:
        q_positions = torch.arange(Sq, device=q.device) + Skv - Sq
    lens = torch.full((B,), Skv, device=q.device)
    seen = visible_keys(q_positions.expand(B, -1), lens, Skv, causal=causal, window=window)
    return masked_attention(q, k, v, seen, softcap=softcap, sinks=sinks)


def attention_prefill_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in float64 from the inputs' own values."""
    return attention_prefill_eager(q.double(), k.double(), v.double(), **how)  # type: ignore[arg-type]


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """q [B, Sq, Hq, D], k [B, Skv, Hkv, D], v [B, Skv, Hkv, Dv], `causal`, `window`, and what variants there are."""
    a = workload.axes
    draw, dtype = Sampler(device, seed), torch_dtype(workload.dtype)
    return {
        "q": draw.normal((a["batch"], a["q_len"], a["q_heads"], a["head_dim"]), dtype),
        "k": draw.normal((a["batch"], a["kv_len"], a["kv_heads"], a["head_dim"]), dtype),
        "v": draw.normal((a["batch"], a["kv_len"], a["kv_heads"], a.get("v_head_dim", a["head_dim"])), dtype),
        "causal": bool(a["causal"]),
        "window": a.get("window", 0),
        **variant_inputs(a, draw),
    }


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[Outputs], Outputs]]:
    """The whole of a small problem; of a large one some queries of two KV heads of the last sequence."""
    q, k = inputs["q"], inputs["k"]
    (B, Sq, Hq, _), (Skv, Hkv) = q.shape, k.shape[1:3]
    if B * Hq * Sq * Skv <= CHECK_IN_FULL:
        return inputs, lambda out: out
    part = part_of(q, Hkv, tokens=SAMPLED_QUERIES, last_sequence=True)
    fewer = {"q": part.queries(q), "k": part.keys(k), "v": part.keys(inputs["v"])}
    fewer |= {"sinks": inputs["sinks"][part.heads]} if "sinks" in inputs else {}
    return inputs | fewer | {"q_positions": part.tokens + Skv - Sq}, part.cut


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernel's configurations for the inputs of this workload."""
    from kernels import attention_prefill_triton as kernel

    return kernel.configs_for(*_kind(workload, arch), arch, variant_of(workload.axes))


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernel's tuned table for this workload."""
    from kernels import attention_prefill_triton as kernel

    return kernel.bucket_of(*_kind(workload, arch), variant_of(workload.axes))


def _kind(workload: Workload, arch: int) -> tuple[torch.dtype, int, str]:
    """dtype, padded head width, and why the inputs take pointers."""
    from kernels import attention_prefill_triton as kernel

    inputs = make_inputs(workload, "meta", 0)
    q, v = inputs["q"], inputs["v"]
    refused = kernel.path_for((("q", q), ("k", inputs["k"]), ("v", v)), arch)
    return q.dtype, padded_width(max(q.shape[3], v.shape[3])), refused


def work(workload: Workload) -> Work:
    """Exact unmasked pairs; Q and O once per query head, K and V once per KV head."""
    a = workload.axes
    window = a.get("window", 0)
    return attention_work(
        batch=a["batch"],
        q_heads=a["q_heads"],
        kv_heads=a["kv_heads"],
        q_len=a["q_len"],
        pairs=a["batch"] * unmasked_pairs(a["q_len"], a["kv_len"], causal=bool(a["causal"]), window=window),
        kv_tokens=a["batch"] * keys_read(a["q_len"], a["kv_len"], window=window),
        head_dim=a["head_dim"],
        v_head_dim=a.get("v_head_dim", a["head_dim"]),
        dtype=workload.dtype,
        sinks=a["q_heads"] * a.get("sinks", 0),
    )


def unsupported(workload: Workload, provider: str) -> str | None:
    """What a provider cannot express."""
    a = workload.axes
    if a["q_heads"] % a["kv_heads"]:
        return f"{a['q_heads']} query heads do not divide among {a['kv_heads']} KV heads"
    if provider == "triton":
        return too_wide(a)
    if provider == "flash_attn":
        only_half = "flash-attn computes in float16 and bfloat16 only" if workload.dtype == "float32" else None
        return refused_by_flash_attn(a) or only_half
    if not provider.startswith("torch"):
        return None
    if refused := refused_by_sdpa(a):
        return refused
    if a.get("window"):
        return NO_WINDOW
    if a["causal"] and a["q_len"] > a["kv_len"]:
        return "SDPA promises no value for queries that see no key (q_len > kv_len)"
    if a["causal"] and a["q_len"] < a["kv_len"] and provider == "torch_cudnn":
        return NO_LOWER_RIGHT
    return None


def facts(provider: str, inputs: Inputs) -> Mapping[str, str]:
    """Which SDPA backend ran."""
    if not provider.startswith("torch"):
        return {}
    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    return {"sdpa_backend": sdpa_backend(provider, q, k, v, causal=inputs["causal"]).name}


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A prefill workload; kv_len is q_len unless given, and fewer queries than keys is a chunk of a prompt."""
    sizes = {**axes, "kv_len": axes["kv_len"] or axes["q_len"], "kv_heads": axes["kv_heads"] or axes["q_heads"]}
    sizes = only_present(sizes)
    technique = "window" if "window" in sizes else "chunked" if sizes["q_len"] < sizes["kv_len"] else "dense"
    return Workload(axes=sizes, dtype=dtype, phase="prefill", technique=technique, source=source)


def _check(dtype: str = "float32", **axes: int) -> Workload:
    sizes = {"batch": 1, "q_len": 33, "kv_len": 33, "q_heads": 4, "kv_heads": 2, "head_dim": 64, "causal": 1}
    return describe_axes(sizes | VARIANT_AXES | axes, dtype, ("ragged, for correctness",))


OP = Op(
    name="attention_prefill",
    summary="softmax(Q K^T / sqrt(D)) V, many query tokens, causal bottom-right or full",
    axes={"batch": 1, "q_len": None, "kv_len": 0, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "causal": 1}
    | VARIANT_AXES,
    dtypes=("bfloat16", "float16", "float32"),
    make_inputs=make_inputs,
    reference=attention_prefill_reference,
    eager=attention_prefill_eager,
    providers={
        "triton": attention_prefill_triton,
        "torch": attention_prefill_torch,
        "torch_flash": partial(attention_prefill_torch, provider="torch_flash"),
        "torch_cudnn": partial(attention_prefill_torch, provider="torch_cudnn"),
        "flash_attn": attention_prefill_flash_attn,
    },
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(),
        _check(causal=0, q_len=17),
        _check(q_len=5, kv_len=70, batch=2),
        _check(q_len=9, kv_len=3),
        _check("float16", q_len=128, kv_len=128, head_dim=128, kv_heads=1),
        _check(q_heads=6, kv_heads=2, head_dim=80),
        _check(q_heads=3, kv_heads=3, head_dim=72, q_len=1, kv_len=1),
        _check("float16", q_heads=7, kv_heads=1, head_dim=96, q_len=129, kv_len=129),
        replace(_check("float16", kv_heads=4, head_dim=192, v_head_dim=128, q_len=70, kv_len=70), technique="mla"),
        _check("float16", window=50, q_len=200, kv_len=260),
        _check(softcap=50, q_len=40, kv_len=70),
        _check("float16", sinks=1, causal=0, q_heads=6),
        _check(window=7, sinks=1, softcap=5, q_len=40, kv_len=33),
    ),
    roles={"q": "resident", "k": "streamed", "v": "streamed", "sinks": "resident"},
    unsupported=unsupported,
    configs=configs,
    bucket=bucket,
    cuda_only=TRITON_ON_CPU | CUDA_ONLY | {"flash_attn": "flash-attn runs on CUDA only"},
    sample=sample,
    facts=facts,
)
