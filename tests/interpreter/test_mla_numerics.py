"""Absorbed MLA decode by the interpreter: pages of any size and layout, any number of heads, against loops and values
by hand, with NaN and pages that do not exist wherever nothing may be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch
from attention_paths import follow_the_rule
from guarded import guard_bands
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import variant
from paged_paths import LAYOUTS, NOWHERE, in_pages
from races import detect_races, grid_order
from test_attention import Answers, agree, arrays, by_loops, draw

from bench.check import poisoned
from kernels import attention_mla_decode_triton as kernel
from kernels.attention_decode_configs import Config, splits_for
from kernels.attention_mla_decode import OP
from kernels.launch import INTERPRETED_SMS
from kernels.spec import Inputs

LATENT, ROPE, WIDTH = 512, 64, 576
SCALE = 192**-0.5
LAUNCHES = (Config(block_n=16, block_m=16, splits=1), Config(block_n=32, block_m=32, splits=3, lazy=True))
"""One split of tiles of 16 keys, in whole pages where their size lets them; three of 32, with lazy maxima."""
TOLERANCE = 4e-3


def cached(
    latent: torch.Tensor, lens: Sequence[int], page_size: int, *, layout: str = "slots first", scale: float = SCALE
) -> Inputs:
    """Inputs beside q that hold the first keys of latent [B, S, 576], with NaN in slots without a key."""
    keys = latent[:, :, None]
    made = in_pages(keys, keys[..., :8], lens, page_size, layout=layout)
    tables = {name: made[name] for name in ("block_table", "kv_lens", "ragged")}
    return {"latent_pool": made["k_pool"][:, :, 0], "softmax_scale": scale, **tables}


def mla(q: torch.Tensor, cache: Inputs, *, launches: Sequence[Config | None] = LAUNCHES) -> Answers:
    """(out, lse) by these configurations, in poisoned memory; None lets the launch choose."""
    found: Answers = {}
    for config in launches:
        with poisoned():
            answer = kernel.attention_mla_decode(q, **cache, return_lse=True, config=config)
        assert isinstance(answer, tuple)
        found[str(config)] = answer
    return found


def numbered(keys: int, batch: int = 1) -> torch.Tensor:
    """Latents that are the key's number everywhere, and no rotated part."""
    latent = torch.zeros(batch, keys, WIDTH).half()
    latent[..., :LATENT] = torch.arange(keys).view(1, -1, 1)
    return latent


