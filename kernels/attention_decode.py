"""attention_decode: 1 to 16 new tokens per sequence attend to their sequence's KV cache.

q [B, Sq, Hq, D], k and v [B, S, Hkv, D] allocated, kv_lens [B] real lengths (the new tokens' keys included); causal
inside the new tokens, bottom-right; windows, sinks and caps on logits are those of `kernels.attention_variants`. K and
V are read once per KV head over the real lengths or a window's reach, never the allocation: intensity is about
Sq x Hq / Hkv FLOP/byte in bfloat16, so DRAM bounds it on a GPU, and the launch floor bounds short caches. K and V may
be quantised (`kernels.quantised_cache`): k_scale and v_scale, one or one a KV head.
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
    packed_backend,
    padded_width,
    too_wide,
)
from kernels.attention_decode_peers import attention_decode_flash_attn, attention_decode_torch, for_sdpa, visible_of
from kernels.attention_part import part_of
from kernels.attention_variants import (
    NO_MASK,
    VARIANT_AXES,
    only_present,
    refused_by_flash_attn,
    refused_by_sdpa,
    variant_inputs,
    variant_of,
)
from kernels.inputs import Sampler, torch_dtype
from kernels.quantised_cache import ROLES as SCALES
from kernels.quantised_cache import as_values, quantised_inputs, quantised_kv, refusal, scale_bytes, scale_of_heads
from kernels.spec import TRITON_ON_CPU, Inputs, Op, Outputs, Workload
from kernels.work import DECODE_TOKENS, Work, attention_work, keys_read, unmasked_pairs

CHECK_IN_FULL = 2**20
"""Scores up to which the float64 reference is computed whole; above it a sample of sequences and heads."""


def attention_decode_triton(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_lens: torch.Tensor, **how: Any
) -> Outputs:
    """The Triton kernels: see `kernels.attention_decode_triton.attention_decode`."""
    from kernels import attention_decode_triton as kernel

    return kernel.attention_decode(q, k, v, kv_lens, **how)


def attention_decode_eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    ragged: bool = True,
    window: int = 0,
    softcap: int = 0,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [B, Sq, Hq, Dv], lse [B, Hq, Sq]) by plain torch in q's precision, that of K and V unless quantised."""
    k, v = as_values(k, k_scale, q.dtype), as_values(v, v_scale, q.dtype)
    seen = visible_of(q, k, kv_lens, window)
    # Lengths of the meta device have no values: shapes alone are asked for.
    used = k.shape[1] if kv_lens.is_meta else int(kv_lens.max()) if kv_lens.numel() else 0
    return masked_attention(q, k[:, :used], v[:, :used], seen[..., :used], softcap=softcap, sinks=sinks)


def attention_decode_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_lens: torch.Tensor, **how: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in float64 from the inputs' own values."""
    return attention_decode_eager(q.double(), k, v, kv_lens, **how)


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """q, k, v, kv_lens (int32), whether sequences differ in length, what variants there are, and a quantised cache's
    scales."""
    a = workload.axes
    draw, dtype = Sampler(device, seed), torch_dtype(workload.dtype)
    lens = workload.kv_lens or (a["kv_len"],) * a["batch"]
    inputs = {
        "q": draw.normal((a["batch"], a["q_len"], a["q_heads"], a["head_dim"]), dtype),
        "k": draw.normal((a["batch"], a["kv_len"], a["kv_heads"], a["head_dim"]), dtype),
        "v": draw.normal((a["batch"], a["kv_len"], a["kv_heads"], a.get("v_head_dim", a["head_dim"])), dtype),
        "kv_lens": torch.tensor(lens, dtype=torch.int32, device=device),
        "ragged": any(length != a["kv_len"] for length in lens),
        **variant_inputs(a, draw),
    }
    return quantised_inputs(workload, ("k", "v"), inputs)


