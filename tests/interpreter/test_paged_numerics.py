"""Paged attention by the interpreter: any page size and layout, against loops and values by hand, with NaN and pages
that do not exist wherever nothing may be read."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch
from guarded import guard_bands
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import variant
from paged_paths import LAUNCHES, LAYOUTS, entries_read, in_pages, paged, paged_is_right
from races import detect_races, grid_order
from test_attention import agree, arrays, by_loops, draw, numbered, rows

from bench.check import check_case
from kernels import attention_paged_triton as kernel
from kernels.attention_decode_configs import Config, splits_for
from kernels.attention_paged_decode import OP
from kernels.launch import INTERPRETED_SMS

DTYPES = (torch.float16, torch.float32)
WAYS = (*LAUNCHES, Config(block_n=16, block_m=16, splits=2))
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3}


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple(draw(seed, *shape).to(dtype) for seed, shape in enumerate(shapes, start=1))


@pytest.mark.parametrize("page_size", [1, 3, 16, 24, 32, 48, 64, 96, 128, 192, 256])
def test_k17_no_page_size_loses_keys(page_size: int) -> None:
    """Keys that weigh the same and V[t] = t: 49.5 of 100, whatever part of the last page is used."""
    for dtype in DTYPES:  # float16 of this width takes one entry a tile where it can
        q, k, v = (tensor.to(dtype) for tensor in (draw(1, 1, 1, 1, 64), *numbered(100, width=64)))
        agree(paged(q, in_pages(k, v, [100], page_size)), rows(49.5), [[[math.log(100)]]], tolerance=1e-4)


def test_k17_a_page_without_slots_is_refused_before_the_launch() -> None:
    empty, table = torch.zeros(3, 0, 1, 16), torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="pages of at least 1 key"):
        kernel.attention_paged(draw(1, 1, 1, 1, 16), empty, empty, table, table[:, 0])


def test_k19_entries_past_the_pages_in_use_are_never_read_and_used_ones_are_checked() -> None:
    """Lengths 17 and 1, pages of 16 in a pool of 4: row 0 is [0, 1], row 1 is [3, -1] or [3, 999]."""
    q, (k, v) = draw(1, 2, 1, 1, 16), numbered(17, batch=2)
    cache = in_pages(k, v, [17, 1], 16)
    pool_pages = cache["k_pool"].shape[0]
    for nowhere in (-1, 999, 2**31 - 1):
        cache["block_table"][1, 1:], cache["block_table"][0, 2:] = nowhere, nowhere
        answers = paged_is_right(q, cache)
        agree(answers, torch.tensor([8.0, 0.0]).view(2, 1, 1, 1), torch.tensor([17.0, 1.0]).log().view(2, 1, 1))
    for b, i, page in ((0, 1, 999), (0, 0, -1), (1, 0, pool_pages)):
        wrong = cache | {"block_table": cache["block_table"].clone()}
        wrong["block_table"][b, i] = page
        with pytest.raises(
            ValueError, match=rf"block_table\[{b}, {i}\] is {page}, and 1 of the 3 entries .* 0\.\.4 of"
        ):
            check_case(OP, OP.providers["triton"], {"q": q, **wrong})


@pytest.mark.parametrize("lens", [(-1, 3), (3, 49)])
def test_lengths_past_the_block_table_are_refused(lens: tuple[int, int]) -> None:
    cache = in_pages(*numbered(32, batch=2), [32, 32], 16) | {"kv_lens": torch.tensor(lens, dtype=torch.int32)}
    with pytest.raises(ValueError, match=r"kv_lens must lie in 0\.\.144 \(block tables of 9 pages of 16 keys\), got"):
        OP.validate(draw(1, 2, 1, 1, 16), **cache | {"kv_lens": cache["kv_lens"] * 49})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("filler", [math.nan, 1e30, math.inf])
def test_k20_what_lies_in_the_unused_slots_of_the_last_page_changes_nothing(filler: float, dtype: torch.dtype) -> None:
    q, k, v = drawn((1, 1, 2, 64), (1, 5, 1, 64), (1, 5, 1, 64), dtype=dtype)
    filled, zeros = in_pages(k, v, [5], 16), in_pages(k, v, [5], 16)
    for pool in ("k_pool", "v_pool"):
        unused = filled[pool].isnan()
        assert int(unused.sum()) == (2 * 16 + 11) * 64
        filled[pool][unused] = filler
        zeros[pool][zeros[pool].isnan()] = 0
    answers, same = paged(q, filled), paged(q, zeros)
    agree(answers, *by_loops(*arrays(q, k, v), [5], causal=True), tolerance=TOLERANCE[dtype])
    assert all(torch.equal(a, b) for who in answers for a, b in zip(answers[who], same[who], strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_k23_sequences_without_keys_give_zero_and_leave_guard_bands_alone(dtype: torch.dtype) -> None:
    k, v = (tensor.to(dtype) for tensor in numbered(5, batch=3))
    with guard_bands():
        answers = paged(draw(1, 3, 1, 1, 16).to(dtype), in_pages(k, v, [0, 5, 0], 4))
    expected = torch.tensor([0.0, 2.0, 0.0]).view(3, 1, 1, 1)
    agree(answers, expected, torch.tensor([-math.inf, math.log(5), -math.inf]).view(3, 1, 1))


def test_no_pages_at_all_give_zero() -> None:
    q, pool = draw(1, 2, 3, 4, 16), torch.zeros(0, 16, 2, 16)
    for width in (0, 3):
        table = torch.full((2, width), -1, dtype=torch.int32)
        cache = {"k_pool": pool, "v_pool": pool, "block_table": table, "kv_lens": torch.zeros(2, dtype=torch.int32)}
        agree(paged(q, cache), 0, -math.inf, tolerance=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k24_the_mask_is_aligned_bottom_right_and_k30_rows_without_keys_give_zero(dtype: torch.dtype) -> None:
    q = draw(1, 1, 5, 1, 16).to(dtype)
    (k5, v5), (k2, v2) = ((k.to(dtype), v.to(dtype)) for k, v in (numbered(5), numbered(2)))
    for page_size in (1, 2, 16):
        agree(paged(q[:, :2], in_pages(k5, v5, [5], page_size)), rows(1.5, 2.0), [[[math.log(4), math.log(5)]]])
        tall = paged(q, in_pages(k2, v2, [2], page_size))
        agree(tall, rows(0, 0, 0, 0, 0.5), [[[-math.inf] * 3 + [0, math.log(2)]]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_k29_logits_of_80000_either_way_are_numbers_like_others(dtype: torch.dtype, sign: int) -> None:
    q, k = torch.full((1, 1, 1, 64), 100.0, dtype=dtype), torch.full((1, 4, 1, 64), sign * 100.0, dtype=dtype)
    answers = paged(q, in_pages(k, numbered(4, width=64)[1].to(dtype), [4], 3))
    agree(answers, rows(1.5), [[[sign * 80000 + math.log(4)]]], tolerance=1e-7)


@pytest.mark.parametrize("group", range(1, 17))
def test_k15_groups_of_1_to_16_query_heads_read_the_kv_head_of_their_group(group: int) -> None:
    """K = 0 and V of KV head h is h, so every weight counts alike; group sizes 5, 6 and 7 among them."""
    k, v = torch.zeros(1, 4, 3, 16), torch.arange(3.0).view(1, 1, 3, 1).expand(1, 4, 3, 16)
    expected = torch.arange(3 * group).div(group, rounding_mode="floor").view(1, 1, -1, 1)
    agree(paged(draw(1, 1, 2, 3 * group, 16), in_pages(k, v, [4], 3)), expected, tolerance=0)


@pytest.mark.parametrize("D", [64, 72, 80, 96, 112, 128, 160, 192, 256])
def test_k12_heads_of_any_width_are_scaled_by_their_own_width(D: int) -> None:
    for dtype in DTYPES:
        q, k, v = drawn((1, 2, 2, D), (1, 33, 1, D), (1, 33, 1, D), dtype=dtype)
        truth = by_loops(*arrays(q, k, v), [33], causal=True)
        agree(paged(q, in_pages(k, v, [33], 16)), *truth, tolerance=TOLERANCE[dtype])


def test_k14_values_may_be_narrower_than_keys() -> None:
    q, k, v = drawn((1, 2, 2, 192), (1, 20, 1, 192), (1, 20, 1, 128))
    agree(paged(q, in_pages(k, v, [20], 8)), *by_loops(*arrays(q, k, v), [20], causal=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("page_size", [5, 16])
def test_k40_pools_are_views_of_any_strides(layout: str, page_size: int) -> None:
    """K08's interleaved buffer among them, whose strides are twice those of a pool of keys alone."""
    q, k, v = drawn((2, 3, 4, 24), (2, 40, 2, 24), (2, 40, 2, 16))
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    cache = in_pages(k, v, [40, 21], page_size, layout=layout)
    wide = torch.zeros(2, 2 * cache["block_table"].shape[1], dtype=torch.int32)
    wide[:, ::2] = cache["block_table"]
    cache |= {"block_table": wide[:, ::2], "kv_lens": torch.stack([cache["kv_lens"], cache["kv_lens"] + 9], 1)[:, 0]}
    agree(paged(q, cache), *by_loops(*arrays(q, k, v), [40, 21], causal=True))


