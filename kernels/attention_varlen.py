"""attention_varlen: prefill of prompts of unlike lengths, packed one after another without padding.

q [total_q, Hq, D], k [total_k, Hkv, D], v [total_k, Hkv, Dv] with cu_seqlens_q and cu_seqlens_k [B + 1] int32: sequence
b's queries are rows cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1, and likewise its keys. Causal is bottom-right, so that
fewer queries than keys are a chunk behind what came before. Useful FLOPs are those of each sequence's own pairs: a
padded batch computes the longest's for all. Bound: arithmetic from a few hundred tokens on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernels import attention_ragged as common
from kernels.attention import too_wide
from kernels.attention_ragged_peers import attention_varlen_flash_attn, attention_varlen_flashinfer
from kernels.inputs import Sampler, torch_dtype
from kernels.ragged_plan import Lengths
from kernels.spec import TRITON_ON_CPU, Inputs, Op, Outputs, Workload
from kernels.work import Work


def attention_varlen_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    lengths: Lengths,
    causal: bool,
) -> torch.Tensor:
    """torch's SDPA, one call a sequence; [total_q, Hq, Dv]. See `kernels.attention_ragged.ragged_sdpa`."""
    return common.ragged_sdpa(q, _keys_of(k, v, lengths), lengths, causal=causal)


def attention_varlen_triton(**inputs: Any) -> Outputs:
    """The Triton kernels: see `kernels.attention_ragged_triton.attention_varlen`."""
    from kernels import attention_ragged_triton as kernel

    return kernel.attention_varlen(**inputs)


def attention_varlen_eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    lengths: Lengths,
    causal: bool,
    places: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [total_q, Hq, Dv], lse [Hq, total_q]); see `kernels.attention_ragged.ragged_eager`."""
    keys = _keys_of(k, v, lengths)
    return common.ragged_eager(q, keys, lengths, v_head_dim=v.shape[2], causal=causal, places=places)


def attention_varlen_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *tables: torch.Tensor, **how: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in float64 from the inputs' own values."""
    return attention_varlen_eager(q.double(), k.double(), v.double(), *tables, **how)


def _keys_of(k: torch.Tensor, v: torch.Tensor, lengths: Lengths) -> common.KeysOf:
    lens = [kv_len for _, kv_len in lengths]
    parts = [torch.split(tensor, lens) for tensor in (k, v)]
    return lambda b: (parts[0][b][None], parts[1][b][None])


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """q, k, v, the starts of their sequences (int32), the lengths on the host, and `causal`."""
    a, lengths = workload.axes, common.lengths_of(workload)
    draw, dtype = Sampler(device, seed), torch_dtype(workload.dtype)
    q_lens, kv_lens = ([lens[i] for lens in lengths] for i in (0, 1))
    return {
        "q": draw.normal((sum(q_lens), a["q_heads"], a["head_dim"]), dtype),
        "k": draw.normal((sum(kv_lens), a["kv_heads"], a["head_dim"]), dtype),
        "v": draw.normal((sum(kv_lens), a["kv_heads"], a.get("v_head_dim", a["head_dim"])), dtype),
        "cu_seqlens_q": common.starts(q_lens, device),
        "cu_seqlens_k": common.starts(kv_lens, device),
        "lengths": lengths,
        "causal": bool(a["causal"]),
    }