def validate(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_lens: torch.Tensor, **how: Any) -> None:
    """Raises ValueError when a length lies outside the allocation."""
    low, high = map(int, kv_lens.aminmax()) if kv_lens.numel() else (0, 0)
    if low < 0 or high > k.shape[1]:
        raise ValueError(f"kv_lens must lie in 0..{k.shape[1]} (the allocated keys), got {low}..{high}")


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[Outputs], Outputs]]:
    """The whole of a small problem; of a large one some sequences and two KV heads with their query heads."""
    q, k = inputs["q"], inputs["k"]
    (B, Sq, Hq, _), (S, Hkv) = q.shape, k.shape[1:3]
    if B * Hq * Sq * S <= CHECK_IN_FULL:
        return inputs, lambda out: out
    part = part_of(q, Hkv)
    fewer = {"q": part.queries(q), "k": part.keys(k), "v": part.keys(inputs["v"])}
    fewer |= {name: scale_of_heads(inputs[name], part.kv_heads) for name in SCALES if name in inputs}
    fewer |= {"sinks": inputs["sinks"][part.heads]} if "sinks" in inputs else {}
    return inputs | fewer | {"kv_lens": inputs["kv_lens"][part.sequences]}, part.cut


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernels' configurations for this head width, number of packed rows and variant."""
    from kernels import attention_decode_triton as kernel

    dtype, width, rows, variant, stored = _kind(workload)
    return kernel.configs_for(dtype, width, rows, arch, variant, stored)


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernels' tuned table for this workload."""
    from kernels import attention_decode_triton as kernel

    return kernel.bucket_of(*_kind(workload))


def _kind(workload: Workload) -> tuple[torch.dtype, int, int, str, torch.dtype]:
    """dtype, padded head width, packed rows, variant, and the dtype that K and V are stored in."""
    a = workload.axes
    dtype, stored = torch_dtype(workload.dtype), torch_dtype(workload.kv_dtype or workload.dtype)
    width = padded_width(max(a["head_dim"], a.get("v_head_dim", 0)))
    return dtype, width, a["q_len"] * a["q_heads"] // a["kv_heads"], variant_of(a), stored


def work(workload: Workload) -> Work:
    """K and V once per KV head over the real lengths, or what a window reaches; the lengths themselves are overhead."""
    a = workload.axes
    window = a.get("window", 0)
    lens = workload.kv_lens or (a["kv_len"],) * a["batch"]
    counted = attention_work(
        batch=a["batch"],
        q_heads=a["q_heads"],
        kv_heads=a["kv_heads"],
        q_len=a["q_len"],
        pairs=sum(unmasked_pairs(a["q_len"], length, causal=True, window=window) for length in lens),
        kv_tokens=sum(keys_read(a["q_len"], length, window=window) for length in lens),
        head_dim=a["head_dim"],
        v_head_dim=a.get("v_head_dim", a["head_dim"]),
        dtype=workload.dtype,
        kv_dtype=workload.kv_dtype,
        sinks=a["q_heads"] * a.get("sinks", 0),
    )
    scales = scale_bytes(workload)
    return Work(flops=counted.flops, bytes=counted.bytes + scales, overhead_bytes=4 * a["batch"])


def unsupported(workload: Workload, provider: str) -> str | None:
    """More query tokens than decode has, and what torch's SDPA cannot express."""
    a = workload.axes
    lens = workload.kv_lens or (a["kv_len"],)
    if not 1 <= a["q_len"] <= DECODE_TOKENS:
        return f"q_len={a['q_len']}: attention_decode is for 1 to {DECODE_TOKENS} new tokens; use attention_prefill"
    if a["q_heads"] % a["kv_heads"]:
        return f"{a['q_heads']} query heads do not divide among {a['kv_heads']} KV heads"
    if reason := refusal(workload, provider):
        return reason
    if provider == "triton":
        return too_wide(a)
    if provider == "flash_attn":
        only_half = "flash-attn computes in float16 and bfloat16 only" if workload.dtype == "float32" else None
        return refused_by_flash_attn(a) or only_half
    if provider.startswith("torch") and (refused := refused_by_sdpa(a)):
        return refused
    if provider.startswith("torch") and min(lens) < a["q_len"]:
        return f"SDPA promises no value for queries that see no key (length {min(lens)}, q_len={a['q_len']})"
    several = 1 < a["q_len"] < a["kv_len"]
    if a.get("window"):
        return NO_MASK if provider == "torch_flash" and (several or set(lens) != {a["kv_len"]}) else None
    if provider == "torch_cudnn" and several and set(lens) == {a["kv_len"]}:
        return NO_LOWER_RIGHT
    return None