@pytest.mark.parametrize("first", [1, 76, 151, 226])
def test_k37_auto_splits_equal_one_split_for_every_length(first: int) -> None:
    """Every length from 1 to 300 with the number of splits chosen for its like; some of them twice, bit for bit."""
    q, k, v = (draw(i, 1, size, 1, 64).half() for i, size in enumerate((1, 300, 300)))
    whole = in_pages(k, v, [300], 16)
    table = whole["block_table"]
    chosen = set()
    for low, high in pairwise(range(first, first + 76, 25)):
        some = torch.arange(low, high, dtype=torch.int32)
        splits = splits_for(1, high - 1, Config(block_n=64), INTERPRETED_SMS)
        chosen.add(splits)
        cache = whole | {"block_table": table.expand(len(some), -1), "kv_lens": some}
        launches = [Config(block_n=64, splits=n) for n in dict.fromkeys((1, splits))]
        answers = paged(q.expand(len(some), -1, -1, -1), cache, launches=launches)
        one, auto = answers[f"paged {launches[0]}"], answers[f"paged {launches[-1]}"]
        agree({"auto": auto}, *one, tolerance=1e-2)
        few = cache | {"block_table": cache["block_table"][::6], "kv_lens": some[::6]}
        again = paged(q.expand(len(some[::6]), -1, -1, -1), few, launches=launches[-1:])
        assert all(torch.equal(a[::6], b) for a, b in zip(auto, again[f"paged {launches[-1]}"], strict=True))
    assert first < 151 or max(chosen) > 1


