"""attention_prefix_decode: one new token of each sequence attends to a prefix that all of them share, and to its own.

q [B, 1, Hq, D]; prefix_k [P, Hkv, D], prefix_v [P, Hkv, Dv] once for the batch; k [B, S, Hkv, D], v [B, S, Hkv, Dv]
allocated for what follows the prefix, kv_lens [B] its real lengths (the new token's key included). Softmax is over both
parts together: each gives an output and a log-sum-exp, and these merge. The prefix's keys and values are read once for
all sequences, so that B x Hq / Hkv FLOP/byte in bfloat16 bound it by arithmetic where a plain decode is bound by DRAM.

Neither flash-attn nor flashinfer is a provider: what they have for a shared prefix wants both parts in pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernels.attention import masked_attention, packed, padded_width, too_wide, visible_keys
from kernels.attention_lse import merged, sdpa_lse
from kernels.attention_part import part_of
from kernels.inputs import Sampler, torch_dtype
from kernels.spec import TRITON_ON_CPU, Inputs, Op, Outputs, Workload
from kernels.work import Work, attention_work

CHECK_IN_FULL = 2**20
"""Scores up to which the float64 reference is computed whole; above it a sample of sequences and heads."""


def attention_prefix_decode_torch(
    q: torch.Tensor,
    prefix_k: torch.Tensor,
    prefix_v: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    ragged: bool,
) -> torch.Tensor:
    """torch's attention over the prefix and over the rest, merged by log-sum-exp; [B, 1, Hq, Dv].

    All sequences' heads of a KV head are packed as the prefix's queries, and one sequence's as those of its own keys,
    so that nothing is expanded. Ragged lengths take a mask over the allocation, which is read whole.
    """
    B, _, Hq, D = q.shape
    Hkv, Dv = k.shape[2], v.shape[3]
    group = Hq // Hkv
    folded = q.reshape(B, Hkv, group, D).transpose(0, 1).reshape(1, Hkv, B * group, D)
    shared, shared_lse = sdpa_lse(folded, *(prefix.transpose(0, 1).unsqueeze(0) for prefix in (prefix_k, prefix_v)))
    shared = shared.view(Hkv, B, group, Dv).transpose(0, 1)
    seen = torch.arange(k.shape[1], device=k.device) < kv_lens.view(B, 1, 1, 1) if ragged else None
    rows = packed(q, Hkv).transpose(1, 2)
    own, own_lse = sdpa_lse(rows, k.transpose(1, 2), v.transpose(1, 2), seen)
    out = merged(shared, shared_lse.view(Hkv, B, group).transpose(0, 1), own, own_lse)
    return out.reshape(B, 1, Hq, Dv)


def attention_prefix_decode_triton(
    q: torch.Tensor, prefix_k: torch.Tensor, prefix_v: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    kv_lens: torch.Tensor, **how: Any,
) -> Outputs:  # fmt: skip
    """The Triton kernels: see `kernels.attention_prefix_decode_triton.attention_prefix_decode`."""
    from kernels import attention_prefix_decode_triton as kernel

    return kernel.attention_prefix_decode(q, prefix_k, prefix_v, k, v, kv_lens, **how)


def attention_prefix_decode_eager(
    q: torch.Tensor,
    prefix_k: torch.Tensor,
    prefix_v: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    ragged: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [B, 1, Hq, Dv], lse [B, Hq, 1]) by plain torch over each sequence's whole keys, in the inputs' precision."""
    B, P = q.shape[0], prefix_k.shape[0]
    keys = torch.cat([prefix_k.expand(B, -1, -1, -1), k], dim=1)
    values = torch.cat([prefix_v.expand(B, -1, -1, -1), v], dim=1)
    seen = visible_keys(P + kv_lens[:, None] - 1, P + kv_lens, keys.shape[1], causal=True)
    return masked_attention(q, keys, values, seen)


def attention_prefix_decode_reference(
    q: torch.Tensor, prefix_k: torch.Tensor, prefix_v: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    kv_lens: torch.Tensor, *, ragged: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The same in float64 from the inputs' own values."""
    shared = prefix_k.double(), prefix_v.double()
    return attention_prefix_decode_eager(q.double(), *shared, k.double(), v.double(), kv_lens)


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """q, prefix_k, prefix_v, k, v, kv_lens (int32) and whether sequences differ in length."""
    a = workload.axes
    draw, dtype = Sampler(device, seed), torch_dtype(workload.dtype)
    lens = workload.kv_lens or (a["kv_len"],) * a["batch"]
    Hkv, D, Dv = a["kv_heads"], a["head_dim"], a.get("v_head_dim", a["head_dim"])
    return {
        "q": draw.normal((a["batch"], a["q_len"], a["q_heads"], D), dtype),
        "prefix_k": draw.normal((a["prefix_len"], Hkv, D), dtype),
        "prefix_v": draw.normal((a["prefix_len"], Hkv, Dv), dtype),
        "k": draw.normal((a["batch"], a["kv_len"], Hkv, D), dtype),
        "v": draw.normal((a["batch"], a["kv_len"], Hkv, Dv), dtype),
        "kv_lens": torch.tensor(lens, dtype=torch.int32, device=device),
        "ragged": any(length != a["kv_len"] for length in lens),
    }


def validate(
    q: torch.Tensor, prefix_k: torch.Tensor, prefix_v: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    kv_lens: torch.Tensor, *, ragged: bool,
) -> None:  # fmt: skip
    """Raises ValueError when a length lies outside the allocation."""
    low, high = map(int, kv_lens.aminmax()) if kv_lens.numel() else (0, 0)
    if low < 0 or high > k.shape[1]:
        raise ValueError(f"kv_lens must lie in 0..{k.shape[1]} (keys allocated after the prefix), got {low}..{high}")


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[Outputs], Outputs]]:
    """The whole of a small problem; of a large one some sequences and two KV heads with their query heads."""
    q, k = inputs["q"], inputs["k"]
    (B, _, Hq, _), (S, Hkv), P = q.shape, k.shape[1:3], inputs["prefix_k"].shape[0]
    if B * Hq * (P + S) <= CHECK_IN_FULL:
        return inputs, lambda out: out
    part = part_of(q, Hkv)
    fewer = {"q": part.queries(q), "k": part.keys(k), "v": part.keys(inputs["v"])}
    fewer |= {name: inputs[name][:, part.kv_heads] for name in ("prefix_k", "prefix_v")}
    return inputs | fewer | {"kv_lens": inputs["kv_lens"][part.sequences]}, part.cut


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The configurations of the walk over the prefix, for this head width and number of packed rows."""
    from kernels import attention_prefix_decode_triton as kernel

    return kernel.configs_for(torch_dtype(workload.dtype), *_width_and_rows(workload), arch)


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of that walk's tuned table for this workload."""
    from kernels import attention_prefix_decode_triton as kernel

    return kernel.bucket_of(torch_dtype(workload.dtype), *_width_and_rows(workload))


