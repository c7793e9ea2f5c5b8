"""The schedule of ragged batches: every key of every row once, longest first, and no program far over its share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.ragged_plan import (
    MOST_PIECES,
    Lengths,
    Schedule,
    keys_of,
    makespan,
    pairs_of,
    piece_keys,
    row_tiles,
    schedule,
)

H100_DECODE: dict[str, Any] = {
    "group": 8,
    "kv_heads": 8,
    "block_m": 16,
    "block_n": 32,
    "slots": 132 * 4,
    "causal": True,
}
H100_CHUNKS: dict[str, Any] = {"group": 8, "kv_heads": 8, "block_m": 128, "block_n": 64, "slots": 132, "causal": True}
SKEWED: Lengths = ((1, 100_000), *((1, 500),) * 63)


def walked(made: Schedule, lengths: Lengths, *, group: int, block_m: int, block_n: int, causal: bool) -> list[int]:
    """Keys of each item in order."""
    reach = {(t.sequence, t.row_tile): t.reach for t in row_tiles(lengths, group, block_m, causal=causal)}
    return [piece_keys(reach[b, tile], piece, pieces, block_n) for b, tile, piece, pieces, _ in made.items]


def largest_over_mean(lengths: Lengths, **how: Any) -> float:
    """Keys of the largest program over the mean keys of a slot."""
    made = schedule(lengths, **how)
    keys = walked(made, lengths, **{name: how[name] for name in ("group", "block_m", "block_n", "causal")})
    return float(max(keys) * how["slots"] / (sum(keys) * how["kv_heads"]))


def test_a_schedule_by_hand() -> None:
    """Two slots, tiles of 4 rows and 10 keys, a group of 2. Sequence 0: 3 tokens of 5 keys are 6 rows, of which the
    first tile's (tokens 0 and 1) see 4 keys and the second's 5. Sequence 1: one token, 95 keys, in 2 pieces."""
    how = {"group": 2, "kv_heads": 1, "block_m": 4, "block_n": 10, "slots": 2}
    made = schedule(((3, 5), (1, 95)), causal=True, **how, pieces=2)
    assert made.items == ((1, 0, 0, 2, 0), (1, 0, 1, 2, 0), (0, 1, 0, 1, 0), (0, 0, 0, 1, 0))
    assert made.merged == ((1, 0, 0, 2, 0),) and made.parts == 2
    assert walked(made, ((3, 5), (1, 95)), group=2, block_m=4, block_n=10, causal=True) == [50, 45, 5, 4]
    whole = schedule(((3, 5),), causal=False, **how, pieces=1)
    assert walked(whole, ((3, 5),), group=2, block_m=4, block_n=10, causal=False) == [5, 5]


@pytest.mark.parametrize("how", [H100_DECODE, H100_CHUNKS], ids=["tiles of decode", "tiles of chunks"])
def test_one_long_sequence_among_short_ones_is_shared_by_all(how: dict[str, Any]) -> None:
    """One of 100,000 keys and 63 of 500: without pieces 8 programs would walk 12 or 50 times the mean."""
    assert largest_over_mean(SKEWED, **how) <= 1.3
    assert largest_over_mean(SKEWED, **how, pieces=1) > 12


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("others", [0, 63], ids=["alone", "among short ones"])
def test_a_million_keys_of_few_kv_heads_still_fill_the_machine(kv_heads: int, others: int) -> None:
    """Tensor parallelism over 8 leaves one KV head a GPU: one tile, 528 slots, so 64 pieces would be 8 shares long."""
    lengths = ((1, 1_000_000), *((1, 500),) * others)
    assert largest_over_mean(lengths, **(H100_DECODE | {"kv_heads": kv_heads})) <= 1.1


def test_pieces_cost_so_that_no_tile_is_cut_finer_than_balance_needs() -> None:
    """4 KV heads on 528 slots: 132 programs each are one share; 512 pieces would shorten the last wave by a few keys
    and have the merge add four times the parts."""
    made = schedule(((1, 1_000_000), *((1, 500),) * 63), **(H100_DECODE | {"kv_heads": 4}))
    assert 120 <= max(pieces for _, _, _, pieces, _ in made.items) <= 132


@pytest.mark.parametrize(
    "lengths",
    [((512, 32768), *((1, 4096),) * 63), ((2048, 2048), *((1, 8192),) * 16), ((4096, 4096),) * 4],
    ids=["a chunk on a long prefix", "a prompt and decode", "prompts"],
)
def test_mixed_steps_are_balanced_too(lengths: Lengths) -> None:
    assert largest_over_mean(lengths, **H100_CHUNKS) <= 1.3


def test_prompts_that_fill_the_machine_are_not_cut_and_the_last_rows_start_first() -> None:
    made = schedule(((2048, 2048),) * 8, **H100_CHUNKS)
    assert not made.merged and {item[3] for item in made.items} == {1}
    assert [item[1] for item in made.items[:8]] == [127] * 8 and made.items[-1][1] == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_key_is_walked_once_by_each_row_tile(data: st.DataObject) -> None:
    lengths = tuple(data.draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3000)), max_size=8), "lengths"))
    how = {name: data.draw(st.integers(1, high), name) for name, high in (("group", 9), ("block_m", 33))}
    block_n, causal = data.draw(st.sampled_from((16, 64)), "block_n"), data.draw(st.booleans(), "causal")
    made = schedule(
        lengths, **how, block_n=block_n, causal=causal, kv_heads=data.draw(st.integers(1, 8), "kv_heads"),
        slots=data.draw(st.integers(1, 500), "slots"), pieces=data.draw(st.integers(0, 5), "pieces"),
    )  # fmt: skip
    keys = walked(made, lengths, **how, block_n=block_n, causal=causal)
    assert keys == sorted(keys, reverse=True)
    by_tile: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (b, tile, piece, pieces, _), n in zip(made.items, keys, strict=True):
        assert 0 <= piece < pieces <= MOST_PIECES
        by_tile.setdefault((b, tile), []).append((piece, n))
    wanted = {
        (t.sequence, t.row_tile): t.reach for t in row_tiles(lengths, how["group"], how["block_m"], causal=causal)
    }
    assert {tile: sum(n for _, n in cut) for tile, cut in by_tile.items()} == wanted
    for cut in by_tile.values():
        assert sorted(piece for piece, _ in cut) == list(range(len(cut)))
        assert len(cut) == 1 or all(n > max(m for _, m in cut) - 2 * block_n for _, n in cut)
    rooms = [(first, first + count) for _, _, _, count, first in made.merged]
    assert [lo for lo, _ in rooms] == [0, *(hi for _, hi in rooms)][: len(rooms)], "parts lie one after another"
    assert made.parts == (rooms[-1][1] if rooms else 0)
    assert {item[:2] for item in made.merged} == {tile for tile, cut in by_tile.items() if len(cut) > 1}


def test_rows_of_every_token_lie_in_some_tile() -> None:
    """3 tokens of a group of 5 are 15 rows: 4 tiles of 4, whose last tokens are 0, 1, 2 and 2 of keys 0 .. 9."""
    assert [t.reach for t in row_tiles(((3, 10),), 5, 4, causal=True)] == [8, 9, 10, 10]
    assert list(row_tiles(((0, 10), (0, 0)), 5, 4, causal=True)) == []
    assert [t.reach for t in row_tiles(((4, 2),), 1, 2, causal=True)] == [0, 2]


@pytest.mark.parametrize(("kv_heads", "busiest"), [(1, 118), (2, 232)])
def test_the_busiest_slot_by_hand(kv_heads: int, busiest: int) -> None:
    """The schedule by hand above walks 50, 45, 5 and 4 keys, 32 more each to start: 82 + 36 against 77 + 37. With two
    KV heads each program is there twice, so both slots walk 82 + 77 + 37 + 36."""
    how: dict[str, Any] = {"group": 2, "block_m": 4, "block_n": 10, "slots": 2}
    lengths = ((3, 5), (1, 95))
    made = schedule(lengths, causal=True, kv_heads=kv_heads, **how, pieces=2)
    assert makespan(made, list(row_tiles(lengths, 2, 4, causal=True)), kv_heads, 10, 2) == busiest


def test_too_many_programs_to_simulate_share_their_load() -> None:
    """20,000 programs of 10 keys and 32 to start, on two slots."""
    lengths = ((1, 10),) * 20_000
    made = schedule(lengths, causal=True, kv_heads=1, group=1, block_m=16, block_n=10, slots=2)
    assert makespan(made, list(row_tiles(lengths, 1, 16, causal=True)), 1, 10, 2) == 20_000 * 42 / 2


def test_pieces_of_less_than_a_share_fill_the_last_wave() -> None:
    """Three sequences on two slots: whole, one slot walks two (12,064); six halves are three each (9,096 and 140 to
    merge); nine thirds are five on one (10,160); eighteen sixths are nine each (9,288 and 164 to merge)."""
    made = schedule(((1, 6000),) * 3, causal=True, kv_heads=1, group=1, block_m=16, block_n=10, slots=2)
    assert {pieces for _, _, _, pieces, _ in made.items} == {2}


def test_pairs_and_keys_of_ragged_lengths_by_hand() -> None:
    """5 tokens on 3 keys: 1 + 2 + 3 pairs when causal, 15 when not; one token on 4; no token reads none of 7."""
    lengths = ((5, 3), (1, 4), (0, 7))
    assert (pairs_of(lengths, causal=True), pairs_of(lengths, causal=False)) == (6 + 4, 15 + 4)
    assert keys_of(lengths) == 3 + 4
