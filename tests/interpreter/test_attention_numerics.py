"""Both Triton attention kernels by the interpreter against independent truth: loops, values by hand, the error rule."""

from __future__ import annotations

import math

import pytest
import torch
from attention_paths import DTYPES, TILES, decode, decode_is_right, prefill, prefill_is_right
from guarded import guard_bands, surrounded
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention import agree, arrays, by_loops, draw, numbered, rows

from kernels import attention_decode_triton as decode_kernel

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3}


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple(draw(seed, *shape).to(dtype) for seed, shape in enumerate(shapes, start=1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", [72, 80, 96, 112, 160, 192])
def test_k12_heads_of_any_width_are_scaled_by_their_own_width(D: int, dtype: torch.dtype) -> None:
    q, k, v = drawn((1, 33, 2, D), (1, 33, 1, D), (1, 33, 1, D), dtype=dtype)
    truth = by_loops(*arrays(q, k, v), [33], causal=True)
    agree(prefill(q, k, v), *truth, tolerance=TOLERANCE[dtype])
    agree(decode(q[:, -1:], k, v, 33), truth[0][:, -1:], truth[1][:, :, -1:], tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", [1, 8, 16, 64, 128, 256])
def test_heads_of_every_padded_width_are_right(D: int, dtype: torch.dtype) -> None:
    q, k, v = drawn((1, 2, 3, D), (1, 40, 1, D), (1, 40, 1, D), dtype=dtype)
    truth = by_loops(*arrays(q, k, v), [40], causal=True)
    agree(prefill(q, k, v), *truth, tolerance=TOLERANCE[dtype])
    agree(decode(q, k, v, 40), *truth, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_k14_values_may_be_narrower_than_keys(dtype: torch.dtype) -> None:
    """The scale is 1 / sqrt(192) and the output 128 wide; also the other way round."""
    q, k, v = drawn((1, 33, 3, 192), (1, 33, 3, 192), (1, 33, 3, 128), dtype=dtype)
    truth = by_loops(*arrays(q, k, v), [33], causal=True)
    answers = prefill(q, k, v)
    assert {out.shape for out, _ in answers.values()} == {(1, 33, 3, 128)}
    agree(answers, *truth, tolerance=TOLERANCE[dtype])
    agree(decode(q[:, -1:], k, v, 33), truth[0][:, -1:], truth[1][:, :, -1:], tolerance=TOLERANCE[dtype])
    prefill_is_right(v[:, :, :, :64], v[:, :, :, :64], k)


@pytest.mark.parametrize(("Hq", "Hkv"), [(28, 4), (25, 5), (24, 4), (64, 4), (21, 7)])
def test_k15_query_head_reads_the_kv_head_of_its_group(Hq: int, Hkv: int) -> None:
    """K = 0 and four keys: weights of 1/4 each, exact, so the output is the head's number exactly."""
    k = torch.zeros(1, 4, Hkv, 16, dtype=torch.float16)
    v = torch.arange(Hkv, dtype=torch.float16).view(1, 1, Hkv, 1).expand(1, 4, Hkv, 16).contiguous()
    expected = torch.tensor([h // (Hq // Hkv) for h in range(Hq)]).view(1, 1, Hq, 1)
    q = draw(1, 1, 2, Hq, 16).half()
    agree(prefill(q, k, v, causal=False, tiles=(TILES[1],)), expected, tolerance=0)
    agree(decode(q[:, :1], k, v, 4), expected, tolerance=0)


@pytest.mark.parametrize("group", range(1, 17))
def test_groups_of_1_to_16_query_heads_pack_with_several_new_tokens(group: int) -> None:
    Sq = 1 + group % 8
    q, k, v = drawn((2, Sq, group, 24), (2, 70, 1, 24), (2, 70, 1, 24))
    decode_is_right(q, k, v, 70, max(0, Sq - 1), splits=(1, 2) if Sq * group < 16 else (1,))
    prefill_is_right(q[:1], k[:1], v[:1], tiles=(None,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("Sq", [2, 4, 8, 15, 16])
def test_drafts_of_2_to_16_tokens_are_causal_inside_and_see_their_whole_sequence(Sq: int, dtype: torch.dtype) -> None:
    """K = 0 and V[t] = t: draft token i of a sequence of n keys gives the mean of 0 .. n - Sq + i, or 0 of none."""
    lens = (70, Sq, Sq - 1, 33)
    k, v = (tensor.to(dtype) for tensor in numbered(70, batch=4))
    seen = torch.tensor([[n - Sq + i + 1 for i in range(Sq)] for n in lens])
    expected = ((seen - 1).clamp(min=0) / 2).view(4, Sq, 1, 1)
    lse = torch.log(seen.clamp(min=0).double()).view(4, 1, Sq)
    agree(decode(draw(1, 4, Sq, 2, 16).to(dtype), k, v, *lens), expected, lse, tolerance=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [5, 8, 16])
def test_k15_drafts_of_16_tokens_pack_with_their_groups(group: int, dtype: torch.dtype) -> None:
    """Groups of 16 by 16 tokens are 256 rows, two tiles of 128."""
    q, k, v = drawn((1, 16, group, 16), (1, 40, 1, 16), (1, 40, 1, 16), dtype=dtype)
    agree(decode(q, k, v, 40), *by_loops(*arrays(q, k, v), [40], causal=True), tolerance=TOLERANCE[dtype])


def test_more_than_16_new_tokens_are_refused() -> None:
    q, k = draw(1, 1, 17, 1, 16), draw(2, 1, 40, 1, 16)
    with pytest.raises(ValueError, match="at most 16 new tokens"):
        decode(q, k, k, 40)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k23_a_sequence_without_keys_gives_zero_and_leaves_the_others_and_a_canary_alone(dtype: torch.dtype) -> None:
    k, v = (tensor.to(dtype) for tensor in numbered(5, batch=3))
    for batch in (0, 2):
        k[batch], v[batch] = math.nan, math.nan
    expected = torch.tensor([0.0, 2.0, 0.0]).view(3, 1, 1, 1)
    lse = torch.tensor([-math.inf, math.log(5), -math.inf]).view(3, 1, 1)
    with guard_bands():
        answers = decode(draw(1, 3, 1, 1, 16).to(dtype), k, v, 0, 5, 0)
    agree(answers, expected, lse)


def test_no_keys_at_all_give_zero() -> None:
    for dtype in DTYPES:
        q, k = draw(1, 2, 1, 4, 16).to(dtype), torch.zeros(2, 0, 2, 16, dtype=dtype)
        for answers in (prefill(q, k, k), decode(q, k, k, 0, 0)):
            agree(answers, 0, -math.inf, tolerance=0)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=["batch", "queries", "heads"])
def test_no_queries_give_an_empty_output(shape: tuple[int, int, int]) -> None:
    B, Sq, Hq = shape
    q, k = torch.zeros(B, Sq, Hq, 16), torch.zeros(B, 5, min(Hq, 2), 16)
    for answers in (prefill(q, k, k), decode(q, k, k, *[5] * B)):
        assert {(out.shape, lse.shape) for out, lse in answers.values()} == {(q.shape, (B, Hq, Sq))}


@pytest.mark.parametrize("dtype", DTYPES)
def test_k20_what_lies_past_a_sequences_keys_is_never_read(dtype: torch.dtype) -> None:
    q, k, v = drawn((2, 1, 2, 16), (2, 80, 1, 16), (2, 80, 1, 16), dtype=dtype)
    k[0, 5:], v[0, 5:], k[1, 65:], v[1, 65:] = math.nan, math.inf, math.inf, math.nan
    agree(decode(q, k, v, 5, 65), *by_loops(*arrays(q, k, v), [5, 65], causal=True), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_k24_causal_mask_is_aligned_bottom_right(dtype: torch.dtype) -> None:
    q = draw(1, 1, 5, 1, 16).to(dtype)
    (k5, v5), (k2, v2) = ((k.to(dtype), v.to(dtype)) for k, v in (numbered(5), numbered(2)))
    tiles = (None, *TILES)
    wide = prefill(q[:, :2], k5, v5, tiles=tiles) | decode(q[:, :2], k5, v5, 5)
    tall = prefill(q, k2, v2, tiles=tiles) | decode(q, k2, v2, 2)
    agree(wide, rows(1.5, 2.0), [[[math.log(4), math.log(5)]]])
    agree(tall, rows(0, 0, 0, 0, 0.5), [[[-math.inf] * 3 + [0, math.log(2)]]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_k25_one_new_token_sees_every_key(dtype: torch.dtype) -> None:
    q, (k, v) = draw(1, 1, 1, 1, 16).to(dtype), (tensor.to(dtype) for tensor in numbered(8))
    agree(prefill(q, k, v), rows(3.5))
    agree(decode(q, k, v, 8), rows(3.5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_k29_logits_of_80000_either_way_are_numbers_like_others(dtype: torch.dtype, sign: int) -> None:
    """100 x 100 x 64 / 8 = 80,000 passes what float16 holds; four of them weigh 1/4 each."""
    q, k = torch.full((1, 1, 1, 64), 100.0, dtype=dtype), torch.full((1, 4, 1, 64), sign * 100.0, dtype=dtype)
    v = numbered(4, width=64)[1].to(dtype)
    for answers in (prefill(q, k, v, causal=False), decode(q, k, v, 4)):
        agree(answers, rows(1.5), [[[sign * 80000 + math.log(4)]]], tolerance=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_key_far_above_the_others_takes_all_the_weight_wherever_it_stands(dtype: torch.dtype) -> None:
    """Logits of -80,000 and one of +80,000, in the first tile, between splits, and last."""
    for place in (0, 129):
        q, (k, v) = torch.full((1, 1, 1, 64), 100.0), numbered(130, width=64)
        k = k - 100
        k[:, place] = 100
        for answers in (
            prefill(q.to(dtype), k.to(dtype), v.to(dtype), causal=False),
            decode(q.to(dtype), k.to(dtype), v.to(dtype), 130),
        ):
            agree(answers, rows(place), [[[80000.0]]], tolerance=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k30_a_fully_masked_row_gives_zero_and_leaves_the_others_right(dtype: torch.dtype) -> None:
    """Row 2 of a batch has no keys; of 4 queries over 2 keys, rows 0 and 1 see none."""
    q, k, v = drawn((4, 4, 1, 16), (4, 4, 1, 16), (4, 4, 1, 16), dtype=dtype)
    out, lse = by_loops(*arrays(q, k, v), [4, 4, 0, 4], causal=True)
    assert not out[2].any() and out[1].all()
    agree(decode(q, k, v, 4, 4, 0, 4), out, lse, tolerance=TOLERANCE[dtype])
    out, lse = by_loops(*arrays(q, k[:, :2], v[:, :2]), [2] * 4, causal=True)
    assert not out[:, :2].any() and (lse[:, :, :2] == -math.inf).all() and out[:, 2:].all()
    agree(prefill(q, k[:, :2], v[:, :2]), out, lse, tolerance=TOLERANCE[dtype])
    agree(decode(q, k[:, :2], v[:, :2], 2, 2, 2, 2, splits=(1,)), out, lse, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("layout", ["heads first", "only v strided", "one fused buffer", "width slow"])
def test_k40_strided_inputs_give_the_bits_that_contiguous_ones_give(layout: str) -> None:
    B, H, S, D = 2, 2, 33, 16
    for dtype in DTYPES if layout == "only v strided" else DTYPES[:1]:
        if layout == "one fused buffer":
            q, k, v = draw(1, B, S, 3 * H, D).to(dtype).split(H, dim=2)  # type: ignore[no-untyped-call]
        elif layout == "width slow":
            q, k, v = (draw(seed, B, H, D, S).to(dtype).permute(0, 3, 1, 2) for seed in (1, 2, 3))
        else:
            q, k, v = (draw(seed, B, H, S, D).to(dtype).transpose(1, 2) for seed in (1, 2, 3))
        if layout == "only v strided":
            q, k = q.contiguous(), k.contiguous()
        plain_q, plain_k, plain_v = (tensor.contiguous() for tensor in (q, k, v))
        assert not v.is_contiguous()
        for strided, same in (
            (prefill_is_right(q, k, v), prefill(plain_q, plain_k, plain_v)),
            (decode_is_right(q[:, :1], k, v, S, 7), decode(plain_q[:, :1], plain_k, plain_v, S, 7)),
        ):
            for who in strided.keys() & same.keys() - {"prefill None"}:
                assert all(map(torch.equal, strided[who], same[who])), who


def test_lengths_may_be_a_column_of_a_table() -> None:
    q, k, v = drawn((3, 1, 2, 16), (3, 9, 1, 16), (3, 9, 1, 16))
    table = torch.tensor([[9, 77], [2, 77], [5, 77]], dtype=torch.int32)
    answer = decode_kernel.attention_decode(q, k, v, table[:, 0], return_lse=True)
    assert isinstance(answer, tuple)
    agree({"decode": answer}, *by_loops(*arrays(q, k, v), [9, 2, 5], causal=True))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.data())
def test_prefill_of_any_shape_passes_the_error_rule(data: st.DataObject) -> None:
    B, Hkv, G = (data.draw(st.integers(1, 2), name) for name in ("B", "Hkv", "G"))
    Sq, Skv = data.draw(st.integers(1, 80), "Sq"), data.draw(st.integers(1, 150), "Skv")
    D, Dv = (data.draw(st.sampled_from((8, 24, 64, 72)), name) for name in ("D", "Dv"))
    slack, causal, dtype = data.draw(st.tuples(st.sampled_from((3, 8)), st.booleans(), st.sampled_from(DTYPES)))
    q, k, v = drawn((B, Sq, Hkv * G, D), (B, Skv, Hkv, D), (B, Skv, Hkv, Dv), dtype=dtype)
    tiles = (None, data.draw(st.sampled_from(TILES)))
    prefill_is_right(*(surrounded(tensor, slack) for tensor in (q, k, v)), causal=causal, tiles=tiles)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.data())
def test_decode_of_any_lengths_passes_the_error_rule(data: st.DataObject) -> None:
    lens = data.draw(st.lists(st.integers(0, 150), min_size=1, max_size=3), "lens")
    Hkv, G, Sq = (data.draw(st.integers(1, high), name) for name, high in (("Hkv", 2), ("G", 4), ("Sq", 3)))
    D, Dv = (data.draw(st.sampled_from((8, 24, 64, 72)), name) for name in ("D", "Dv"))
    S, dtype = max(lens) + data.draw(st.integers(0, 9), "allocated past"), data.draw(st.sampled_from(DTYPES))
    q, k, v = drawn((len(lens), Sq, Hkv * G, D), (len(lens), S, Hkv, D), (len(lens), S, Hkv, Dv), dtype=dtype)
    q, k, v = (surrounded(tensor, 3) for tensor in (q, k, v))
    decode_is_right(q, k, v, *lens, splits=(1, data.draw(st.integers(2, 5))))
