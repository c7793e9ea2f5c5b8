"""races: planted races are found, clean kernels are not accused, and grids really run in the order asked for."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from races import Race, detect_races, grid_order
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _partial_sums_kernel(x, partials, SPLIT: tl.constexpr, SLOT: tl.constexpr):
    split = tl.program_id(0)
    tl.store(partials + split * SLOT, tl.sum(tl.load(x + split * SPLIT + tl.arange(0, SPLIT))))


@triton.jit
def _sum_in_place_kernel(x, SPLIT: tl.constexpr):
    split = tl.program_id(0)
    part = x + split * SPLIT + tl.arange(0, SPLIT)
    tl.store(part, tl.load(part) + tl.sum(tl.load(x + tl.arange(0, SPLIT))))


@triton.jit
def _atomic_sum_kernel(x, total, SPLIT: tl.constexpr):
    tl.atomic_add(total, tl.sum(tl.load(x + tl.program_id(0) * SPLIT + tl.arange(0, SPLIT))))


@triton.jit
def _copy_blocks_kernel(source, target, ROWS: tl.constexpr):
    target.store([tl.program_id(0) * ROWS, 0], source.load([tl.program_id(0) * ROWS, 0]))


@triton.jit
def _narrow_store_kernel(target):
    tl.store(target + tl.program_id(0), tl.program_id(0).to(tl.int8))


@triton.jit
def _wide_load_kernel(narrow, wide, out):
    i = tl.program_id(0)
    tl.store(narrow + 4 + i, i.to(tl.int8))
    tl.store(out + i, tl.load(wide + 1))


@triton.jit
def _order_kernel(turns, next_turn):
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(turns + program, tl.atomic_add(next_turn, 1))


def turns_of(rows: int, columns: int) -> list[int]:
    """When each program ran, in the order of their numbers."""
    turns = torch.full((rows * columns,), -1, dtype=torch.int32)
    _order_kernel[(rows, columns)](turns, torch.zeros(1, dtype=torch.int32))
    return list(turns)


def partial_sums(slot: int) -> list[Race]:
    with detect_races() as races:
        _partial_sums_kernel[(4,)](torch.randn(64), torch.empty(4), SPLIT=16, SLOT=slot)
    return races


def test_a_shared_split_slot_is_a_race_and_an_own_one_is_not() -> None:
    assert partial_sums(slot=1) == []
    races = partial_sums(slot=0)
    assert {(race.kernel, race.kind, race.count) for race in races} == {("_partial_sums_kernel", "write and write", 4)}
    assert {program for race in races for program in race.programs} == {(i, 0, 0) for i in range(4)}


def test_reading_what_another_program_writes_is_a_race_whichever_comes_first() -> None:
    for order in (None, "reversed"):
        with detect_races() as races:
            if order:
                with grid_order(order):
                    _sum_in_place_kernel[(3,)](torch.randn(48), SPLIT=16)
            else:
                _sum_in_place_kernel[(3,)](torch.randn(48), SPLIT=16)
        # The first program writes what the other two read; its own reads of that are no race.
        assert [(r.kind, r.programs[0], r.count) for r in races] == [("write and read", (0, 0, 0), 64)] * 2


def test_atomics_are_exempt() -> None:
    total = torch.zeros(1)
    with detect_races() as races:
        _atomic_sum_kernel[(4,)](torch.ones(64), total, SPLIT=16)
    assert races == [] and total.item() == 64


@pytest.mark.parametrize(("rows", "clean"), [(16, True), (8, False)])
def test_descriptors_are_seen(rows: int, clean: bool) -> None:
    source, target = torch.randn(64, 16), torch.empty(64, 16)
    made = [TensorDescriptor(t, [64, 16], [16, 1], [16, 16]) for t in (source, target)]
    with detect_races() as races:
        _copy_blocks_kernel[(4,)](*made, ROWS=rows)
    assert (races == []) is clean
    if not clean:
        assert races[0].kind == "write and write" and races[0].count == 8 * 16 * 4


def test_accesses_of_different_widths_meet_by_the_byte() -> None:
    memory, out = torch.zeros(8, dtype=torch.int8), torch.empty(2, dtype=torch.int32)
    with detect_races() as races:
        _narrow_store_kernel[(8,)](memory)
    assert races == []
    with detect_races() as races:
        _wide_load_kernel[(2,)](memory, memory.view(torch.int32), out)
    assert {(r.kind, r.count) for r in races} == {("write and read", 1)} and len(races) == 2


def test_each_launch_starts_afresh_and_nothing_stays_wrapped() -> None:
    from triton.runtime import interpreter

    before = dict(vars(interpreter.InterpreterBuilder)), interpreter.GridExecutor.__call__
    x, partials = torch.randn(64), torch.empty(4)
    with detect_races() as races:
        for _ in range(2):  # the second writes where the first wrote
            _partial_sums_kernel[(4,)](x, partials, SPLIT=16, SLOT=1)
        _partial_sums_kernel[(4,)](partials.repeat(16), x, SPLIT=16, SLOT=1)
    assert races == []
    assert (dict(vars(interpreter.InterpreterBuilder)), interpreter.GridExecutor.__call__) == before


def test_orders() -> None:
    assert turns_of(3, 4) == list(range(12))
    with grid_order("reversed"):
        assert turns_of(3, 4) == list(range(11, -1, -1))
        assert turns_of(1, 2) == [1, 0], "each launch has its own order"
    shuffled: list[Any] = []
    for seed in (1, 1, 2):
        with grid_order("shuffled", seed):
            shuffled.append(turns_of(3, 4))
    assert all(sorted(turns) == list(range(12)) != turns for turns in shuffled)
    assert shuffled[0] == shuffled[1] != shuffled[2]
    assert turns_of(2, 1) == [0, 1]


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="known: reversed, shuffled"), grid_order("backwards"):
        pass
