"""attention_paged_prefill: many new tokens per sequence attend to their sequence's paged KV cache, causal.

q [B, Sq, Hq, D] over pools of pages [pages, page_size, Hkv, D]; see `kernels.attention_paged`. A whole prompt has
as many new tokens as keys, a chunk of one fewer. Bound: arithmetic from a few hundred tokens on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernels import attention_paged as common
from kernels import attention_paged_decode
from kernels.spec import Workload


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A prefill workload of technique paged."""
    return common.describe({**axes, "kv_len": axes["kv_len"] or axes["q_len"]}, dtype, source, "prefill")


def _check(dtype: str = "float32", kv_lens: tuple[int, ...] = (), **axes: int) -> Workload:
    sizes = {"batch": 2, "q_len": 33, "kv_len": 70, "q_heads": 4, "kv_heads": 2, "head_dim": 64, "page_size": 16} | axes
    return replace(describe_axes(sizes, dtype, ("ragged, for correctness",)), kv_lens=kv_lens)


OP = replace(
    attention_paged_decode.OP,
    name="attention_paged_prefill",
    summary="many new tokens attend to their sequence's paged KV cache, causal bottom-right",
    axes={**attention_paged_decode.OP.axes, "q_len": None, "kv_len": 0},
    describe_axes=describe_axes,
    check_workloads=(
        _check(),
        _check(q_len=70, batch=1, page_size=64),
        _check(q_len=1, kv_len=40, page_size=8),
        _check(q_len=1, batch=3, kv_len=17, page_size=17),
        _check(q_len=9, kv_lens=(3, 70), page_size=1),
        _check("float16", q_len=40, batch=3, kv_lens=(70, 0, 41), q_heads=7, kv_heads=1, head_dim=128, page_size=48),
        _check("float16", batch=1, q_len=129, kv_len=129, q_heads=3, kv_heads=3, head_dim=80, page_size=32),
    ),
    unsupported=common.unsupported,
)
