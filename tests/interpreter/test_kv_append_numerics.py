"""The Triton append by the interpreter: any layout of cache and projection, bit for bit, and nothing else written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from guarded import surrounded
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import variant
from races import detect_races, grid_order
from test_attention import draw
from test_kv_append import by_loops

from kernels import kv_append_triton as kernel

LAYOUTS = {
    "one buffer": (0, 1, 2, 3, 4),
    "two buffers": (2, 0, 1, 3, 4),
    "heads first": (0, 2, 3, 1, 4),
    "width slow": (0, 1, 2, 4, 3),
}
"""Order in memory of the axes of [B, S, 2, Hkv, D]."""


def laid_out(shape: tuple[int, ...], order: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A cache of these axes with NaN in all of it, and between its rows."""
    whole = surrounded(torch.zeros([shape[axis] for axis in order], dtype=dtype))
    view = whole.permute([order.index(axis) for axis in range(5)])
    assert view.shape == shape
    return view.fill_(math.nan)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """What is compared where NaN must stay NaN."""
    return tensor.contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_of_the_cache_takes_the_rows_and_keeps_the_rest(layout: str, dtype: torch.dtype) -> None:
    kv_new = draw(1, 3, 2, 2, 3, 24).to(dtype)
    positions = torch.tensor([[7, 99], [0, 99], [3, 99]], dtype=torch.int32)[:, 0]
    cache = laid_out((3, 9, 2, 3, 24), LAYOUTS[layout], dtype)
    storage = as_bits(torch.as_strided(cache, (cache.untyped_storage().nbytes() // cache.element_size(),), (1,), 0))
    expected, before = by_loops(kv_new, cache, positions), storage.clone()
    with detect_races() as races:
        assert kernel.kv_append(kv_new, cache, positions) is cache
    assert torch.equal(as_bits(cache), as_bits(expected)) and races == []
    storage = as_bits(torch.as_strided(cache, (len(before),), (1,), 0))
    assert int((storage != before).sum()) == kv_new.numel(), "what lies between the rows of the view was written"


def test_new_rows_may_be_the_last_columns_of_a_fused_projection() -> None:
    """[B x Sq, (Hq + 2 Hkv) x D] as qkv_proj leaves it."""
    qkv = draw(2, 2 * 3, (4 + 2 * 2) * 16)
    kv_new = qkv.view(2, 3, 8, 16)[:, :, 4:].view(2, 3, 2, 2, 16)
    cache, positions = draw(3, 2, 5, 2, 2, 16), torch.tensor([2, 0], dtype=torch.int32)
    expected = by_loops(kv_new, cache, positions)
    for config in kernel.CONFIGS:
        for order in ("reversed", "shuffled"):
            with grid_order(order):
                assert torch.equal(kernel.kv_append(kv_new, cache.clone(), positions, config=config), expected)


@pytest.mark.parametrize(("B", "Sq"), [(0, 1), (2, 0)])
def test_no_sequences_or_tokens_leave_the_cache_as_it_is(B: int, Sq: int) -> None:
    cache = torch.ones(B, 4, 2, 2, 16)
    kernel.kv_append(torch.zeros(B, Sq, 2, 2, 16), cache, torch.zeros(B, dtype=torch.int32))
    assert bool((cache == 1).all())


@pytest.mark.parametrize(
    ("shape", "dtype", "told"),
    [
        ((2, 1, 2, 3, 8), torch.float32, "one Hkv"),
        ((2, 1, 2, 2, 8), torch.float16, "one dtype"),
        ((3, 1, 2, 2, 8), torch.float32, r"wanted kv_new \[B, Sq, 2, Hkv, D\]"),
        ((2, 1, 3, 2, 8), torch.float32, r"wanted kv_new \[B, Sq, 2, Hkv, D\]"),
    ],
)
def test_what_does_not_fit_the_cache_is_refused(shape: tuple[int, ...], dtype: torch.dtype, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        kernel.kv_append(torch.zeros(shape, dtype=dtype), torch.zeros(2, 4, 2, 2, 8), torch.zeros(2, dtype=torch.int32))


def test_a_tile_without_its_mask_is_found_out(tmp_path: Path) -> None:
    """2 rows of a tile of 32: the other 30 would be written behind them."""
    unmasked = variant(tmp_path, kernel, ("(token < q_len)[:, None]", "(token >= 0)[:, None]"))
    cache = torch.zeros(1, 64, 2, 1, 16)
    new = torch.ones(1, 40, 2, 1, 16)[:, :1]
    assert int(unmasked.kv_append(new, cache, torch.zeros(1, dtype=torch.int32)).sum()) == 32 * 16
    assert int(kernel.kv_append(new, torch.zeros_like(cache), torch.zeros(1, dtype=torch.int32)).sum()) == 2 * 16


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.data())
def test_any_ragged_batch_is_what_loops_give(data: st.DataObject) -> None:
    lens = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=4), "before")
    Sq, Hkv = data.draw(st.integers(1, 6), "Sq"), data.draw(st.integers(1, 3), "Hkv")
    D = data.draw(st.sampled_from((1, 8, 24, 72)), "D")
    order = data.draw(st.sampled_from(sorted(LAYOUTS)), "layout")
    dtype = data.draw(st.sampled_from((torch.float16, torch.float32)), "dtype")
    kv_new = surrounded(draw(1, len(lens), Sq, 2, Hkv, D).to(dtype), 3)
    cache = laid_out((len(lens), max(lens) + Sq, 2, Hkv, D), LAYOUTS[order], dtype)
    positions = torch.tensor(lens, dtype=torch.int32)
    expected = by_loops(kv_new, cache, positions)
    assert torch.equal(as_bits(kernel.kv_append(kv_new, cache, positions)), as_bits(expected))
