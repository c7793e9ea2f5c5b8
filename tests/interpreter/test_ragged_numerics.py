"""Ragged batches by the interpreter, packed and paged: against loops and values by hand, with NaN between sequences."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from attention_paths import DTYPES, follow_the_rule
from guarded import guard_bands
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import variant
from paged_paths import LAYOUTS
from races import detect_races, grid_order
from ragged_paths import LAUNCHES, Part, ask, both, drawn, mixed, truth, varlen
from test_attention import agree, draw, numbered

from kernels import attention_mixed, attention_varlen
from kernels import attention_ragged_triton as kernel
from kernels.attention_decode_configs import Config
from kernels.ragged_plan import Lengths

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3}
STEP: Lengths = ((1, 40), (0, 7), (7, 11), (1, 0), (3, 2), (0, 0), (2, 70))
"""Decode tokens, a chunk, a draft, and sequences without new tokens, without keys, and with fewer keys than tokens."""


def alike(q_len: int, kv_len: int, dtype: torch.dtype) -> Part:
    """Keys that weigh the same, of values 0, 1, .."""
    k, v = numbered(kv_len)
    return draw(kv_len, q_len, 1, 16).to(dtype), k[0].to(dtype), v[0].to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k23_k24_k30_every_kind_of_sequence_at_once_by_hand(dtype: torch.dtype) -> None:
    """Bottom-right: two tokens of 5 keys see 4 and 5, of values 1.5 and 2; five of 2 keys see 0, 0, 0, 1 and 2."""
    parts = [alike(*lens, dtype) for lens in ((2, 5), (0, 3), (5, 2), (1, 0), (1, 9))]
    values, seen = [1.5, 2, 0, 0, 0, 0, 0.5, 0, 4], [4, 5, 0, 0, 0, 1, 2, 0, 9]
    lse = torch.tensor([[math.log(n) if n else -math.inf for n in seen]])
    with guard_bands():
        answers = both(parts)
    agree(answers, torch.tensor(values).view(-1, 1, 1), lse, tolerance=1e-3)
    full, keys = [2, 2, 0.5, 0.5, 0.5, 0.5, 0.5, 0, 4], [5, 5, 2, 2, 2, 2, 2, 0, 9]
    lse = torch.tensor([[math.log(n) if n else -math.inf for n in keys]])
    agree(ask(varlen(parts, causal=False)), torch.tensor(full).view(-1, 1, 1), lse, tolerance=1e-3)


@pytest.mark.parametrize("lengths", [((0, 5), (0, 0)), ((3, 0), (1, 0))], ids=["no tokens", "no keys"])
def test_k23_nothing_to_do_at_all(lengths: Lengths) -> None:
    agree(both(drawn(lengths)), 0, -math.inf, tolerance=0)


def test_k20_neighbours_full_of_nan_change_no_bit() -> None:
    """A tile of packed keys reaches into the next sequence, and a tile of rows has room for its tokens."""
    parts = drawn(((2, 21), (3, 5), (1, 40), (2, 3)), dtype=torch.float16)
    clean = both(parts)
    rows = [0, 1, 5]
    for b in (1, 3):
        for tensor in parts[b]:
            tensor.fill_(math.nan)
    for who, got in both(parts).items():
        out, lse = got
        assert torch.equal(out[rows], clean[who][0][rows]) and torch.equal(lse[:, rows], clean[who][1][:, rows]), who


@pytest.mark.parametrize("D", [64, 72, 80, 96, 112, 128, 160, 192, 256])
def test_k12_heads_of_any_width_are_scaled_by_their_own_width(D: int) -> None:
    dtype = DTYPES[D % 3 == 0]
    parts = drawn(((2, 33), (1, 5)), D=D, dtype=dtype)
    agree(both(parts, LAUNCHES[1:]), *truth(parts), tolerance=TOLERANCE[dtype])


def test_k14_values_may_be_narrower_than_keys() -> None:
    parts = drawn(((2, 20), (1, 9)), D=40, Dv=24)
    agree(both(parts), *truth(parts))


@pytest.mark.parametrize("group", range(1, 17))
def test_k15_groups_of_1_to_16_query_heads_read_the_kv_head_of_their_group(group: int) -> None:
    """K = 0 and V of KV head h is h: two heads of each group, 5, 6 and 7 among them, in tiles that start inside one."""
    v = torch.arange(2.0).view(1, 2, 1).expand(4, 2, 16)
    parts = [(draw(n, n, 2 * group, 16), torch.zeros(4, 2, 16), v) for n in (3, 1)]
    expected = torch.arange(2 * group).div(group, rounding_mode="floor").view(1, -1, 1)
    agree(ask(varlen(parts) if group % 2 else mixed(parts), LAUNCHES[:1]), expected, tolerance=0)


@pytest.mark.parametrize("page_size", [1, 3, 16, 24, 32, 64, 128, 256])
def test_k17_no_page_size_loses_keys(page_size: int) -> None:
    parts = [alike(*lens, torch.float32) for lens in ((1, 100), (2, 7))]
    expected = torch.tensor([49.5, 2.5, 3.0]).view(3, 1, 1)
    agree(ask(mixed(parts, page_size)), expected, torch.tensor([[100.0, 6, 7]]).log(), tolerance=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_k29_logits_of_80000_either_way_are_numbers_like_others(dtype: torch.dtype, sign: int) -> None:
    """Exact in one piece; merged by log-sum-exps in steps of 2^-7, weights are right to 2^-8."""
    parts = [
        (torch.full((1, 1, 64), 100.0).to(dtype), torch.full((n, 1, 64), sign * 100.0).to(dtype), v[0].to(dtype))
        for n in (4, 70)
        for v in (numbered(n, width=64)[1],)
    ]
    expected, lse = torch.tensor([1.5, 34.5]).view(2, 1, 1), torch.tensor([[4.0, 70.0]]).log() + sign * 80000
    agree(both(parts, LAUNCHES[:1]), expected, lse, tolerance=1e-7)
    agree(both(parts, LAUNCHES[1:]), expected, lse, tolerance=2**-8)


def test_k37_the_schedule_that_the_rule_chooses_changes_no_result() -> None:
    """One long sequence among short ones: its keys are shared, and the numbers are those of one piece."""
    parts = drawn(((1, 300), (1, 9), (1, 20), (5, 11)), dtype=torch.float16)
    chosen = Config(block_n=16, block_m=16)
    for inputs in (varlen(parts), mixed(parts)):
        with guard_bands() as given:
            auto = ask(inputs, (chosen,))
        assert [tensor.shape for tensor in given][2][0] > 0, "keys are shared"
        [one] = ask(inputs, LAUNCHES[:1]).values()
        agree(auto, *one, tolerance=TOLERANCE[torch.float16])
        again = ask(inputs, (chosen,))
        assert all(torch.equal(a, b) for who in auto for a, b in zip(again[who], auto[who], strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_k40_tensors_are_views_of_any_strides(layout: str) -> None:
    parts = drawn(((3, 40), (1, 21)), Hq=4, Hkv=2, D=24, Dv=24)
    expected = truth(parts)
    paged, packed = mixed(parts, 5, layout=layout), varlen(parts)
    for inputs in (paged, packed):
        inputs["q"] = inputs["q"].transpose(0, 2).contiguous().transpose(0, 2)
        for name in ("cu_seqlens_q", "cu_seqlens_k", "kv_lens"):
            if name in inputs:
                inputs[name] = torch.stack([inputs[name], inputs[name] + 9], 1)[:, 0]
    packed |= {name: packed[name].transpose(0, 1).contiguous().transpose(0, 1) for name in ("k", "v")}
    table = torch.zeros(2, 2 * paged["block_table"].shape[1], dtype=torch.int32)
    table[:, ::2] = paged["block_table"]
    agree(ask(paged | {"block_table": table[:, ::2]}) | ask(packed), *expected)


def test_no_races_and_the_same_bits_in_any_order() -> None:
    """Each piece writes its own part and each tile its own rows, though schedules put pieces anywhere."""
    parts = drawn(STEP, Hq=6, Hkv=2, dtype=torch.float16)
    with guard_bands() as given, detect_races() as races:
        answers = both(parts, LAUNCHES[1:])
    assert len(given) == 4 * len(answers) and races == []
    agree(answers, *truth(parts), tolerance=TOLERANCE[torch.float16])
    with grid_order("shuffled"):
        again = both(parts, LAUNCHES[1:])
    assert all(torch.equal(a, b) for who in again for a, b in zip(again[who], answers[who], strict=True))


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.data())
def test_any_ragged_batch_passes_the_error_rule(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 70)), min_size=1, max_size=4), "lengths")
    Hkv, G = (data.draw(st.integers(1, high), name) for name, high in (("Hkv", 2), ("G", 5)))
    D, Dv = (data.draw(st.sampled_from((8, 24, 64)), name) for name in ("D", "Dv"))
    dtype, splits = data.draw(st.sampled_from(DTYPES), "dtype"), data.draw(st.integers(0, 4), "splits")
    parts = drawn(tuple(lengths), Hq=Hkv * G, Hkv=Hkv, D=D, Dv=Dv, dtype=dtype)
    way = (Config(block_n=data.draw(st.sampled_from((16, 32))), block_m=16, splits=splits, lazy=splits % 2 == 0),)
    packed = varlen(parts, causal=data.draw(st.booleans(), "causal"))
    paged = mixed(parts, data.draw(st.integers(1, 70), "page"), layout=data.draw(st.sampled_from(LAYOUTS), "layout"))
    for op, inputs in ((attention_varlen.OP, packed), (attention_mixed.OP, paged)):
        op.validate(**inputs)
        follow_the_rule(op, ask(inputs, way), inputs)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("k_start = kv_len\n", "k_start = kv_len * 0\n"),
        ("q, batch, q_start + token, head, inside", "q, batch, token, head, inside"),
        ("batch * 0, q_start + token, head", "batch * 0, token, head"),
        ("tiles * piece // pieces", "tiles * piece // pieces * 0"),
        ("kv_head * pieces\n        here", "kv_head\n        here"),
        ("max(0, kv_len - q_len + last_token + 1)", "max(0, kv_len - q_len + first_token + 1)"),
        ("q_positions = token + (kv_len - q_len)", "q_positions = token"),
        ("block_table + batch * stride_table", "block_table"),
    ],
    ids=[
        "keys of the first sequence", "queries of the first", "output of the first", "pieces from the start",
        "parts of another head", "reach", "top-left", "pages of the first",
    ],
)  # fmt: skip
def test_a_planted_bug_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    parts = drawn(((1, 40), (9, 37), (1, 9)), Hq=4, Hkv=2)
    planted = variant(tmp_path, kernel, (right, wrong))
    inputs = mixed(parts) if "table" in right else varlen(parts)
    [(out, _)] = ask(inputs, LAUNCHES[1:2], planted).values()
    assert not torch.allclose(out.double(), torch.from_numpy(truth(parts)[0]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("v", (45, 1, 16), "wanted q"),
        ("q", (6, 1, 17), "wanted q"),
        ("q", (5, 2, 16), "lengths that add up to q's rows"),
        ("cu_seqlens_k", (4,), "wanted cu_seqlens_q and cu_seqlens_k"),
        ("k_pool", (9, 16, 1, 17), "wanted q"),
        ("kv_lens", (1,), "wanted cu_seqlens_q"),
        ("block_table", (3, 4), "wanted cu_seqlens_q"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(name: str, shape: tuple[int, ...], told: str) -> None:
    parts = drawn(((1, 40), (5, 6)))
    inputs = mixed(parts) if name in ("k_pool", "kv_lens", "block_table") else varlen(parts)
    with pytest.raises(ValueError, match=told):
        ask(inputs | {name: torch.zeros(shape, dtype=inputs[name].dtype)})
    with pytest.raises(ValueError, match="wanted one dtype"):
        ask(inputs | {"q": inputs["q"].half()})
