"""Counting rules: golden values worked by hand, masks counted one pair at a time, and wrong rules that must be caught.

Ids like A05 in docstrings name the known accounting mistake that a test guards against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from kernels import work
from kernels.models import MODELS, projections
from kernels.work import Work, storage_bytes

SIZES = st.integers(1, 9)


def attention(
    q_len: int,
    kv_len: int,
    heads: tuple[int, int] = (1, 1),
    dim: int = 64,
    *,
    batch: int = 1,
    causal: bool = True,
    window: int = 0,
) -> Work:
    """Work of one attention through the public rules, looked up late so that a test can plant a wrong rule."""
    return work.attention_work(
        batch=batch,
        q_heads=heads[0],
        kv_heads=heads[1],
        q_len=q_len,
        pairs=batch * work.unmasked_pairs(q_len, kv_len, causal=causal, window=window),
        kv_tokens=batch * work.keys_read(q_len, kv_len, window=window),
        head_dim=dim,
        v_head_dim=dim,
        dtype="bfloat16",
    )


def decode(lengths: Sequence[int], heads: tuple[int, int] = (32, 8)) -> Work:
    """One new token for each cached length, head dimension 128, bfloat16."""
    total = sum(lengths)
    return work.attention_work(
        batch=len(lengths),
        q_heads=heads[0],
        kv_heads=heads[1],
        q_len=1,
        pairs=total,
        kv_tokens=total,
        head_dim=128,
        v_head_dim=128,
        dtype="bfloat16",
    )


def sees(query: int, key: int, q_len: int, kv_len: int, causal: bool, window: int) -> bool:
    """The mask itself: query i stands at position i + Skv - Sq, and sees itself and what is before it."""
    position = query + kv_len - q_len
    return not causal or (key <= position and (window == 0 or key > position - window))


def counted_pairs(q_len: int, kv_len: int, causal: bool, window: int) -> int:
    return sum(sees(i, j, q_len, kv_len, causal, window) for i in range(q_len) for j in range(kv_len))


def counted_keys(q_len: int, kv_len: int, window: int) -> int:
    return sum(any(sees(i, j, q_len, kv_len, True, window) for i in range(q_len)) for j in range(kv_len))


# Golden values. Each is a function so that the planted faults below can be shown to fail it.


def check_matmul_golden() -> None:
    """2 x 3 x 4 multiply-adds are 48 FLOPs; 6 + 12 + 8 values of 2 bytes are 52 bytes."""
    assert work.matmul_work(2, 3, 4, dtype="bfloat16") == Work(flops=48, bytes=2 * (2 * 4 + 4 * 3 + 2 * 3))


def check_causal_golden() -> None:
    """A01: causal is counted by its unmasked pairs, S(S+1)/2 of them: neither S^2 nor S^2/2."""
    flops = attention(4096, 4096, (32, 32), 128).flops
    assert flops == 4 * 32 * 128 * (4096 * 4097 // 2) == 137_472_507_904


def check_bottom_right_golden() -> None:
    """(3, 5): queries see 3, 4, 5 keys. (5, 3): two see nothing, then 1, 2, 3. Top-left would say 6 and 12."""
    assert work.unmasked_pairs(3, 5, causal=True) == 3 + 4 + 5
    assert work.unmasked_pairs(5, 3, causal=True) == 0 + 0 + 1 + 2 + 3


def check_decode_golden() -> None:
    """A05: K and V are read once per KV head: B=4 S=4096 32/8 heads D=128."""
    done = decode([4096] * 4)
    kv = 2 * 4 * 4096 * 8 * 128 * 2
    q_and_o = 2 * 4 * 32 * 128 * 2
    assert (kv, q_and_o) == (67_108_864, 65_536)
    assert done.bytes == kv + q_and_o == 67_174_400
    assert done.flops == 268_435_456
    assert done.flops / done.bytes == pytest.approx(3.996, abs=5e-4)


def check_window_golden() -> None:
    """A03: S=8, W=4 with the query itself: 1 + 2 + 3 + 4 x 5 = 26 pairs, 6656 FLOPs at one head of 64."""
    assert work.unmasked_pairs(8, 8, causal=True, window=4) == 26
    assert attention(8, 8, window=4).flops == 6_656
    assert attention(8, 8).flops == 9_216
    assert attention(8, 8, causal=False).flops == 16_384


GOLDEN = [
    check_matmul_golden,
    check_causal_golden,
    check_bottom_right_golden,
    check_decode_golden,
    check_window_golden,
]


@pytest.mark.parametrize("check", GOLDEN)
def test_golden_value(check: Callable[[], None]) -> None:
    check()


def kv_per_query_head(**given: work.Size) -> Work:
    return RIGHT_ATTENTION(**(given | {"kv_heads": given["q_heads"]}))


def macs_as_flops(*sizes: int, dtype: str) -> Work:
    right = RIGHT_MATMUL(*sizes, dtype=dtype)
    return Work(flops=right.flops // 2, bytes=right.bytes)


def output_left_out(m: int, n: int, k: int, *, dtype: str) -> Work:
    return Work(flops=2 * m * n * k, bytes=storage_bytes(m * k + k * n, dtype))


def full_square(q_len: int, kv_len: int, **mask: work.Size) -> int:
    return q_len * kv_len


def half_square(q_len: int, kv_len: int, **mask: work.Size) -> int:
    return q_len * kv_len // 2


def top_left(q_len: int, kv_len: int, **mask: work.Size) -> int:
    return sum(min(i + 1, kv_len) for i in range(q_len))


def window_without_itself(q_len: int, kv_len: int, *, causal: bool, window: int = 0) -> work.Size:
    return RIGHT_PAIRS(q_len, kv_len, causal=causal, window=window + 1 if window else 0)


RIGHT_ATTENTION, RIGHT_MATMUL, RIGHT_PAIRS = work.attention_work, work.matmul_work, work.unmasked_pairs


@pytest.mark.parametrize(
    ("rule", "wrong", "check"),
    [
        ("attention_work", kv_per_query_head, check_decode_golden),
        ("matmul_work", macs_as_flops, check_matmul_golden),
        ("matmul_work", output_left_out, check_matmul_golden),
        ("unmasked_pairs", full_square, check_causal_golden),
        ("unmasked_pairs", half_square, check_causal_golden),
        ("unmasked_pairs", top_left, check_bottom_right_golden),
        ("unmasked_pairs", full_square, check_window_golden),
        ("unmasked_pairs", window_without_itself, check_window_golden),
    ],
)
def test_golden_value_catches_a_wrong_rule(
    rule: str, wrong: Callable[..., object], check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, rule, wrong)
    with pytest.raises(AssertionError):
        check()


# Masks


@settings(max_examples=80, deadline=None)
@given(q_len=SIZES, kv_len=SIZES, window=st.integers(0, 12))
def test_causal_and_window_pairs_are_those_of_the_mask(q_len: int, kv_len: int, window: int) -> None:
    counted = counted_pairs(q_len, kv_len, True, window)
    assert work.unmasked_pairs(q_len, kv_len, causal=True, window=window) == counted


@settings(max_examples=20, deadline=None)
@given(q_len=SIZES, kv_len=SIZES)
def test_full_pairs_are_those_of_the_mask(q_len: int, kv_len: int) -> None:
    assert work.unmasked_pairs(q_len, kv_len, causal=False) == counted_pairs(q_len, kv_len, False, 0)


@settings(max_examples=80, deadline=None)
@given(q_len=st.integers(0, 9), kv_len=st.integers(0, 9), window=st.integers(0, 12))
def test_keys_read_are_those_that_some_query_sees(q_len: int, kv_len: int, window: int) -> None:
    assert work.keys_read(q_len, kv_len, window=window) == counted_keys(q_len, kv_len, window)


def test_a_lone_query_sees_every_key_and_a_chunk_sees_the_prefix_too() -> None:
    assert work.unmasked_pairs(1, 1000, causal=True) == 1000
    assert work.unmasked_pairs(2, 1000, causal=True) == 999 + 1000
    assert work.unmasked_pairs(512, 4096, causal=True) == 512 * (4096 - 512) + 512 * 513 // 2


@pytest.mark.parametrize("window", [4, np.int64(4), np.array([0, 4]), pd.Series([0, 4])])
def test_window_without_causal_mask_is_refused(window: work.Size) -> None:
    with pytest.raises(ValueError, match="causal=1"):
        work.unmasked_pairs(8, 8, causal=False, window=window)


def test_column_of_no_windows_needs_no_causal_mask() -> None:
    pairs = work.unmasked_pairs(np.array([3, 4]), np.array([5, 6]), causal=False, window=np.array([0, 0]))
    assert pairs.tolist() == [15, 24]


# Ints and columns


COLUMNS = [np.array, pd.Series]
Q_LENS, KV_LENS, WINDOWS = [1, 3, 5, 64, 4096], [7, 3, 3, 4096, 131072], [0, 2, 9, 1024, 4096]


@pytest.mark.parametrize("column", COLUMNS)
def test_mask_counts_agree_for_ints_and_columns(column: Callable[[list[int]], work.Size]) -> None:
    rows = list(zip(Q_LENS, KV_LENS, WINDOWS, strict=True))
    pairs = work.unmasked_pairs(column(Q_LENS), column(KV_LENS), causal=True, window=column(WINDOWS))
    keys = work.keys_read(column(Q_LENS), column(KV_LENS), window=column(WINDOWS))
    assert pairs.tolist() == [work.unmasked_pairs(q, kv, causal=True, window=w) for q, kv, w in rows]
    assert keys.tolist() == [work.keys_read(q, kv, window=w) for q, kv, w in rows]


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("weight_dtype", ["", "int4", "int8"])
def test_matmul_work_agrees_for_ints_and_columns(column: Callable[[list[int]], work.Size], weight_dtype: str) -> None:
    sizes = [[1, 33, 32768], [5, 4096, 128256], [3, 129, 8192]]
    both = work.matmul_work(*map(column, sizes), dtype="bfloat16", weight_dtype=weight_dtype)
    single = [work.matmul_work(*row, dtype="bfloat16", weight_dtype=weight_dtype) for row in zip(*sizes, strict=True)]
    assert both.flops.tolist() == [one.flops for one in single]
    assert both.bytes.tolist() == [one.bytes for one in single]


@pytest.mark.parametrize("column", COLUMNS)
def test_attention_work_agrees_for_ints_and_columns(column: Callable[[list[int]], work.Size]) -> None:
    batch, q_len, kv_len = [1, 3, 256], [4096, 2, 1], [4096, 777, 131072]

    def of(b: work.Size, q: work.Size, kv: work.Size) -> Work:
        pairs, keys = work.unmasked_pairs(q, kv, causal=True), work.keys_read(q, kv)
        return work.attention_work(
            batch=b, q_heads=32, kv_heads=8, q_len=q, pairs=b * pairs, kv_tokens=b * keys,
            head_dim=128, v_head_dim=128, dtype="bfloat16", kv_dtype="float8_e4m3fn", lse=True,
        )  # fmt: skip

    both = of(column(batch), column(q_len), column(kv_len))
    single = [of(*row) for row in zip(batch, q_len, kv_len, strict=True)]
    assert both.flops.tolist() == [one.flops for one in single]
    assert both.bytes.tolist() == [one.bytes for one in single]


def test_counts_beyond_64_bits_do_not_overflow() -> None:
    side = 2**22
    assert work.matmul_work(side, side, side, dtype="bfloat16").flops == 2**67
    assert work.causal_pairs(2**33, 2**33) == 2**32 * (2**33 + 1)
    assert attention(2**33, 2**33, (64, 8), 128).flops == 4 * 64 * 128 * 2**32 * (2**33 + 1) > 2**63
    assert work.matmul_work(2**33, 8, 8, dtype="float8_e4m3fn").bytes == 2 * 8 * 2**33 + 64


# Bytes


def test_int4_weight_takes_half_a_byte_and_its_scales_count() -> None:
    """A09: 4096 x 4096 at 4 bits with one bf16 scale per 128 values is 8,650,752 bytes beside the activations."""
    scales = 4096 * 4096 // 128 * 2
    done = work.matmul_work(1, 4096, 4096, dtype="bfloat16", weight_dtype="int4", extra_bytes=scales)
    assert storage_bytes(4096 * 4096, "int4") == 8_388_608
    assert done.bytes - 2 * (4096 + 4096) == 8_388_608 + 262_144 == 8_650_752


def test_odd_count_of_int4_values_takes_a_whole_last_byte() -> None:
    assert [storage_bytes(n, "int4") for n in (0, 1, 2, 3)] == [0, 1, 1, 2]


def test_unknown_storage_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'fp8'.*float8_e4m3fn"):
        storage_bytes(1, "fp8")


def test_kv_bytes_are_of_real_lengths_not_of_the_allocation() -> None:
    """A07: capacity 8192 but lengths 100 and 50: 614,400 bytes of K and V, not 67,108,864."""
    q_and_o = 2 * 2 * 32 * 128 * 2
    assert decode([100, 50]).bytes - q_and_o == 614_400


def test_lookup_is_no_matmul_and_the_head_is_one() -> None:
    """A12: V=32000 h=4096: the head is 262,144,000 FLOPs a token; no model lists its embedding as a matmul."""
    assert work.matmul_work(1, 32000, 4096, dtype="bfloat16").flops == 262_144_000
    names = {p.name for model in MODELS for p in projections(model, 1)}
    assert "lm_head" in names
    assert not [name for name in names if "embed" in name]


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def size_of(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "out_dtype"),
    [
        ("bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", "float8_e4m3fn", "bfloat16"),
        ("float8_e5m2", "float8_e5m2", "float32"),
        ("int8", "int8", "bfloat16"),
        ("float32", "float16", "float32"),
    ],
)
def test_matmul_bytes_are_those_of_its_tensors(dtype: str, weight_dtype: str, out_dtype: str) -> None:
    m, n, k = 33, 129, 257
    tensors = (
        meta(m, k, dtype=getattr(torch, dtype)),
        meta(k, n, dtype=getattr(torch, weight_dtype)),
        meta(m, n, dtype=getattr(torch, out_dtype)),
    )
    done = work.matmul_work(m, n, k, dtype=dtype, weight_dtype=weight_dtype, out_dtype=out_dtype)
    assert done.bytes == size_of(*tensors)


@pytest.mark.parametrize("lse", [False, True])
def test_attention_bytes_are_those_of_its_tensors(lse: bool) -> None:
    q, o = meta(3, 32, 5, 192), meta(3, 32, 5, 128)
    k = meta(3, 8, 77, 192, dtype=torch.float8_e4m3fn)
    v = meta(3, 8, 77, 128, dtype=torch.float8_e4m3fn)
    rows = meta(3, 32, 5, dtype=torch.float32)
    done = work.attention_work(
        batch=3, q_heads=32, kv_heads=8, q_len=5, pairs=1, kv_tokens=3 * 77, head_dim=192, v_head_dim=128,
        dtype="bfloat16", kv_dtype="float8_e4m3fn", lse=lse,
    )  # fmt: skip
    assert done.bytes == size_of(q, o, k, v, *([rows] if lse else []))


def test_mla_bytes_are_those_of_its_tensors() -> None:
    q, o, latent = meta(2, 2, 128, 576), meta(2, 2, 128, 512), meta(2, 8192, 576)
    done = work.mla_decode_work(batch=2, q_heads=128, q_len=2, kv_tokens=2 * 8192, pairs=1, dtype="bfloat16")
    assert done.bytes == size_of(q, o, latent)


# FLOPs


def test_matmul_flops_are_torchs() -> None:
    with FlopCounterMode(display=False) as counter:
        torch.mm(meta(33, 257), meta(257, 129))
    assert work.matmul_work(33, 129, 257, dtype="bfloat16").flops == counter.get_total_flops()


def test_full_attention_flops_are_torchs() -> None:
    query, key = meta(2, 4, 8, 16), meta(2, 4, 12, 16)
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.scaled_dot_product_attention(query, key, key)
    assert counter.get_total_flops() > 0
    assert attention(8, 12, (4, 4), 16, batch=2, causal=False).flops == counter.get_total_flops()


def test_attention_flops_take_both_head_dimensions() -> None:
    """Scores over 192 values and output over 128: 2 x pairs x (192 + 128)."""
    done = work.attention_work(
        batch=1, q_heads=3, kv_heads=3, q_len=2, pairs=10, kv_tokens=5, head_dim=192, v_head_dim=128, dtype="bfloat16"
    )
    assert done.flops == 2 * 3 * 10 * 320


@pytest.mark.parametrize(("queries", "intensity"), [(1, 235), (2, 457)])
def test_mla_decode_of_128_heads_does_hundreds_of_flops_a_byte(queries: int, intensity: int) -> None:
    keys = 8192
    pairs = sum(keys - queries + 1 + i for i in range(queries))
    done = work.mla_decode_work(batch=1, q_heads=128, q_len=queries, kv_tokens=keys, pairs=pairs, dtype="bfloat16")
    assert done.flops == 2 * 128 * pairs * (576 + 512)
    assert done.bytes == keys * 576 * 2 + queries * 128 * (576 + 512) * 2
    assert done.flops / done.bytes == pytest.approx(intensity, abs=0.7)


def test_a_fused_gate_and_up_projection_moves_nothing_between() -> None:
    """M 2, N 3, K 4: 2 x 24 multiply-adds are 96 FLOPs; 8 + 2 x 12 + 6 values of 2 bytes are 76 bytes.

    Apart, [2, 6] is written and read: 24 bytes each way.
    """
    done = work.gate_up_work(2, 3, 4, dtype="bfloat16")
    assert done == Work(flops=96, bytes=76)
    assert work.matmul_work(2, 6, 4, dtype="bfloat16").bytes + 2 * (12 + 6) == done.bytes + 2 * 24


def test_grouped_matmul_reads_only_the_experts_that_got_a_row() -> None:
    done = work.grouped_matmul_work(10, 64, 32, experts_hit=3, dtype="bfloat16", weight_dtype="int8")
    assert done.flops == 2 * 10 * 64 * 32
    assert done.bytes == 2 * (10 * 32 + 10 * 64) + 3 * 32 * 64


def test_glue_moves_each_value_once_and_counts_no_flops() -> None:
    """Three vectors of 5 values: 30 bytes of 2, 60 of 4."""
    assert work.glue_work(15, "bfloat16") == work.Work(flops=0, bytes=30)
    assert work.glue_work(15, "float32") == work.Work(flops=0, bytes=60)


def test_every_count_says_which_rules_it_follows() -> None:
    assert work.COUNTING_VERSION == 1
    assert attention(2, 2).counting == work.matmul_work(1, 1, 1, dtype="int8").counting == 1