def _width_and_rows(workload: Workload) -> tuple[int, int]:
    a = workload.axes
    width = padded_width(max(a["head_dim"], a.get("v_head_dim", 0)))
    return width, a["batch"] * a["q_heads"] // a["kv_heads"]


def work(workload: Workload) -> Work:
    """The prefix's K and V once, those after it over the real lengths; the lengths themselves are overhead."""
    a = workload.axes
    own = sum(workload.kv_lens or (a["kv_len"],) * a["batch"])
    counted = attention_work(
        batch=a["batch"],
        q_heads=a["q_heads"],
        kv_heads=a["kv_heads"],
        q_len=a["q_len"],
        pairs=a["batch"] * a["prefix_len"] + own,
        kv_tokens=a["prefix_len"] + own,
        head_dim=a["head_dim"],
        v_head_dim=a.get("v_head_dim", a["head_dim"]),
        dtype=workload.dtype,
        kv_dtype=workload.kv_dtype,
    )
    return Work(flops=counted.flops, bytes=counted.bytes, overhead_bytes=4 * a["batch"])


def unsupported(workload: Workload, provider: str) -> str | None:
    """Several new tokens, heads that do not divide, and what torch's kernels do not take."""
    a = workload.axes
    if a["q_len"] != 1:
        return f"q_len={a['q_len']}: attention_prefix_decode is for one new token a sequence; use attention_decode"
    if a["q_heads"] % a["kv_heads"]:
        return f"{a['q_heads']} query heads do not divide among {a['kv_heads']} KV heads"
    if provider == "triton":
        return too_wide(a)
    if provider == "torch" and a.get("v_head_dim", a["head_dim"]) != a["head_dim"]:
        return f"torch's kernels that tell a log-sum-exp want values as wide as keys, got {a['v_head_dim']}"
    return None


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A decode step of sequences behind one prompt."""
    sizes = {**axes, "kv_heads": axes["kv_heads"] or axes["q_heads"]}
    return Workload(axes=sizes, dtype=dtype, phase="decode", technique="prefix", source=source)


def _check(dtype: str = "float32", kv_lens: tuple[int, ...] = (), **axes: int) -> Workload:
    sizes = {"batch": 3, "q_len": 1, "kv_len": 40, "prefix_len": 70, "q_heads": 4, "kv_heads": 2, "head_dim": 64} | axes
    return replace(describe_axes(sizes, dtype, ("ragged, for correctness",)), kv_lens=kv_lens)


OP = Op(
    name="attention_prefix_decode",
    summary="one new token a sequence attends to a prefix shared by the batch and to its own KV cache",
    axes={
        "batch": 16, "q_len": 1, "kv_len": None, "prefix_len": None, "q_heads": 32, "kv_heads": 8, "head_dim": 128,
    },
    dtypes=("bfloat16", "float16", "float32"),
    make_inputs=make_inputs,
    reference=attention_prefix_decode_reference,
    eager=attention_prefix_decode_eager,
    providers={"triton": attention_prefix_decode_triton, "torch": attention_prefix_decode_torch},
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(),
        _check(kv_lens=(40, 0, 7)),
        _check("float16", prefix_len=130, head_dim=128, batch=9, q_heads=8, kv_heads=1, kv_lens=(33,) * 8 + (1,)),
        _check(prefix_len=0, batch=2),
        _check("float16", kv_len=0, q_heads=7, kv_heads=1, head_dim=80),
        _check(prefix_len=1, kv_len=1, batch=1, q_heads=3, kv_heads=3, head_dim=96),
    ),
    roles={
        "q": "resident", "prefix_k": "streamed", "prefix_v": "streamed", "k": "streamed", "v": "streamed",
        "kv_lens": "resident",
    },
    unsupported=unsupported,
    configs=configs,
    bucket=bucket,
    cuda_only=TRITON_ON_CPU,
    sample=sample,
    validate=validate,
)  # fmt: skip
