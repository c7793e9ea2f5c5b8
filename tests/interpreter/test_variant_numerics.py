"""Windows, sinks and caps on logits by the interpreter: values by hand, the definition in loops, the error rule."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attention_paths import DTYPES, TILES, decode, decode_is_right, prefill, prefill_is_right
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention import Answers, agree, arrays, by_loops, draw, numbered, rows
from test_attention_numerics import TOLERANCE, drawn

ALL_TILES = (None, *TILES)


def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **variant: Any) -> Answers:
    """Prefill's and decode's answers to the same: up to 16 queries over a whole cache."""
    return prefill(q, k, v, tiles=ALL_TILES, **variant) | decode(q, k, v, *[k.shape[1]] * len(k), **variant)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k27_a_window_of_4_over_8_tokens_is_26_pairs_with_each_query_its_own(dtype: torch.dtype) -> None:
    """K = 0 and V[t] = t: 1, 2, 3 and then 4 keys, and their means."""
    q, (k, v) = draw(1, 1, 8, 1, 16).to(dtype), (tensor.to(dtype) for tensor in numbered(8))
    seen = [min(i + 1, 4) for i in range(8)]
    assert sum(seen) == 26
    means = rows(*(i - (n - 1) / 2 for i, n in enumerate(seen)))
    agree(both(q, k, v, window=4), means, [[[math.log(n) for n in seen]]], tolerance=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k27_a_window_of_1_gives_each_its_own_value_and_one_of_all_keys_is_no_window(dtype: torch.dtype) -> None:
    q, k, v = drawn((1, 8, 2, 16), (1, 70, 1, 16), (1, 70, 1, 16), dtype=dtype)
    agree(both(q, k, v, window=1), v[:, -8:].double(), tolerance=0)
    truth = by_loops(*arrays(q, k, v), [70], causal=True)
    for window in (70, 71, 2**31 - 1):
        agree(both(q, k, v, window=window), *truth, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("window", [2, 31, 64, 65, 129])
def test_windows_that_begin_and_end_anywhere_in_tiles(window: int) -> None:
    """Several tiles of queries with edges of their own, and splits that share what the window reaches."""
    q, k, v = drawn((1, 140, 1, 16), (1, 200, 1, 16), (1, 200, 1, 16))
    truth = by_loops(*arrays(q, k, v), [200], causal=True, window=window)
    agree(prefill(q, k, v, tiles=ALL_TILES, window=window), *truth)
    few = decode(q[:, -5:], k, v, 200, splits=(1, 2, 7), window=window)
    agree(few, truth[0][:, -5:], truth[1][:, :, -5:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_lies_before_every_window_is_never_read(dtype: torch.dtype) -> None:
    """The first of 5 queries over 70 keys is key 65, whose window of 8 begins at 58."""
    q, k, v = drawn((1, 5, 2, 16), (1, 70, 1, 16), (1, 70, 1, 16), dtype=dtype)
    truth = by_loops(*arrays(q, k, v), [70], causal=True, window=8)
    k[:, :58], v[:, :58] = math.nan, math.inf
    agree(both(q, k, v, window=8), *truth, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_ragged_lengths_have_windows_of_their_own(dtype: torch.dtype) -> None:
    q, k, v = drawn((4, 3, 5, 16), (4, 90, 1, 16), (4, 90, 1, 16), dtype=dtype)
    lens = [90, 2, 0, 33]
    truth = by_loops(*arrays(q, k, v), lens, causal=True, window=20)
    agree(decode(q, k, v, *lens, splits=(1, 3), window=20), *truth, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("far", "out", "lse"), [(125, 0.85798, 50.1532), (-125, 0.0, 48.2014)])
def test_k32_a_cap_of_50_bends_100_to_48_2014_and_10000_to_50(
    far: float, out: float, lse: float, dtype: torch.dtype
) -> None:
    """Scores of 10 x 64 / 8 times the key: 100, and 10,000 either way; 50 + log(1 + exp(48.2014 - 50)) = 50.1532."""
    q, k = torch.full((1, 1, 1, 64), 10.0, dtype=dtype), torch.full((1, 2, 1, 64), 1.25, dtype=dtype)
    k[:, 1] = far
    v = numbered(2, width=64)[1].to(dtype)
    agree(both(q, k, v, softcap=50), rows(out), [[[lse]]], tolerance=6e-4 if dtype == torch.float16 else 2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_capped_logits_of_80000_either_way_are_the_cap(sign: int, dtype: torch.dtype) -> None:
    q, k = torch.full((1, 1, 1, 64), 100.0, dtype=dtype), torch.full((1, 4, 1, 64), sign * 100.0, dtype=dtype)
    v = numbered(4, width=64)[1].to(dtype)
    agree(both(q, k, v, softcap=50), rows(1.5), [[[sign * 50 + math.log(4)]]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cap_bends_usual_scores_as_its_definition_says(dtype: torch.dtype) -> None:
    """Caps near the scores, which are about 1, and far above them."""
    q, k, v = drawn((1, 5, 2, 64), (1, 70, 1, 64), (1, 70, 1, 64), dtype=dtype)
    for softcap in (1, 2, 50):
        truth = by_loops(*arrays(q, k, v), [70], causal=True, softcap=softcap)
        agree(both(q, k, v, softcap=softcap), *truth, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("score", [1e-3, -0.03, 0.7, 20, 31.3])
def test_a_float32_score_keeps_its_digits_under_a_cap(score: float) -> None:
    """The log-sum-exp of one key is its capped score: 50 tanh(score / 50), of 64 products and a scale of 1 / 8."""
    q, k = torch.full((1, 1, 1, 64), 0.5), torch.full((1, 1, 1, 64), score / 4)
    agree(both(q, k, k, softcap=50), rows(score / 4), [[[50 * math.tanh(score / 50)]]], tolerance=3e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_len", [3, 70])
def test_a_sink_weighs_in_the_sum_once_and_has_no_value(kv_len: int, dtype: torch.dtype) -> None:
    """K = 0: the sum of 0 .. n - 1 over n + exp(sink), of each head its own; three keys leave splits without any."""
    sinks = torch.tensor([0.0, 2.0, -3.0, math.log(kv_len)])
    k, v = (tensor.to(dtype) for tensor in numbered(kv_len, heads=2))
    weight = kv_len + sinks.double().exp()
    out = (kv_len * (kv_len - 1) / 2 / weight).view(1, 1, 4, 1)
    answers = both(draw(1, 1, 1, 4, 16).to(dtype), k, v, sinks=sinks)
    agree(answers, out, weight.log().view(1, 4, 1), tolerance=1e-3)
    assert out[0, 0, 3, 0] == pytest.approx((kv_len - 1) / 4), "a sink of log(n) halves the mean"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_that_sees_no_key_gives_zero_and_its_sink(dtype: torch.dtype) -> None:
    """No keys at all; and of 5 queries over 2 keys the first three."""
    sinks = torch.tensor([0.5, -20.0])
    q, k, v = drawn((1, 5, 2, 16), (1, 2, 1, 16), (1, 2, 1, 16), dtype=dtype)
    agree(both(q, k[:, :0], v[:, :0], sinks=sinks), 0, sinks.view(1, 2, 1))
    out, lse = by_loops(*arrays(q, k, v), [2], causal=True, sinks=sinks.numpy())
    assert not out[:, :3].any() and (lse[0, :, 0] == sinks.numpy()).all()
    agree(both(q, k, v, sinks=sinks), out, lse, tolerance=TOLERANCE[dtype])
    agree(decode(q, k, v, 0, splits=(1, 4), sinks=sinks), 0, sinks.view(1, 2, 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_far_negative_sink_is_none_and_a_far_positive_one_takes_all_the_weight(dtype: torch.dtype) -> None:
    q, k, v = drawn((1, 3, 2, 16), (1, 70, 1, 16), (1, 70, 1, 16), dtype=dtype)
    truth = by_loops(*arrays(q, k, v), [70], causal=True)
    for none in (-1e9, -math.inf):
        agree(both(q, k, v, sinks=torch.tensor([none] * 2)), *truth, tolerance=TOLERANCE[dtype])
    agree(both(q, k, v, sinks=torch.tensor([1e4] * 2)), 0, 1e4)


@settings(max_examples=7, deadline=None, derandomize=True)
@given(st.data())
def test_variants_of_any_shape_together_pass_the_error_rule(data: st.DataObject) -> None:
    Hkv, G, Sq = (data.draw(st.integers(1, high), name) for name, high in (("Hkv", 2), ("G", 7), ("Sq", 5)))
    lens = data.draw(st.lists(st.integers(0, 150), min_size=1, max_size=2), "lens")
    D = data.draw(st.sampled_from((8, 24, 64, 72)), "D")
    window, softcap = data.draw(st.integers(0, 160), "window"), data.draw(st.sampled_from((0, 1, 50)), "softcap")
    # Of half-precision inputs a capped score is off by 2^-23 of the cap: more than the rule grants a float32 lse.
    dtype = torch.float32 if softcap else data.draw(st.sampled_from(DTYPES))
    S, B, Hq = max(lens), len(lens), Hkv * G
    q, k, v = drawn((B, Sq, Hq, D), (B, S, Hkv, D), (B, S, Hkv, D), dtype=dtype)
    sinks = data.draw(st.sampled_from((None, draw(9, Hq) * 3)), "sinks")
    variant: dict[str, Any] = {"window": window, "softcap": softcap, "sinks": sinks}
    decode_is_right(q, k, v, *lens, splits=(1, 3), **variant)
    prefill_is_right(q, k, v, tiles=(None, data.draw(st.sampled_from(TILES))), **variant)