def drawn(B: int, Sq: int, H: int, S: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return draw(seed, B, Sq, H, WIDTH).half(), draw(seed + 1, B, S, WIDTH).half()


def is_by_loops(q: torch.Tensor, latent: torch.Tensor, lens: list[int], cache: Inputs, **how: Sequence[Config]) -> None:
    keys = latent[:, :, None]
    truth = by_loops(*arrays(q, keys, keys[..., :LATENT]), lens, causal=True, scale=cache["softmax_scale"])
    agree(mla(q, cache, **how), *truth, tolerance=TOLERANCE)


def test_k14_scores_of_576_and_values_of_512_with_a_scale_that_is_given() -> None:
    """K14: S = 33, H = 3."""
    q, latent = drawn(1, 1, 3, 33)
    for scale in (SCALE, 0.02):
        is_by_loops(q, latent, [33], cached(latent, [33], 16, scale=scale))


@pytest.mark.parametrize("page_size", [1, 3, 16, 24, 64, 128])
def test_k17_no_page_size_loses_keys(page_size: int) -> None:
    """Queries of zeros weigh keys alike, and values are 0 .. 99: 49.5, whatever part of the last page is used."""
    q = torch.zeros(1, 1, 2, WIDTH).half()
    agree(mla(q, cached(numbered(100), [100], page_size)), 49.5, math.log(100), tolerance=1e-4)


@pytest.mark.parametrize("filler", [math.nan, math.inf, 6e4])
def test_k20_unused_slots_and_k19_entries_past_the_pages_change_nothing(filler: float) -> None:
    q, latent = drawn(2, 1, 2, 21)
    cache, zeros = cached(latent, [21, 5], 16), cached(latent, [21, 5], 16)
    unused = cache["latent_pool"].isnan()
    assert int(unused.sum()) == (5 * 16 - 26) * WIDTH
    cache["latent_pool"][unused], zeros["latent_pool"][unused] = filler, 0
    zeros["block_table"][torch.isin(zeros["block_table"], torch.tensor(NOWHERE))] = 0
    answers, same = mla(q, cache), mla(q, zeros)
    assert all(torch.equal(a, b) for who in answers for a, b in zip(answers[who], same[who], strict=True))
    is_by_loops(q, latent, [21, 5], cache)


def test_k23_sequences_without_keys_give_zero_and_leave_guard_bands_alone() -> None:
    q = torch.zeros(3, 1, 2, WIDTH).half()
    with guard_bands():
        answers = mla(q, cached(numbered(5, 3), [0, 5, 0], 4))
    lse = torch.tensor([-math.inf, math.log(5), -math.inf]).view(3, 1, 1)
    agree(answers, torch.tensor([0.0, 2.0, 0.0]).view(3, 1, 1, 1), lse, tolerance=1e-4)


def test_k24_the_draft_is_causal_bottom_right_and_k30_tokens_before_the_first_key_give_zero() -> None:
    """3 heads of 5 tokens, so that rows of one token lie in more than one row tile; 5 keys, then 2."""
    q = torch.zeros(1, 5, 3, WIDTH).half()
    rows, log = torch.tensor([0, 0.5, 1, 1.5, 2]).view(1, 5, 1, 1), [math.log(n) for n in range(1, 6)]
    agree(mla(q, cached(numbered(5), [5], 2)), rows, [log], tolerance=1e-4)
    few = torch.tensor([0, 0, 0, 0, 0.5]).view(1, 5, 1, 1)
    agree(mla(q, cached(numbered(2), [2], 16)), few, [[-math.inf] * 3 + log[:2]], tolerance=1e-4)


@pytest.mark.parametrize("sign", [-1, 1])
def test_k29_logits_of_80000_either_way_are_numbers_like_others(sign: int) -> None:
    """64 rotated values of 100 against as many of 100 are 640,000, times a scale of 1/8."""
    q, latent = torch.zeros(1, 1, 2, WIDTH).half(), numbered(4)
    q[..., LATENT:], latent[..., LATENT:] = 100, sign * 100
    agree(mla(q, cached(latent, [4], 3, scale=0.125)), 1.5, sign * 80000 + math.log(4), tolerance=1e-6)


@pytest.mark.parametrize(("H", "Sq"), [(1, 1), (5, 2), (17, 1), (16, 4), (31, 3), (128, 1)])
def test_any_number_of_heads_and_tokens_is_packed_into_rows(H: int, Sq: int) -> None:
    q, latent = drawn(1, Sq, H, 21)
    is_by_loops(q, latent, [21], cached(latent, [21], 16), launches=LAUNCHES[:1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_k40_pools_queries_and_tables_are_views_of_any_strides(layout: str) -> None:
    q, latent = drawn(2, 2, 3, 20)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    cache = cached(latent, [20, 9], 5, layout=layout)
    table = cache["block_table"].repeat_interleave(2, dim=1)[:, ::2]
    lens = torch.stack([cache["kv_lens"], cache["kv_lens"] + 9], 1)[:, 0]
    is_by_loops(q, latent, [20, 9], cache | {"block_table": table, "kv_lens": lens})


def test_k37_auto_splits_equal_one_split() -> None:
    q, latent = drawn(1, 1, 1, 300)
    whole = cached(latent, [300], 16)
    chosen = set()
    for lens in ([1, 15, 16, 17, 31, 32], [33, 64, 65], [127, 128, 300]):
        splits = splits_for(1, max(lens), Config(block_n=32), INTERPRETED_SMS)
        chosen.add(splits)
        table = whole["block_table"].expand(len(lens), -1)
        cache = whole | {"block_table": table, "kv_lens": torch.tensor(lens, dtype=torch.int32)}
        one, auto = (mla(q.expand(len(lens), -1, -1, -1), cache, launches=[Config(block_n=32, splits=n)]) for n in (
            1, splits))  # fmt: skip
        agree(auto, *next(iter(one.values())), tolerance=2e-3)
    assert max(chosen) > 1


def test_k36_more_splits_than_keys() -> None:
    eight, q = (Config(block_n=16, splits=8),), torch.zeros(1, 1, 1, WIDTH).half()
    with guard_bands():
        agree(mla(q, cached(numbered(2), [2], 16), launches=eight), 0.5, math.log(2), tolerance=1e-6)
        agree(mla(q, cached(numbered(2), [0], 16), launches=eight), 0, -math.inf, tolerance=0)


def test_no_races_and_the_same_bits_in_any_order() -> None:
    """3 tokens of 7 heads are two row tiles of 16; each split and tile writes its own rows, and guard bands stay."""
    q, latent = drawn(2, 3, 7, 40)
    cache = cached(latent, [40, 17], 16)
    with guard_bands() as given, detect_races() as races:
        answers = mla(q, cache)
    assert len(given) == 4 * len(LAUNCHES) and races == []
    for order in ("reversed", "shuffled"):
        with grid_order(order):
            again = mla(q, cache)
        assert all(torch.equal(a, b) for who in again for a, b in zip(again[who], answers[who], strict=True))


@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.data())
def test_any_ragged_batch_passes_the_error_rule(data: st.DataObject) -> None:
    lens = data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=3), "lens")
    H, Sq = data.draw(st.integers(1, 9), "H"), data.draw(st.integers(1, 4), "Sq")
    page_size, layout = data.draw(st.integers(1, 70), "page"), data.draw(st.sampled_from(LAYOUTS), "layout")
    splits = data.draw(st.integers(1, 4), "splits")
    q, latent = drawn(len(lens), Sq, H, max(1, *lens))
    one = Config(block_n=data.draw(st.sampled_from((16, 32))), block_m=16, splits=splits, lazy=splits % 2 == 0)
    cache = cached(latent, lens, page_size, layout=layout)
    OP.validate(q, **cache)
    follow_the_rule(OP, mla(q, cache, launches=(None, one)), {"q": q, **cache})


