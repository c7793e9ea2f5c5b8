"""Bugs planted in copies of the kernels: each proof that the other files rely on fails on the bug it is for."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType

import pytest
import torch
from guarded import guard_bands, surrounded
from launches import variant
from races import detect_races
from test_attention import draw, numbered

from kernels import (
    attention_decode_triton,
    attention_merge_triton,
    attention_prefill_triton,
    matmul_configs,
    matmul_decode_configs,
    matmul_decode_triton,
    matmul_triton,
    packed_rows,
    softmax,
)

pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")
ONES = torch.ones(5, 31).half()


def multiplies_ones(module: ModuleType) -> bool:
    """K01: 31 everywhere, though NaN lies past K."""
    x, w = surrounded(ONES), surrounded(ONES)
    if hasattr(module, "matmul"):
        return bool((module.matmul(x, w.t(), config=matmul_configs.POINTERS[1]) == 31).all())
    forms = [module.matmul_decode(x, w, config=config) for config in matmul_decode_configs.FEW_ROWS]
    forms += [module.matmul_decode(x[:1], w, config=matmul_decode_configs.ONE_ROW[1])]
    return all(bool((out == 31).all()) for out in forms)


def decodes(module: ModuleType, *lens: int, splits: int = 1, slack: int = 3) -> torch.Tensor:
    """[B, 1, 1, 16] of keys that weigh the same and values 0, 1, .., with NaN past each length."""
    k, v = numbered(max(lens) + slack, batch=len(lens))
    for batch, length in enumerate(lens):
        k[batch, length:], v[batch, length:] = math.nan, math.nan
    config = module.Config(block_n=32, splits=splits)
    with guard_bands():
        out: torch.Tensor = module.attention_decode(
            draw(1, len(lens), 1, 1, 16), k, v, torch.tensor(lens, dtype=torch.int32), config=config
        )
    return out[:, 0, 0, 0]


def averages(module: ModuleType, *, splits: int = 1) -> bool:
    """K23, K25, K36: the mean of 0 .. n - 1, and 0 of nothing, with one split or more."""
    wanted = torch.tensor([3.5, 0.0, 34.5])
    return bool(torch.allclose(decodes(module, 8, 0, 70, splits=splits), wanted, rtol=1e-5, atol=0))


def attends_bottom_right(module: ModuleType) -> bool:
    """K24: (2, 5) gives 1.5 and 2, (5, 2) gives 0, 0, 0, 0 and 0.5."""
    q = draw(1, 1, 5, 1, 16)
    wide = module.attention_prefill(q[:, :2], *numbered(5), causal=True)[0, :, 0, 0]
    tall = module.attention_prefill(q, *numbered(2), causal=True)[0, :, 0, 0]
    return torch.allclose(wide, torch.tensor([1.5, 2.0])) and torch.allclose(tall, torch.tensor([0, 0, 0, 0, 0.5]))


def weighs_low_logits(module: ModuleType) -> bool:
    """K29: four logits of -80,000 weigh 1/4 each."""
    q, k = torch.full((1, 1, 1, 64), 100.0), torch.full((1, 4, 1, 64), -100.0)
    out = module.attention_prefill(q, k, numbered(4, width=64)[1], causal=True)
    return bool((out == 1.5).all())


def with_softmax(folder: Path, module: ModuleType, *changes: tuple[str, str]) -> ModuleType:
    """The module over a softmax with these changes."""
    name = variant(folder, softmax, *changes).__name__
    return variant(folder, module, ("from kernels.softmax import", f"from {name} import"))


def test_the_proofs_hold_of_the_kernels_themselves() -> None:
    assert multiplies_ones(matmul_triton) and multiplies_ones(matmul_decode_triton)
    assert averages(attention_decode_triton) and averages(attention_decode_triton, splits=4)
    assert attends_bottom_right(attention_prefill_triton) and weighs_low_logits(attention_prefill_triton)


@pytest.mark.parametrize(
    ("module", "mask"),
    [
        (matmul_triton, "inside = k + ks < K"),
        (matmul_decode_triton, "left = (k + ks < K)[None, :]"),
        (matmul_decode_triton, "left = k + ks < K\n"),
    ],
    ids=["matmul", "tile and swap", "gemv"],
)
def test_k01_fails_where_the_mask_along_k_is_missing(module: ModuleType, mask: str, tmp_path: Path) -> None:
    assert not multiplies_ones(variant(tmp_path, module, (mask, mask.replace("< K", ">= 0"))))


def test_guard_bands_show_a_store_past_the_rows(tmp_path: Path) -> None:
    mask = "mask=(ms < M)[:, None] & (ns < N)"
    unmasked = variant(tmp_path, matmul_triton, (mask, mask.replace("ms < M", "ms >= 0")))
    tile = unmasked.Config(block_m=16, block_n=16, block_k=16, descriptors="")
    with pytest.raises(AssertionError, match="guard band"), guard_bands():
        unmasked.matmul(torch.ones(3, 8).half(), torch.ones(8, 8).half(), config=tile)


def test_the_race_detector_finds_attention_splits_that_share_a_slot(tmp_path: Path) -> None:
    slots = variant(tmp_path, packed_rows, ("(flat * splits + split)[:, None] * DV", "(flat * splits)[:, None] * DV"))
    imported = ("from kernels.packed_rows import", f"from {slots.__name__} import")
    shared = variant(tmp_path, attention_decode_triton, imported)
    with detect_races() as races:
        decodes(shared, 70, splits=2)
    assert {(race.kernel, race.kind, race.count) for race in races} == {
        ("_attention_decode_kernel", "write and write", 16 * 4)
    }
    assert not averages(shared, splits=4)


@pytest.mark.parametrize(
    ("kernel", "own", "common"),
    [
        ("_matmul_decode_kernel", "(split.to(tl.int64) * M + m) * N + n", "m * N + n"),
        ("_gemv_kernel", "partial + split.to(tl.int64) * N + columns", "partial + columns"),
    ],
)
def test_the_race_detector_finds_matmul_splits_that_share_a_slot(
    kernel: str, own: str, common: str, tmp_path: Path
) -> None:
    shared = variant(tmp_path, matmul_decode_triton, (own, common))
    form = "gemv" if "gemv" in kernel else "tile"
    with detect_races() as races:
        shared.matmul_decode(
            torch.ones(1, 64).half(),
            torch.ones(8, 64).half(),
            config=shared.Config(form=form, block_n=16, block_k=16, splits=2),
        )
    assert {(race.kernel, race.kind, race.count) for race in races} == {(kernel, "write and write", 8 * 4)}


def test_poison_shows_a_merge_that_reads_what_an_empty_split_never_wrote(tmp_path: Path) -> None:
    merge = variant(tmp_path, attention_merge_triton, ("tl.where(kept[:, None], value, 0.0)", "value"))
    own = "from kernels.attention_merge_triton import"
    trusting = variant(tmp_path, attention_decode_triton, (own, f"from {merge.__name__} import"))
    assert averages(trusting, splits=1) and not averages(trusting, splits=4)


def test_lengths_fail_where_the_keys_are_not_masked(tmp_path: Path) -> None:
    for mask, all_of_them in (
        ("seen = (places < hi)[None, :]", "seen = (places >= 0)[None, :] & (places >= 0)[None, :]"),
        ("q_positions[:, None])", "q_positions[:, None] + 1)"),
    ):
        unmasked = with_softmax(tmp_path, attention_prefill_triton, (mask, all_of_them))
        k, v = numbered(70)
        out = unmasked.attention_prefill(draw(1, 1, 3, 1, 16), k, v, causal="q_pos" in mask)
        wanted = torch.tensor([33.5, 34.0, 34.5]) if "q_pos" in mask else torch.full((3,), 34.5)
        assert not torch.allclose(out[0, :, 0, 0], wanted, rtol=1e-4)


def test_k24_fails_where_the_mask_is_aligned_top_left(tmp_path: Path) -> None:
    top_left = variant(
        tmp_path, attention_prefill_triton, ("q_positions = rows + (kv_len - q_len)", "q_positions = rows")
    )
    assert not attends_bottom_right(top_left)


def test_k29_and_k30_fail_where_the_floor_of_the_maximum_is_wrong(tmp_path: Path) -> None:
    """A floor that logits pass loses them; one of -inf, less a masked score of -inf, is not a number."""
    floor = "m = tl.full([BLOCK_M], FLOOR, tl.float32)"
    high = variant(tmp_path, attention_prefill_triton, (floor, floor.replace("FLOOR", "-10000.0")))
    assert not weighs_low_logits(high)
    infinite = variant(tmp_path, attention_prefill_triton, (floor, floor.replace("FLOOR", 'float("-inf")')))
    assert not attends_bottom_right(infinite)


def test_a_planted_bug_whose_place_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a new place"):
        variant(tmp_path, matmul_triton, ("no such text", ""))
