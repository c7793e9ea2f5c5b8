"""Attention whose keys are shared over programs, and long or ragged walks: merges, tiles, guard bands, launches."""

from __future__ import annotations

import math

import pytest
import torch
from attention_paths import DTYPES, decode, prefill
from guarded import guard_bands
from launches import only_programs
from races import detect_races, grid_order
from test_attention import agree, arrays, by_loops, draw, numbered, rows

from bench.check import judge
from kernels import attention_decode as decode_op
from kernels import attention_decode_triton as kernel
from kernels import attention_merge_triton as merge
from kernels import attention_prefill_triton as prefill_kernel
from kernels.attention_decode_configs import Config as DecodeConfig
from kernels.attention_decode_configs import splits_for
from kernels.launch import INTERPRETED_SMS


def merged(values: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One row's parts [splits, Dv] with log-sum-exps [splits], by the merge kernel alone: (out [Dv], lse)."""
    out, whole = torch.full((1, 1, 1, values.shape[1]), math.nan), torch.full((1,), math.nan)
    merge.launch_merge(values[None], lse[None], out, whole)
    return out[0, 0, 0], whole


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("S", [1, 127, 128, 129])
def test_k35_lengths_off_the_tile_are_as_right_as_those_on_it(S: int, dtype: torch.dtype) -> None:
    k, v = (tensor.to(dtype) for tensor in numbered(S))
    answers = prefill(draw(1, 1, S, 1, 16).to(dtype), k, v)
    agree(answers, rows(*(i / 2 for i in range(S))), tolerance=1e-4 if dtype == torch.float32 else 2e-3)
    agree(decode(draw(1, 1, 1, 1, 16).to(dtype), k, v, S), rows((S - 1) / 2), tolerance=2e-3)


def test_k35_a_length_of_4095_is_as_right() -> None:
    tile = prefill_kernel.Config(block_m=512, block_n=256, descriptors="")
    answers = prefill(draw(1, 1, 4095, 1, 16), *numbered(4095), tiles=(tile,))
    agree(answers, rows(*(i / 2 for i in range(4095))), tolerance=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k36_eight_splits_of_one_key_give_its_value_and_of_none_zero(dtype: torch.dtype) -> None:
    q, k, v = (draw(seed, 1, 1, 1, 16).to(dtype) for seed in (1, 2, 3))
    logit = float((q.double() * k.double()).sum()) / 4
    with guard_bands():
        agree(decode(q, k, v, 1, splits=(8, 0)), v, [[[logit]]])
        agree(decode(q, k, v, 0, splits=(8, 0)), rows(0), [[[-math.inf]]], tolerance=0)


def test_k36_a_merge_of_empty_parts_stays_empty_whatever_their_values_hold() -> None:
    for nothing in (0.0, math.nan, math.inf):
        out, lse = merged(torch.full((2, 8), nothing), torch.full((2,), -math.inf))
        assert torch.equal(out, torch.zeros(8)) and lse == -math.inf
        parts = torch.tensor([[nothing] * 8, [3.0] * 8])
        out, lse = merged(parts, torch.tensor([-math.inf, -80000.0]))
        assert torch.equal(out, torch.full((8,), 3.0)) and lse.item() == pytest.approx(-80000, rel=1e-7)


@pytest.mark.parametrize("first", [1, 76, 151, 226])
def test_k37_the_number_of_splits_that_the_rule_chooses_changes_no_result(first: int) -> None:
    """Every length from 1 to 300, each with the number chosen for it alone, against one split; some twice."""
    q, k, v = (draw(i, 1, size, 1, 64).half() for i, size in enumerate((1, 300, 300)))
    config = DecodeConfig(block_n=64)
    chosen: dict[int, list[int]] = {}
    for length in range(first, first + 75):
        chosen.setdefault(splits_for(1, length, config, INTERPRETED_SMS), []).append(length)
    assert first < 151 or max(chosen) > 1
    for splits, lengths in chosen.items():
        qs, ks, vs = (tensor.expand(len(lengths), -1, -1, -1) for tensor in (q, k, v))
        shared = decode(qs, ks, vs, *lengths, splits=(splits,), block_n=64)
        if splits > 1:
            agree(shared, *decode(qs, ks, vs, *lengths, splits=(1,), block_n=64)["decode 1"], tolerance=1e-2)
        again = decode(qs[::5], ks[::5], vs[::5], *lengths[::5], splits=(splits,), block_n=64)
        for before, after in zip(shared[f"decode {splits}"], again[f"decode {splits}"], strict=True):
            assert torch.equal(before[::5], after)


def test_k39_log_sum_exp_is_natural_so_that_parts_merge() -> None:
    """Keys {0} and {1, 2, 3} alone: lse ln 1 and ln 3, values 0 and 2; 0.25 x 0 + 0.75 x 2 = 1.5, of all ln 4."""
    q, (k, v) = draw(1, 1, 1, 1, 16), numbered(4)
    whole = prefill(q, k, v) | decode(q, k, v, 4)
    agree(whole, rows(1.5), [[[1.3862943611]]])
    for who in whole:
        ask = prefill if who.startswith("prefill") else lambda q, k, v: decode(q, k, v, k.shape[1])
        parts = [ask(q, k[:, s], v[:, s])[who] for s in (slice(0, 1), slice(1, 4))]
        out, lse = merged(torch.cat([out[0, 0] for out, _ in parts]), torch.cat([lse[0, 0] for _, lse in parts]))
        agree({who: (out, lse)}, 1.5, 1.3862943611)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k42_splits_of_several_tokens_and_heads_write_their_rows_and_no_others(dtype: torch.dtype) -> None:
    q, k, v = (draw(i, *shape).to(dtype) for i, shape in enumerate(((1, 3, 4, 16), (1, 70, 2, 16), (1, 70, 2, 16))))
    with guard_bands() as given, detect_races() as races:
        answers = decode(q, k, v, 70, splits=(4,))
    assert len(given) == 4 and races == []  # out, log-sum-exp, and both of the splits
    agree(answers, *by_loops(*arrays(q, k, v), [70], causal=True), tolerance=2e-5 if dtype == torch.float32 else 4e-3)
    for order in ("reversed", "shuffled"):
        with grid_order(order):
            again = decode(q, k, v, 70, splits=(4,))
        assert all(map(torch.equal, again["decode 4"], answers["decode 4"]))


@pytest.mark.parametrize("B", [65_535, 65_536])
def test_k11_as_many_sequences_as_a_grid_axis_y_holds_and_one_more(B: int) -> None:
    """The grid is on axis x, its product under 2^31; its last programs write the last sequence over a sentinel."""
    q, k, v = (draw(i, 1, 1, 1, 16).half().expand(B, -1, -1, -1) for i in range(3))
    lens = torch.ones(B, dtype=torch.int32)
    for splits in (1, 2):
        with only_programs(0, 1, -2, -1) as grids:
            out = kernel.attention_decode(q, k, v, lens, config=DecodeConfig(block_n=32, splits=splits))
        assert grids == [(splits * B,), (B,)][:splits]
        assert isinstance(out, torch.Tensor) and torch.equal(out[[0, -1]], v[[0, -1]])


def test_k11_an_output_that_no_launch_wrote_fails_the_error_rule() -> None:
    q, k, v = (draw(i, 3, 1, 1, 16) for i in range(3))
    inputs = {"q": q, "k": k, "v": v, "kv_lens": torch.ones(3, dtype=torch.int32)}
    eager, truth = decode_op.OP.eager(**inputs), decode_op.OP.reference(**inputs)
    assert judge((torch.full_like(q, 12345.0),), eager, truth).problem
    partly = v.clone()
    assert not judge((partly,), eager, truth).problem
    partly[2] = 12345.0
    assert judge((partly,), eager, truth).problem