def validate(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    *, lengths: Lengths, causal: bool,
) -> None:  # fmt: skip
    """Raises ValueError when the starts on the device are not those of the lengths on the host."""
    common.validate_starts("cu_seqlens_q", cu_seqlens_q, [q_len for q_len, _ in lengths], len(q), "q")
    common.validate_starts("cu_seqlens_k", cu_seqlens_k, [kv_len for _, kv_len in lengths], len(k), "k")


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[Outputs], Outputs]]:
    """The whole of a small problem; of a large one some sequences, queries, and KV heads with their query heads."""
    q, k, lengths = inputs["q"], inputs["k"], inputs["lengths"]
    if common.small(lengths, q.shape[1]):
        return inputs, lambda out: out
    fewer, chosen, kv_heads, cut = common.sampled_queries(q, lengths, k.shape[1])
    keys = _keys_of(k, inputs["v"], lengths)
    parts = [keys(b) for b in chosen]
    for i, name in enumerate(("k", "v")):
        fewer[name] = torch.cat([part[i][0] for part in parts])[:, kv_heads]
    for i, name in enumerate(("cu_seqlens_q", "cu_seqlens_k")):
        fewer[name] = common.starts([lens[i] for lens in fewer["lengths"]], q.device)
    return inputs | fewer, cut


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernel's configurations for this workload."""
    from kernels import attention_ragged_triton as kernel

    return kernel.configs_for(*_kind(workload), 0, arch)


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernel's tuned table for this workload."""
    from kernels import attention_ragged_triton as kernel

    return kernel.bucket_of(*_kind(workload), 0)


def _kind(workload: Workload) -> tuple[torch.dtype, int, int]:
    a = workload.axes
    return torch_dtype(workload.dtype), max(a["head_dim"], a.get("v_head_dim", 0)), common.most_rows(workload)


def work(workload: Workload) -> Work:
    """Each sequence's own pairs and keys; both tables of starts are overhead."""
    a = workload.axes
    return common.ragged_work(workload, causal=bool(a["causal"]), table_entries=2 * (a["batch"] + 1))


def unsupported(workload: Workload, provider: str) -> str | None:
    """What a provider cannot express."""
    return common.unsupported(workload, provider, causal=bool(workload.axes["causal"])) or (
        too_wide(workload.axes) if provider == "triton" else None
    )


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """Prompts of one length; `Workload.q_lens` and `kv_lens` make them unlike."""
    sizes = {**axes, "kv_len": axes["kv_len"] or axes["q_len"], "kv_heads": axes["kv_heads"] or axes["q_heads"]}
    return Workload(axes=sizes, dtype=dtype, phase="prefill", technique="continuous", source=source)


def _check(dtype: str = "float32", lengths: Lengths = ((17, 17), (5, 40), (9, 9)), **axes: int) -> Workload:
    q_lens, kv_lens = zip(*lengths, strict=True)
    sizes = {"batch": len(lengths), "q_len": max(q_lens), "kv_len": max(kv_lens), "q_heads": 4, "kv_heads": 2}
    made = describe_axes(sizes | {"head_dim": 64, "causal": 1} | axes, dtype, ("ragged, for correctness",))
    return replace(made, q_lens=q_lens, kv_lens=kv_lens)


OP = Op(
    name="attention_varlen",
    summary="prefill of packed sequences of unlike lengths, causal bottom-right or full",
    axes={"batch": 8, "q_len": None, "kv_len": 0, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "causal": 1},
    dtypes=("bfloat16", "float16", "float32"),
    make_inputs=make_inputs,
    reference=attention_varlen_reference,
    eager=attention_varlen_eager,
    providers={
        "triton": attention_varlen_triton,
        "torch": attention_varlen_torch,
        "flash_attn": attention_varlen_flash_attn,
        "flashinfer": attention_varlen_flashinfer,
    },
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(),
        _check(lengths=((9, 3), (0, 20), (6, 0), (1, 1), (0, 0), (4, 4))),
        _check("float16", lengths=((1, 70), (5, 5)), q_heads=7, kv_heads=1, head_dim=80, causal=0),
    ),
    roles={
        "q": "resident", "k": "streamed", "v": "streamed", "cu_seqlens_q": "resident", "cu_seqlens_k": "resident",
    },
    unsupported=unsupported,
    configs=configs,
    bucket=bucket,
    cuda_only=TRITON_ON_CPU | common.CUDA_ONLY,
    sample=sample,
    validate=validate,
)  # fmt: skip