def facts(provider: str, inputs: Inputs) -> Mapping[str, str]:
    """Which SDPA backend ran."""
    if not provider.startswith("torch"):
        return {}
    q, k, v, kv_lens, ragged = (inputs[name] for name in ("q", "k", "v", "kv_lens", "ragged"))
    k, v, seen = for_sdpa(q, k, v, kv_lens, ragged, inputs.get("window", 0))
    return {"sdpa_backend": packed_backend(provider, q, k, v, seen=seen).name}


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A decode workload; several new tokens are the verification of a draft."""
    sizes = only_present({**axes, "kv_heads": axes["kv_heads"] or axes["q_heads"]})
    technique = "window" if "window" in sizes else "speculative" if sizes["q_len"] > 1 else "kv_cache"
    return Workload(axes=sizes, dtype=dtype, phase="decode", technique=technique, source=source)


def _check(dtype: str = "float32", kv_lens: tuple[int, ...] = (), stored: str = "", **axes: int) -> Workload:
    """Stored, where K and V are quantised, as `float8_e4m3fn.head`."""
    sizes = {"batch": 2, "q_len": 1, "kv_len": 70, "q_heads": 4, "kv_heads": 2, "head_dim": 64} | VARIANT_AXES | axes
    plain = replace(describe_axes(sizes, dtype, ("ragged, for correctness",)), kv_lens=kv_lens)
    return quantised_kv(plain, *stored.split(".")) if stored else plain


OP = Op(
    name="attention_decode",
    summary="1 to 16 new tokens attend to their sequence's KV cache",
    axes={"batch": 1, "q_len": 1, "kv_len": None, "q_heads": 32, "kv_heads": 8, "head_dim": 128, **VARIANT_AXES},
    dtypes=("bfloat16", "float16", "float32"),
    make_inputs=make_inputs,
    reference=attention_decode_reference,
    eager=attention_decode_eager,
    providers={
        "triton": attention_decode_triton,
        "torch": attention_decode_torch,
        "torch_flash": partial(attention_decode_torch, provider="torch_flash"),
        "torch_cudnn": partial(attention_decode_torch, provider="torch_cudnn"),
        "flash_attn": attention_decode_flash_attn,
    },
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(),
        _check(kv_lens=(70, 33)),
        _check(kv_lens=(5, 0, 1), batch=3, q_heads=7, kv_heads=1),
        _check("float16", q_len=3, kv_len=130, kv_lens=(130, 2), head_dim=128),
        _check(q_len=8, batch=1, q_heads=3, kv_heads=3, head_dim=80),
        _check(q_len=5, q_heads=7, kv_heads=1, kv_lens=(70, 3)),
        _check("float16", q_len=16, q_heads=8, kv_heads=1, kv_lens=(70, 15)),
        _check("float16", batch=1, kv_len=1, q_heads=8, kv_heads=1, head_dim=96),
        _check("float16", kv_lens=(70, 33), stored="float8_e4m3fn.head", q_heads=6),
        _check("float16", kv_lens=(130, 0), stored="int8.tensor", kv_len=130, q_heads=10, head_dim=96),
        _check(kv_lens=(70, 3), stored="float8_e4m3fn.tensor", q_len=2),
        _check("float16", batch=1, q_len=8, stored="int8.head", q_heads=21, kv_heads=3, head_dim=128),
        _check("float16", window=37, kv_len=200, kv_lens=(200, 9)),
        _check(q_len=3, softcap=50, kv_lens=(70, 2)),
        _check("float16", sinks=1, kv_lens=(70, 0), stored="float8_e4m3fn.head", window=30),
        _check(q_len=5, window=33, sinks=1, softcap=5, kv_len=150, kv_lens=(150, 0, 4), batch=3),
    ),
    roles={"q": "resident", "k": "streamed", "v": "streamed", "kv_lens": "resident", "sinks": "resident"} | SCALES,
    unsupported=unsupported,
    configs=configs,
    bucket=bucket,
    cuda_only=TRITON_ON_CPU | CUDA_ONLY | {"flash_attn": "flash-attn runs on CUDA only"},
    sample=sample,
    facts=facts,
    validate=validate,
)
