"""The Triton decode over a shared prefix by the interpreter: loops, values by hand, parts of two walks, any batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from attention_paths import DTYPES, follow_the_rule
from guarded import guard_bands, surrounded
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import variant
from races import detect_races, grid_order
from test_attention import Answers, agree, draw, numbered
from test_attention_prefix_decode import given_as, truth

from bench.check import poisoned
from kernels import attention_prefix_decode_triton as kernel
from kernels.attention_decode_configs import Config as DecodeConfig
from kernels.attention_prefix_decode import OP
from kernels.spec import Inputs

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3}
SPLITS = ((1, 1), (3, 2))
"""Programs that share the prefix's keys, and each sequence's own; even numbers raise the maximum lazily."""


def ask(inputs: Inputs, splits: Sequence[tuple[int, int]] = SPLITS) -> Answers:
    """(out, lse) with these numbers of splits, in poisoned memory."""
    found: Answers = {}
    for first, rest in splits:
        over_prefix = kernel.Config(block_n=32, splits=first, lazy=first % 2 == 0)
        over_own = DecodeConfig(block_n=32, splits=rest, lazy=rest % 2 == 0)
        with poisoned():
            answer = kernel.attention_prefix_decode(**inputs, return_lse=True, config=over_prefix, own_config=over_own)
        assert isinstance(answer, tuple)
        found[f"{first} and {rest} splits"] = answer
    return found


def drawn(
    P: int, *lens: int, Hq: int = 2, Hkv: int = 1, D: int = 16, slack: int = 0, dtype: torch.dtype = torch.float32
) -> Inputs:
    """A batch of these lengths after a prefix of P keys."""
    shape = (len(lens), P + max(lens) + slack, Hkv, D)
    q, k, v = (draw(i, *size).to(dtype) for i, size in enumerate(((len(lens), 1, Hq, D), shape, shape)))
    return given_as(q, k, v, P, *lens)


def agrees(inputs: Inputs, splits: Sequence[tuple[int, int]] = SPLITS) -> None:
    agree(ask(inputs, splits), *truth(inputs), tolerance=TOLERANCE[inputs["q"].dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", [64, 72, 80, 96, 128, 192, 256])
def test_k12_heads_of_any_width(D: int, dtype: torch.dtype) -> None:
    agrees(drawn(33, 5, 40, D=D, dtype=dtype))


@pytest.mark.parametrize("group", range(1, 17))
def test_k15_groups_of_1_to_16_heads_are_packed_with_all_sequences(group: int) -> None:
    """Groups of 16 by 9 sequences: 144 rows over the prefix, in tiles of at most 128."""
    lens = range(9 if group == 16 else 4)
    agrees(drawn(40, *lens, Hq=group, D=8, dtype=torch.float16), splits=((2, 1),))


@pytest.mark.parametrize(("Hq", "Hkv"), [(28, 4), (25, 5), (24, 4), (64, 4), (21, 7)])
def test_k15_query_head_reads_the_kv_head_of_its_group(Hq: int, Hkv: int) -> None:
    """K = 0 and four keys: weights of 1/4 each, exact, so the output is the head's number but for the merge."""
    k = torch.zeros(2, 4, Hkv, 16)
    v = torch.arange(float(Hkv)).view(1, 1, Hkv, 1).expand(2, 4, Hkv, 16)
    expected = torch.tensor([h // (Hq // Hkv) for h in range(Hq)]).view(1, 1, Hq, 1)
    agree(ask(given_as(draw(1, 2, 1, Hq, 16), k, v, 3, 1, 1)), expected, tolerance=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("P", [0, 1, 31, 32, 33, 100])
def test_k35_prefixes_off_the_tile_and_none_at_all(P: int, dtype: torch.dtype) -> None:
    """Values 0, 1, .., of which P are shared: the mean of 0 .. P + n - 1."""
    k, v = (tensor.to(dtype) for tensor in numbered(P + 33, batch=4))
    lens = (1, 33, 2, 32)
    expected = torch.tensor([(P + n - 1) / 2 for n in lens]).view(4, 1, 1, 1)
    lse = torch.tensor([math.log(P + n) for n in lens]).view(4, 1, 1)
    agree(ask(given_as(draw(1, 4, 1, 2, 16).to(dtype), k, v, P, *lens)), expected, lse, tolerance=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k23_k36_empty_parts_give_the_other_part_and_two_of_them_zero(dtype: torch.dtype) -> None:
    """Own keys empty, prefix empty, and both: rows that see no key are 0 and -inf, and NaN lies where nobody looks."""
    k, v = (tensor.to(dtype) for tensor in numbered(5, batch=3))
    expected = torch.tensor([0.5, 2.0, 1.0]).view(3, 1, 1, 1)
    k[0, 2:], v[0, 2:], k[2, 3:], v[2, 3:] = (math.nan,) * 4
    with guard_bands():
        some = ask(given_as(draw(1, 3, 1, 1, 16).to(dtype), k, v, 2, 0, 3, 1), splits=((2, 8),))
    agree(some, expected, torch.tensor([math.log(n) for n in (2, 5, 3)]).view(3, 1, 1), tolerance=1e-3)
    k, v = (tensor.to(dtype) for tensor in numbered(5, batch=3))
    for batch in (0, 2):
        k[batch], v[batch] = math.nan, math.nan
    with guard_bands():
        none = ask(given_as(draw(1, 3, 1, 1, 16).to(dtype), k, v, 0, 0, 5, 0))
    expected, lse = torch.tensor([0.0, 2.0, 0.0]), torch.tensor([-math.inf, math.log(5), -math.inf])
    agree(none, expected.view(3, 1, 1, 1), lse.view(3, 1, 1), tolerance=1e-3)
    nothing = torch.zeros(2, 0, 1, 16, dtype=dtype)
    agree(ask(given_as(draw(1, 2, 1, 3, 16).to(dtype), nothing, nothing, 0, 0, 0)), 0, -math.inf, tolerance=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k20_what_lies_past_a_sequences_own_keys_is_never_read(dtype: torch.dtype) -> None:
    inputs = drawn(40, 5, 33, slack=31, dtype=dtype)
    expected = truth(inputs)
    inputs["k"][0, 5:], inputs["v"][0, 5:], inputs["k"][1, 33:], inputs["v"][1, 33:] = (math.nan, math.inf) * 2
    inputs |= {name: surrounded(inputs[name]) for name in ("q", "prefix_k", "prefix_v", "k", "v")}
    agree(ask(inputs), *expected, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_k29_logits_of_80000_either_way_are_numbers_like_others(dtype: torch.dtype, sign: int) -> None:
    """Merged by log-sum-exps that come in steps of 2^-7 at 80,000, weights are right to 2^-8; of one part exactly."""
    q, (k, v) = torch.full((1, 1, 1, 64), 100.0).to(dtype), numbered(4, width=64)
    k, v = (k + sign * 100).to(dtype), v.to(dtype)
    lse = sign * 80000 + math.log(4)
    agree(ask(given_as(q, k, v, 3, 1)), 1.5, lse, tolerance=2**-8)
    for alone in (given_as(q, k, v, 4, 0), given_as(q, k, v, 0, 4)):
        agree(ask(alone), 1.5, lse, tolerance=1e-6)
    for place in (1, 3):
        far = -torch.ones_like(k) * 100
        far[:, place] = 100
        agree(ask(given_as(q, far, v, 3, 1)), place, 80000.0, tolerance=1e-7)


def test_k37_the_numbers_of_splits_that_the_rule_chooses_change_no_result() -> None:
    inputs = drawn(200, 150, 3, 77, Hq=4, D=64, dtype=torch.float16)
    [(out, lse)] = ask(inputs, ((1, 1),)).values()
    chosen = kernel.attention_prefix_decode(**inputs, return_lse=True)
    again = kernel.attention_prefix_decode(**inputs, return_lse=True)
    assert isinstance(chosen, tuple) and all(map(torch.equal, chosen, again))
    agree({"chosen": chosen} | ask(inputs, ((0, 0), (7, 5))), out, lse, tolerance=1e-2)


def test_k42_each_walk_writes_its_own_parts_in_any_order_and_nothing_else() -> None:
    inputs = drawn(70, 40, 0, 33, Hq=4, Hkv=2, dtype=torch.float16)
    with guard_bands() as given, detect_races() as races:
        answers = ask(inputs, ((3, 4),))
    assert [tuple(tensor.shape) for tensor in given[2:]] == [(12, 3, 16), (12, 3), (12, 4, 16), (12, 4)]
    assert races == []
    agree(answers, *truth(inputs), tolerance=4e-3)
    for order in ("reversed", "shuffled"):
        with grid_order(order):
            again = ask(inputs, ((3, 4),))
        assert all(map(torch.equal, again["3 and 4 splits"], answers["3 and 4 splits"]))


def test_k40_strided_inputs_give_the_bits_that_contiguous_ones_give() -> None:
    inputs = drawn(40, 33, 7, Hq=4, Hkv=2, dtype=torch.float16)
    names = ("q", "prefix_k", "prefix_v", "k", "v")
    plain = ask(inputs | {name: inputs[name].contiguous() for name in names})
    slow = inputs | {name: inputs[name].transpose(-1, -2).contiguous().transpose(-1, -2) for name in names}
    slow["kv_lens"] = torch.tensor([[33, 9], [7, 9]], dtype=torch.int32)[:, 0]
    for who, answer in ask(slow).items():
        assert all(map(torch.equal, answer, plain[who])), who


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("*own, *own, over_own", "own[0], shared[1], own[0], shared[1], over_own"),
        ("q.transpose(0, 1), prefix_k", "q.transpose(0, 1).flip(1), prefix_k"),
        (", before=shared", ""),
    ],
    ids=["log-sum-exps of one walk over the other's", "another sequence's query", "the prefix left out"],
)
def test_a_planted_bug_is_found(old: str, new: str, tmp_path: Path) -> None:
    inputs = drawn(40, 33, 7, Hq=4, Hkv=2)
    planted = variant(tmp_path, kernel, (old, new))
    with poisoned():
        out = planted.attention_prefix_decode(**inputs)
    assert not torch.allclose(out.double(), torch.from_numpy(truth(inputs)[0]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("prefix_v", (39, 1, 16), "wanted q"),
        ("prefix_k", (40, 2, 16), "wanted q"),
        ("q", (2, 2, 2, 16), "wanted q"),
        ("kv_lens", (3,), "wanted q"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(name: str, shape: tuple[int, ...], told: str) -> None:
    inputs = drawn(40, 3, 5)
    with pytest.raises(ValueError, match=told):
        ask(inputs | {name: torch.zeros(shape, dtype=inputs[name].dtype)})
    with pytest.raises(ValueError, match=r"wanted one dtype, got q torch\.float32, prefix_k torch\.float16"):
        ask(inputs | {"prefix_k": inputs["prefix_k"].half()})


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_any_ragged_batch_passes_the_error_rule(data: st.DataObject) -> None:
    lens = data.draw(st.lists(st.integers(0, 100), min_size=1, max_size=5), "lens")
    P = data.draw(st.integers(0, 150), "P")
    Hkv, G = data.draw(st.integers(1, 2), "Hkv"), data.draw(st.integers(1, 5), "G")
    D, dtype = data.draw(st.sampled_from((8, 24, 64, 72)), "D"), data.draw(st.sampled_from(DTYPES))
    splits = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)), "splits")
    inputs = drawn(P, *lens, Hq=Hkv * G, Hkv=Hkv, D=D, slack=data.draw(st.integers(0, 5), "slack"), dtype=dtype)
    inputs |= {name: surrounded(inputs[name], 3) for name in ("q", "prefix_k", "prefix_v", "k", "v")}
    follow_the_rule(OP, ask(inputs, (splits,)), inputs)
