"""The schedule of attention over sequences of unlike lengths: which program walks which keys of which rows.

Built on the host from lengths that a serving engine holds there anyway, once for all layers of a step. Rows of a
sequence are its new tokens times the query heads of one KV head, in tiles; a tile whose keys are more than a program's
fair share is cut into pieces of near-equal length, which merge in their order. Programs start longest first, so that
what comes last fills gaps. Plain arithmetic: leaves tensors and launches to `kernels.attention_ragged_triton`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernels.work import keys_read, unmasked_pairs

Lengths = tuple[tuple[int, int], ...]
"""(new tokens, keys with the new tokens' own) of each sequence."""
MOST_PIECES = 512
"""Of a tile's keys: the merge loads the log-sum-exps of so many at once.

One sequence of 1,000,000 keys and one KV head (MQA, or eight heads on eight GPUs) is a single tile, whose fair share
for each of 4 programs on 132 SMs is a 528th. Each of only 64 pieces would be 8 such shares, with 7 of 8 slots idle.
"""
START_KEYS = 32
"""What a program costs beside its keys: queries, tables, the end of its rows; only ranks schedules."""
MERGE_KEYS = 128
"""What a second kernel costs, in keys of one program's walk; only ranks schedules."""
PART_KEYS = 2
"""What it pays for each piece of a row: the row's share of a wait of about half a microsecond for 16 pieces, and their
way through L2, against about 80 ns that one of 528 programs walks a key of 512 bytes in, at the memory's peak of an
H100; not measured."""
ROW_KEYS = 8
"""What it pays for each row of a merged tile, over the slots: about a microsecond for one and a half rows a slot."""
WAVES = (1, 2, 3, 4, 8)
"""Programs' fair share as parts of a slot's load that are tried: smaller pieces fill a last wave better."""
SIMULATED = 2**14
"""Programs up to which schedules are compared; more of them fill every wave but the last whatever their order."""
ITEM = ("sequence", "row tile", "piece", "pieces", "first part")
"""Columns of the table that programs read."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of a sequence's rows for each KV head, and the keys that some of its rows sees."""

    sequence: int
    row_tile: int
    reach: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rows of `ITEM`, for each KV head.

    Attributes:
        items: one a program, longest first.
        merged: one a tile in several pieces, its first.
        parts: pieces of all such tiles.
    """

    items: tuple[tuple[int, ...], ...]
    merged: tuple[tuple[int, ...], ...]
    parts: int


def row_tiles(lengths: Lengths, group: int, block_m: int, *, causal: bool) -> Iterator[Tile]:
    """Tiles of `block_m` rows, `group` rows a token, of every sequence that has new tokens."""
    for sequence, (q_len, kv_len) in enumerate(lengths):
        for row_tile in range(-(-q_len * group // block_m)):
            last_token = min(q_len, ((row_tile + 1) * block_m - 1) // group + 1) - 1
            reach = max(0, kv_len - q_len + last_token + 1) if causal else kv_len
            yield Tile(sequence, row_tile, reach)


def piece_keys(reach: int, piece: int, pieces: int, block_n: int) -> int:
    """Keys of one piece: whole tiles of keys, shared out so that no two pieces differ by more than one of them."""
    tiles = -(-reach // block_n)
    lo, hi = (tiles * i // pieces * block_n for i in (piece, piece + 1))
    return max(0, min(reach, hi) - lo)


def schedule(
    lengths: Lengths, *, group: int, kv_heads: int, block_m: int, block_n: int, slots: int, causal: bool,
    pieces: int = 0,
) -> Schedule:  # fmt: skip
    """The schedule whose slowest slot is done first, of those that cut tiles at a fair share of a slot's load.

    Args:
        lengths: of each sequence.
        group: query heads of one KV head.
        kv_heads: of this GPU.
        block_m, block_n: rows and keys of a tile.
        slots: programs that run at once on the device.
        causal: bottom-right; else every query sees all keys.
        pieces: of every tile, where it has so many tiles of keys; 0 lets the rule choose.
    """
    tiles = list(row_tiles(lengths, group, block_m, causal=causal))
    if pieces:
        return _cut(tiles, [_at_most(tile, pieces, block_n) for tile in tiles], block_n)
    load = kv_heads * sum(tile.reach for tile in tiles) / slots
    tried: list[tuple[float, Schedule]] = []
    for waves in WAVES:
        share = max(block_n, load / waves)
        made = _cut(tiles, [_at_most(tile, max(1, -int(-tile.reach // share)), block_n) for tile in tiles], block_n)
        merging = merge_keys(max((item[3] for item in made.merged), default=1))
        merging += ROW_KEYS * len(made.merged) * kv_heads * block_m / slots
        tried.append((makespan(made, tiles, kv_heads, block_n, slots) + merging, made))
        if len(made.items) * kv_heads > SIMULATED or share == block_n:
            break
    return min(tried, key=lambda cost_and_schedule: cost_and_schedule[0])[1]


def makespan(made: Schedule, tiles: Sequence[Tile], kv_heads: int, block_n: int, slots: int) -> float:
    """Keys that the busiest slot walks when each program in order goes to the slot that is free first."""
    reach = {(tile.sequence, tile.row_tile): tile.reach for tile in tiles}
    costs = [
        START_KEYS + piece_keys(reach[sequence, row_tile], piece, pieces, block_n)
        for sequence, row_tile, piece, pieces, _ in made.items
    ]
    if len(costs) * kv_heads > SIMULATED:
        return sum(costs) * kv_heads / slots
    busy = [0.0] * slots
    for cost in costs:
        for _ in range(kv_heads):
            heapq.heapreplace(busy, busy[0] + cost)
    return max(busy)


def merge_keys(parts: int) -> float:
    """What joining so many parts of a row costs, in keys of one program's walk; nothing for one."""
    return MERGE_KEYS + PART_KEYS * parts if parts > 1 else 0.0


def _at_most(tile: Tile, pieces: int, block_n: int) -> int:
    return max(1, min(pieces, MOST_PIECES, -(-tile.reach // block_n)))


def _cut(tiles: Sequence[Tile], pieces: Sequence[int], block_n: int) -> Schedule:
    items: list[tuple[int, tuple[int, ...]]] = []
    merged: list[tuple[int, ...]] = []
    parts = 0
    for tile, count in zip(tiles, pieces, strict=True):
        for piece in range(count):
            item = (tile.sequence, tile.row_tile, piece, count, parts)
            items.append((piece_keys(tile.reach, piece, count, block_n), item))
        if count > 1:
            merged.append((tile.sequence, tile.row_tile, 0, count, parts))
            parts += count
    ordered = sorted(items, key=lambda keys_and_item: -keys_and_item[0])
    return Schedule(tuple(item for _, item in ordered), tuple(merged), parts)


def pairs_of(lengths: Lengths, *, causal: bool) -> int:
    """Unmasked query-key pairs of one head over all sequences."""
    return sum(int(unmasked_pairs(q_len, kv_len, causal=causal)) for q_len, kv_len in lengths)


def keys_of(lengths: Lengths) -> int:
    """Keys of all sequences that some query sees."""
    return sum(int(keys_read(q_len, kv_len)) for q_len, kv_len in lengths)