def test_k36_more_splits_than_keys() -> None:
    q, k, v = drawn((1, 1, 1, 16), (1, 1, 1, 16), (1, 1, 1, 16))
    logit = float((q.double() * k.double()).sum()) / 4
    eight = (Config(block_n=16, splits=8),)
    with guard_bands():
        agree(paged(q, in_pages(k, v, [1], 16), launches=eight), v, [[[logit]]])
        agree(paged(q, in_pages(k, v, [0], 16), launches=eight), rows(0), [[[-math.inf]]], tolerance=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("Sq", [3, 11])
def test_no_races_and_the_same_bits_in_any_order(Sq: int, dtype: torch.dtype) -> None:
    """11 tokens of 3 heads are 3 row tiles of 16; each split and tile writes its own rows, and guard bands stay."""
    q, k, v = drawn((2, Sq, 6, 16), (2, 70, 2, 16), (2, 70, 2, 16), dtype=dtype)
    cache = in_pages(k, v, [70, 33], 16)
    with guard_bands() as given, detect_races() as races:
        answers = paged(q, cache, launches=WAYS)
    assert len(given) == 4 * len(WAYS) and races == []
    agree(answers, *by_loops(*arrays(q, k, v), [70, 33], causal=True), tolerance=TOLERANCE[dtype])
    for order in ("reversed", "shuffled"):
        with grid_order(order):
            again = paged(q, cache, launches=WAYS)
        assert all(torch.equal(a, b) for who in again for a, b in zip(again[who], answers[who], strict=True))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_any_ragged_batch_passes_the_error_rule(data: st.DataObject) -> None:
    lens = data.draw(st.lists(st.integers(0, 90), min_size=1, max_size=3), "lens")
    Hkv, G, Sq = (data.draw(st.integers(1, high), name) for name, high in (("Hkv", 2), ("G", 7), ("Sq", 7)))
    D, Dv = (data.draw(st.sampled_from((8, 24, 64, 72)), name) for name in ("D", "Dv"))
    page_size, layout = data.draw(st.integers(1, 70), "page"), data.draw(st.sampled_from(LAYOUTS), "layout")
    dtype, splits = data.draw(st.sampled_from(DTYPES), "dtype"), data.draw(st.integers(1, 5), "splits")
    S = max(1, *lens)
    q, k, v = drawn((len(lens), Sq, Hkv * G, D), (len(lens), S, Hkv, D), (len(lens), S, Hkv, Dv), dtype=dtype)
    one = Config(block_n=data.draw(st.sampled_from((16, 32))), block_m=16, splits=splits, lazy=splits % 2 == 0)
    paged_is_right(q, in_pages(k, v, lens, page_size, layout=layout), launches=(None, one))


def unused_entries_read(module: ModuleType) -> set[tuple[int, int]]:
    """Of sequences of 37 and 16 keys in pages of 16, over all launches: entries that are read past those in use."""
    q, (k, v) = draw(1, 2, 2, 1, 64).half(), numbered(37, batch=2, width=64)
    cache = in_pages(k.half(), v.half(), [37, 16], 16)
    with entries_read(cache["block_table"]) as read:
        for config in WAYS:
            module.attention_paged(q, **cache, config=config)
    used = {(0, 0), (0, 1), (0, 2), (1, 0)}
    assert used <= read
    return read - used


def right_of_37(module: ModuleType) -> bool:
    """Two queries over keys 0 .. 36 that weigh the same, in pages of 12 and 32 with NaN in the unused slots."""
    q, (k, v) = draw(1, 1, 2, 1, 64).half(), (tensor.half() for tensor in numbered(37, width=64))
    wanted = torch.tensor([17.5, 18.0]).half().view(1, 2, 1, 1)
    outs = [module.attention_paged(q, **in_pages(k, v, [37], page), config=way) for way in WAYS for page in (12, 32)]
    return all(torch.allclose(out, wanted.expand_as(out), rtol=2e-3) for out in outs)


def test_the_proofs_hold_of_the_kernel_itself() -> None:
    assert right_of_37(kernel) and not unused_entries_read(kernel)


@pytest.mark.parametrize("mask", ["start < hi, other", "places < hi, other"])
def test_entries_past_the_length_would_be_seen_to_be_read(mask: str, tmp_path: Path) -> None:
    assert unused_entries_read(variant(tmp_path, kernel, (mask, mask.replace("< hi", ">= 0"))))


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("keys = (start + tl.arange(0, BLOCK_N) < hi)", "keys = (start + tl.arange(0, BLOCK_N) >= 0)"),
        ("slots = (start + tl.arange(0, BLOCK_N)) % PAGE", "slots = tl.arange(0, BLOCK_N) % PAGE"),
        ("tl.cast(start % PAGE, tl.int64)", "tl.cast(start * 0, tl.int64)"),
        ("kv_len - q_len + last_token + 1)", "kv_len - q_len + first_token + 1)"),
        ("q_positions = token + (kv_len - q_len)", "q_positions = token"),
        ("pages = page_rows(table, start + BLOCK_N, hi,", "pages = page_rows(table, start, hi,"),
    ],
    ids=["unused slots", "slot of a key", "slot of a tile", "reach", "top-left", "pages of the tile before"],
)
def test_a_planted_bug_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    assert not right_of_37(variant(tmp_path, kernel, (right, wrong)))
