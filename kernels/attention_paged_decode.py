"""attention_paged_decode: 1 to 16 new tokens per sequence attend to their sequence's paged KV cache.

q [B, Sq, Hq, D] over pools of pages [pages, page_size, Hkv, D]; see `kernels.attention_paged`. K and V are read once
per KV head over the real lengths: intensity is about Sq x Hq / Hkv FLOP/byte in bfloat16, so DRAM bounds it on a GPU,
and the launch floor bounds short caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernels import attention_paged as common
from kernels.attention_paged_peers import attention_paged_flash_attn, attention_paged_flashinfer
from kernels.spec import TRITON_ON_CPU, Op, Workload
from kernels.work import DECODE_TOKENS


def unsupported(workload: Workload, provider: str) -> str | None:
    """More query tokens than decode has, and what a provider cannot express."""
    q_len = workload.axes["q_len"]
    if not 1 <= q_len <= DECODE_TOKENS:
        return (
            f"q_len={q_len}: attention_paged_decode is for 1 to {DECODE_TOKENS} new tokens; use attention_paged_prefill"
        )
    return common.unsupported(workload, provider)


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A decode workload of technique paged."""
    return common.describe(axes, dtype, source, "decode")


def _check(dtype: str = "float32", kv_lens: tuple[int, ...] = (), **axes: int) -> Workload:
    sizes = {"batch": 2, "q_len": 1, "kv_len": 70, "q_heads": 4, "kv_heads": 2, "head_dim": 64, "page_size": 16} | axes
    return replace(describe_axes(sizes, dtype, ("ragged, for correctness",)), kv_lens=kv_lens)


OP = Op(
    name="attention_paged_decode",
    summary="1 to 16 new tokens attend to their sequence's paged KV cache",
    axes={
        "batch": 1,
        "q_len": 1,
        "kv_len": None,
        "q_heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "page_size": 16,
    },
    dtypes=("bfloat16", "float16", "float32"),
    make_inputs=common.make_inputs,
    reference=common.attention_paged_reference,
    eager=common.attention_paged_eager,
    providers={
        "triton": common.attention_paged_triton,
        "torch": common.attention_paged_torch,
        "flash_attn": attention_paged_flash_attn,
        "flashinfer": attention_paged_flashinfer,
    },
    work=common.work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(),
        _check(kv_len=64, page_size=64),
        _check(kv_lens=(5, 0, 1), batch=3, q_heads=7, kv_heads=1, page_size=1),
        _check("float16", q_len=3, kv_len=130, kv_lens=(130, 2), head_dim=128, page_size=24),
        _check("float16", kv_lens=(70, 33), q_heads=8, kv_heads=1, head_dim=96, page_size=128),
        _check(q_len=5, batch=1, q_heads=6, kv_heads=1, head_dim=80, page_size=32),
    ),
    roles=common.ROLES,
    unsupported=unsupported,
    configs=common.configs,
    bucket=common.bucket,
    cuda_only=TRITON_ON_CPU | common.CUDA_ONLY,
    sample=common.sample,
    facts=common.facts,
    validate=common.validate,
)
