"""Workloads: what they refuse, and keys that are exact, distinct and stable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kernels.spec import COMPUTE_DTYPES, DTYPE_ALIASES, Workload, dtype_named
from kernels.work import AXES

MATMUL = {"M": 4096, "N": 4096, "K": 4096}
HEADS = {"q_heads": 32, "kv_heads": 8, "head_dim": 128}


def matmul(axes: Mapping[str, int] = MATMUL, **changes: Any) -> Workload:
    return Workload(**{"axes": axes, "dtype": "bfloat16", "phase": "prefill", **changes})


def ragged(*lengths: int, kv_len: int = 8192) -> Workload:
    axes = {"batch": len(lengths), "q_len": 1, "kv_len": kv_len, **HEADS}
    return Workload(axes=axes, dtype="bfloat16", phase="decode", kv_lens=lengths)


def test_key_is_dtype_and_sizes() -> None:
    assert matmul().key == "bfloat16/M=4096,N=4096,K=4096"


def test_key_does_not_depend_on_the_order_the_axes_are_given_in() -> None:
    assert matmul({"K": 3, "N": 2, "M": 1}).key == matmul({"M": 1, "N": 2, "K": 3}).key == "bfloat16/M=1,N=2,K=3"


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({"weight_dtype": "int4"}, "bfloat16.w_int4"),
        ({"kv_dtype": "float8_e4m3fn"}, "bfloat16.kv_float8_e4m3fn"),
        ({"kv_dtype": "int8", "scale": "head"}, "bfloat16.kv_int8.head"),
        ({"scale": "block128"}, "bfloat16.block128"),
        ({"weight_dtype": "int8", "scale": "channel"}, "bfloat16.w_int8.channel"),
        ({"dtype": "tfloat32"}, "tfloat32"),
    ],
)
def test_storage_and_scale_enter_the_key(changes: Mapping[str, Any], dtype: str) -> None:
    assert matmul(**changes).key.split("/")[0] == dtype


def test_storage_in_the_compute_dtype_is_the_same_problem() -> None:
    assert matmul(weight_dtype="bfloat16", kv_dtype="bfloat16").key == matmul().key
    assert matmul(weight_dtype="bfloat16").weight_dtype == ""


def test_causal_true_is_the_same_problem_as_causal_1() -> None:
    assert matmul({**MATMUL, "causal": True}).key == matmul({**MATMUL, "causal": 1}).key
    assert matmul({**MATMUL, "causal": 1}).key.endswith(",causal=1")


def test_ragged_keys_are_distinct_and_the_same_in_every_process() -> None:
    """CRC-32 of '1+2+...+9' by an independent implementation; Python's hash() would differ between processes."""
    assert ragged(100, 50).key.endswith(",kv_lens=100+50")
    assert ragged(50, 100).key != ragged(100, 50).key
    many = tuple(range(1, 10))
    assert ragged(*many).key.endswith(f",kv_lens=sum45-{crc32(b'1+2+3+4+5+6+7+8+9'):08x}")
    assert ragged(*many).key != ragged(*reversed(many)).key


def crc32(data: bytes) -> int:
    """CRC-32 bit by bit, from its definition (reflected polynomial 0xEDB88320)."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0xEDB88320 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_ragged_and_even_batches_have_different_keys() -> None:
    even = Workload(axes={"batch": 2, "q_len": 1, "kv_len": 8192, **HEADS}, dtype="bfloat16", phase="decode")
    assert even.key != ragged(8192, 8192).key


@pytest.mark.parametrize(
    ("lengths", "axes"),
    [
        ((1, 2, 3), {"batch": 2, "kv_len": 8}),
        ((1, 9), {"batch": 2, "kv_len": 8}),
        ((-1, 8), {"batch": 2, "kv_len": 8}),
        ((1, 2), {"batch": 2}),
        ((1, 2), {"kv_len": 8}),
    ],
)
def test_wrong_ragged_lengths_are_refused_by_name(lengths: tuple[int, ...], axes: Mapping[str, int]) -> None:
    with pytest.raises(ValueError, match="kv_lens needs one length for each"):
        Workload(axes=axes, dtype="bfloat16", phase="decode", kv_lens=lengths)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": {"M": 1, "n": 2}}, r"unknown axis 'n'; known: M, N, K"),
        ({"axes": {"M": -1}}, r"axis M must be a whole number >= 0, got -1"),
        ({"axes": {"M": 1.5}}, r"axis M must be a whole number >= 0, got 1.5"),
        ({"dtype": "bf16"}, r"unknown dtype 'bf16'; known: bfloat16"),
        ({"phase": "training"}, r"unknown phase 'training'; known: prefill, decode, mixed"),
        ({"technique": "sparse"}, r"unknown technique 'sparse'; known: dense"),
        ({"weight_dtype": "int3"}, r"unknown storage dtype 'int3'; known: .*int4"),
        ({"kv_dtype": "int3"}, r"unknown storage dtype 'int3'"),
        ({"scale": "row"}, r"unknown scale 'row'; known: tensor, head, token, channel, block128"),
    ],
)
def test_unknown_word_is_refused_with_what_is_known(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        matmul(**changes)


def test_workload_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        matmul().phase = "decode"  # type: ignore[misc]


def test_every_short_dtype_name_is_known_and_others_are_named() -> None:
    assert {dtype_named(short) for short in DTYPE_ALIASES} <= set(COMPUTE_DTYPES)
    assert dtype_named("bf16") == dtype_named("bfloat16") == "bfloat16"
    assert dtype_named("fp8") == "float8_e4m3fn"
    with pytest.raises(ValueError, match=r"unknown dtype 'fp4'; known: bfloat16, .*bf16"):
        dtype_named("fp4")


def test_axis_names_are_those_of_the_field() -> None:
    assert ",".join(AXES) == (
        "M,N,K,batch,q_len,kv_len,prefix_len,q_heads,kv_heads,head_dim,v_head_dim,causal,window,sinks,softcap,page_size,"
        "group_size,experts,top_k,skewed"
    )
