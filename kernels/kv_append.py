"""kv_append: the new tokens' keys and values of each sequence are written into its cache, behind those that are there.

kv_new [B, Sq, 2, Hkv, D] holds keys and values as a fused projection leaves them; kv_cache [B, S, 2, Hkv, D] is
allocated for S tokens and may have any strides, so that keys and values can lie in two buffers or in one. No
arithmetic: its intensity is 0. Every new value is read once and written once, 2 x B x Sq x 2 x Hkv x D values whatever
lies in the cache: DRAM bounds a long prompt's, the launch floor a decode step's.

`kv_len` of a workload is the length with the new tokens, as attention over the cache then has it. A launch touches the
new rows alone, so where the cache is longer than what is appended, rotation over copies of it keeps less cold than its
allocation says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernels.attention_part import SAMPLED_KV_HEADS, SAMPLED_SEQUENCES
from kernels.inputs import Sampler, torch_dtype
from kernels.matmul import spread
from kernels.spec import TRITON_ON_CPU, Inputs, Op, Outputs, Workload
from kernels.work import DECODE_TOKENS, Work, kv_append_work

CHECK_IN_FULL = 2**24
"""Values of a cache up to which all of it is compared; above it those of some sequences."""


def rows_of(kv_new: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(sequences [B, 1], places in them [B, Sq]) of the new tokens in the cache."""
    B, Sq = kv_new.shape[:2]
    tokens = torch.arange(Sq, device=kv_new.device)
    return torch.arange(B, device=kv_new.device)[:, None], positions.long()[:, None] + tokens


def kv_append_torch(kv_new: torch.Tensor, kv_cache: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """torch's indexed assignment; returns kv_cache [B, S, 2, Hkv, D], which it writes."""
    return kv_cache.index_put_(rows_of(kv_new, positions), kv_new)


def kv_append_triton(kv_new: torch.Tensor, kv_cache: torch.Tensor, positions: torch.Tensor, **how: Any) -> Outputs:
    """The Triton kernel: see `kernels.kv_append_triton.kv_append`."""
    from kernels import kv_append_triton as kernel

    return kernel.kv_append(kv_new, kv_cache, positions, **how)


def kv_append_eager(kv_new: torch.Tensor, kv_cache: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The cache [B, S, 2, Hkv, D] with the new rows, a copy: the inputs stay as they are."""
    return kv_append_torch(kv_new, kv_cache.clone(), positions)


def kv_append_reference(kv_new: torch.Tensor, kv_cache: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The same in float64."""
    return kv_append_torch(kv_new.double(), kv_cache.double(), positions)


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """kv_new, kv_cache, and the row of each sequence's first new token (int32)."""
    a = workload.axes
    draw, dtype = Sampler(device, seed), torch_dtype(workload.dtype)
    lens = workload.kv_lens or (a["kv_len"],) * a["batch"]
    each = (2, a["kv_heads"], a["head_dim"])
    return {
        "kv_new": draw.normal((a["batch"], a["q_len"], *each), dtype),
        "kv_cache": draw.normal((a["batch"], a["kv_len"], *each), dtype),
        "positions": torch.tensor([length - a["q_len"] for length in lens], dtype=torch.int32, device=device),
    }


def validate(kv_new: torch.Tensor, kv_cache: torch.Tensor, positions: torch.Tensor) -> None:
    """Raises ValueError when a new token's row lies outside the cache."""
    low, high = map(int, positions.aminmax()) if positions.numel() else (0, 0)
    last = kv_cache.shape[1] - kv_new.shape[1]
    if low < 0 or high > last:
        raise ValueError(
            f"positions must lie in 0..{last} (a cache of {kv_cache.shape[1]} rows less {kv_new.shape[1]} new ones), "
            f"got {low}..{high}"
        )


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[Outputs], Outputs]]:
    """The whole of a small cache; of a large one two KV heads of some sequences, all their rows."""
    kv_new, kv_cache = inputs["kv_new"], inputs["kv_cache"]
    if kv_cache.numel() <= CHECK_IN_FULL:
        return inputs, lambda out: out
    rows = spread(kv_cache.shape[0], SAMPLED_SEQUENCES, kv_cache.device)
    heads = spread(kv_cache.shape[3], SAMPLED_KV_HEADS, kv_cache.device)
    fewer = {
        "kv_new": kv_new[rows][..., heads, :],
        "kv_cache": kv_cache[rows][..., heads, :],
        "positions": inputs["positions"][rows],
    }
    return fewer, lambda out: out[rows][..., heads, :]


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernel's configurations."""
    from kernels import kv_append_triton as kernel

    return kernel.configs_for(torch_dtype(workload.dtype), arch)


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernel's tuned table for this workload."""
    from kernels import kv_append_triton as kernel

    return kernel.bucket_of(torch_dtype(workload.dtype))


def work(workload: Workload) -> Work:
    """Every new value read and written once; the positions are overhead."""
    a = workload.axes
    return kv_append_work(
        batch=a["batch"], tokens=a["q_len"], kv_heads=a["kv_heads"], head_dim=a["head_dim"], dtype=workload.dtype
    )


def unsupported(workload: Workload, provider: str) -> str | None:
    """More new tokens than a sequence then has."""
    shortest, q_len = min(workload.kv_lens or (workload.axes["kv_len"],)), workload.axes["q_len"]
    if shortest < q_len:
        return f"kv_len counts the new tokens too, so {shortest} cannot hold q_len={q_len} of them"
    return None


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A step's append; more tokens than a decode step has are a prompt's."""
    sizes = {**axes, "kv_len": axes["kv_len"] or axes["q_len"]}
    phase = "decode" if sizes["q_len"] <= DECODE_TOKENS else "prefill"
    return Workload(axes=sizes, dtype=dtype, phase=phase, technique="kv_cache", source=source)


def _check(dtype: str = "float32", kv_lens: tuple[int, ...] = (), **axes: int) -> Workload:
    sizes = {"batch": 2, "q_len": 1, "kv_len": 33, "kv_heads": 2, "head_dim": 64} | axes
    return replace(describe_axes(sizes, dtype, ("ragged, for correctness",)), kv_lens=kv_lens)


OP = Op(
    name="kv_append",
    summary="cache[b, length[b]:] = the new tokens' keys and values",
    axes={"batch": 1, "q_len": 1, "kv_len": 0, "kv_heads": 8, "head_dim": 128},
    dtypes=("bfloat16", "float16", "float32"),
    make_inputs=make_inputs,
    reference=kv_append_reference,
    eager=kv_append_eager,
    providers={"triton": kv_append_triton, "torch": kv_append_torch},
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(),
        _check("float16", kv_lens=(33, 1, 17), batch=3),
        _check(q_len=5, kv_lens=(5, 33), kv_heads=3, head_dim=80),
        _check("float16", batch=1, q_len=40, kv_len=40, kv_heads=1, head_dim=96),
    ),
    roles={"kv_new": "streamed", "kv_cache": "streamed", "positions": "resident"},
    writes=("kv_cache",),
    unsupported=unsupported,
    configs=configs,
    bucket=bucket,
    cuda_only=TRITON_ON_CPU,
    sample=sample,
    validate=validate,
)