def test_what_does_not_fit_together_is_refused_before_the_launch() -> None:
    q, latent = drawn(1, 1, 2, 20)
    cache = cached(latent, [20], 16)
    table, lens, pool = cache["block_table"], cache["kv_lens"], cache["latent_pool"]
    for change, told in (
        ({"latent_pool": pool[..., :512]}, "latent_pool .pages, page_size, 576."),
        ({"latent_pool": pool[:, :0]}, "pages of at least 1 key"),
        ({"latent_pool": pool.float()}, "one dtype"),
        ({"block_table": table[:, 0]}, "wanted block_table"),
        ({"kv_lens": lens.repeat(2)}, "wanted block_table .* and kv_lens .B."),
        ({"softmax_scale": 0.0}, "positive softmax_scale, got 0.0"),
        ({"q": q.expand(1, 17, 2, WIDTH)}, "at most 16 new tokens"),
    ):
        with pytest.raises(ValueError, match=told):
            kernel.attention_mla_decode(**{"q": q, **cache, **change})


def right_of_37(module: ModuleType) -> bool:
    """Two queries over keys 0 .. 36, in pages of 12 and 32 with NaN in the unused slots: head 0 sees all alike; key 5
    has all the weight of head 1 by its rotated part, and the last key that of head 2 by its latent."""
    latent = numbered(37)
    latent[0, 5, LATENT:] = 8
    q = torch.zeros(1, 2, 3, WIDTH).half()
    q[:, :, 1, LATENT:], q[:, :, 2, :LATENT] = 8, 1
    wanted = torch.tensor([[17.5, 5.0, 35.0], [18.0, 5.0, 36.0]]).half().view(1, 2, 3, 1)
    outs = [
        module.attention_mla_decode(q, **cached(latent, [37], page), config=way)
        for way in (*LAUNCHES, Config(block_n=16, block_m=16, splits=2))
        for page in (12, 32)
    ]
    return all(torch.allclose(out, wanted.expand_as(out), rtol=2e-3) for out in outs)


def test_the_proof_holds_of_the_kernel_itself() -> None:
    assert right_of_37(kernel)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("places[None, :] <= q_positions[:, None]", "places[None, :] >= 0 * q_positions[:, None]"),
        ("ONE_PAGE, BLOCK_N, LATENT, LATENT, True)", "ONE_PAGE, BLOCK_N, LATENT, LATENT, False)"),
        ("pool + LATENT * stride_d", "pool"),
        ("tl.dot(q_rope, rope.T, qk,", "tl.dot(q_rope, rope.T, qk * 0,"),
        ("kv_len - q_len + last_token + 1)", "kv_len - q_len + last_token)"),
        ("q_positions = token + (kv_len - q_len)", "q_positions = token"),
        ("pages = page_rows(table, start + BLOCK_N, hi,", "pages = page_rows(table, start, hi,"),
    ],
    ids=["end", "unused slots", "rope columns", "nope scores", "reach", "top-left", "pages of the tile before"],
)
def test_a_planted_bug_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    assert not right_of_37(variant(tmp_path, kernel, (right, wrong)))
