"""Checking a sample of a large problem: the sample is the whole one's part, and what is wrong in it is caught."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.check import check_case
from kernels import (
    attention_decode,
    attention_mixed,
    attention_mla_decode,
    attention_paged,
    attention_paged_decode,
    attention_paged_prefill,
    attention_prefill,
    attention_prefix_decode,
    attention_ragged,
    attention_varlen,
    kv_append,
    matmul,
    matmul_decode,
)
from kernels.matmul import spread
from kernels.registry import OPS, ROOF_OPS
from kernels.spec import Op, Workload, everything

LARGER_THAN_THE_SAMPLE = (
    (matmul.OP, {"M": 300, "N": 400, "K": 37}, ()),
    (matmul_decode.OP, {"M": 3, "N": 900, "K": 37}, ()),
    (
        attention_prefill.OP,
        {"batch": 2, "q_len": 90, "kv_len": 130, "q_heads": 8, "kv_heads": 4, "head_dim": 16, "causal": 1},
        (),
    ),
    (
        attention_prefill.OP,
        {"batch": 2, "q_len": 90, "kv_len": 90, "q_heads": 3, "kv_heads": 3, "head_dim": 16, "causal": 0},
        (),
    ),
    (
        attention_prefill.OP,
        {"batch": 1, "q_len": 90, "kv_len": 70, "q_heads": 3, "kv_heads": 3, "head_dim": 16, "causal": 1, "window": 9},
        (),
    ),
    (
        attention_paged_decode.OP,
        {"batch": 7, "q_len": 2, "kv_len": 60, "q_heads": 12, "kv_heads": 4, "head_dim": 16, "page_size": 7},
        (60, 2, 33, 17, 5, 60, 41),
    ),
    (
        attention_paged_prefill.OP,
        {"batch": 2, "q_len": 90, "kv_len": 130, "q_heads": 8, "kv_heads": 4, "head_dim": 16, "page_size": 16},
        (130, 90),
    ),
    (
        attention_mla_decode.OP,
        {"batch": 7, "q_len": 2, "kv_len": 60, "q_heads": 12, "page_size": 7},
        (60, 2, 33, 17, 5, 60, 41),
    ),
    (
        kv_append.OP,
        {"batch": 9, "q_len": 2, "kv_len": 12, "kv_heads": 5, "head_dim": 16},
        (12, 2, 9, 7, 5, 12, 11, 4, 12),
    ),
    (
        attention_prefix_decode.OP,
        {"batch": 7, "q_len": 1, "kv_len": 30, "prefix_len": 60, "q_heads": 12, "kv_heads": 4, "head_dim": 16},
        (30, 0, 23, 17, 5, 30, 1),
    ),
    (
        attention_varlen.OP,
        {"batch": 7, "q_len": 90, "kv_len": 90, "q_heads": 12, "kv_heads": 4, "head_dim": 16, "causal": 1},
        (90, 2, 33, 17, 5, 60, 41),
    ),
    (
        attention_mixed.OP,
        {"batch": 7, "q_len": 60, "kv_len": 90, "q_heads": 12, "kv_heads": 4, "head_dim": 16, "page_size": 7},
        (90, 60, 33, 17, 5, 60, 41),
    ),
    (
        attention_decode.OP,
        {"batch": 7, "q_len": 2, "kv_len": 60, "q_heads": 12, "kv_heads": 4, "head_dim": 16},
        (60, 2, 33, 17, 5, 60, 41),
    ),
)


def runs_here(op: Op, provider: str, workload: Workload) -> bool:
    return provider not in op.cuda_only and op.unsupported(workload, provider) is None


def tuple_of(outputs: Any) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def large_problems() -> list[Any]:
    problems = [
        (op, Workload(axes=axes, dtype="float32", phase="mixed", kv_lens=kv_lens))
        for op, axes, kv_lens in LARGER_THAN_THE_SAMPLE
    ]
    return [pytest.param(op, workload, id=f"{op.name}/{workload.key}") for op, workload in problems]


@pytest.fixture
def always_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No problem is small enough to be checked whole, and samples are small."""
    for op in OPS:
        module = inspect.getmodule(op.sample)
        monkeypatch.setattr(module, "CHECK_IN_FULL", 0, raising=False)
    monkeypatch.setattr(matmul, "SAMPLED_ROWS", 16)
    monkeypatch.setattr(matmul, "SAMPLED_COLUMNS", 24)
    monkeypatch.setattr(attention_prefill, "SAMPLED_QUERIES", 11)
    monkeypatch.setattr(attention_paged, "SAMPLED_QUERIES", 11)
    monkeypatch.setattr(attention_ragged, "CHECK_IN_FULL", 0)
    monkeypatch.setattr(attention_ragged, "SAMPLED_QUERIES", 11)


@pytest.mark.usefixtures("always_sampled")
@pytest.mark.parametrize(("op", "workload"), large_problems())
def test_sample_is_smaller_and_its_reference_is_the_whole_ones_part(op: Op, workload: Workload) -> None:
    inputs = op.make_inputs(workload, "cpu", 3)
    fewer, cut = op.sample(inputs)
    whole, part = op.reference(**inputs), tuple_of(op.reference(**fewer))
    for expected, got in zip(tuple_of(cut(whole)), part, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    assert part[0].numel() < tuple_of(whole)[0].numel() / 2
    torch.testing.assert_close(cut(tuple_of(whole)[0]), part[0], rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("always_sampled")
@pytest.mark.parametrize("op", [op for op in (*OPS, *ROOF_OPS) if op.sample is not everything])
def test_sampling_a_problem_smaller_than_the_sample_keeps_every_value_of_it(op: Op) -> None:
    for workload in op.check_workloads:
        inputs = op.make_inputs(workload, "cpu", 0)
        fewer, cut = op.sample(inputs)
        for expected, got in zip(tuple_of(cut(op.reference(**inputs))), tuple_of(op.reference(**fewer)), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def wrong_at(op: Op, place: int) -> Callable[..., torch.Tensor]:
    """The eager output in float32, one value of it off by the largest."""

    def provider(**inputs: Any) -> torch.Tensor:
        out = tuple_of(op.eager(**inputs))[0].contiguous()
        out.view(-1)[place] += out.abs().max()
        return out

    return provider


@pytest.mark.usefixtures("always_sampled")
@pytest.mark.parametrize(("op", "workload"), large_problems())
def test_sampled_check_passes_what_is_right_and_catches_one_wrong_value(op: Op, workload: Workload) -> None:
    inputs = op.make_inputs(workload, "cpu", 0)
    for provider in op.providers:
        if runs_here(op, provider, workload):
            assert check_case(op, op.providers[provider], inputs).problem == ""
    assert "max error" in check_case(op, wrong_at(op, -1), inputs).problem
    by_sequence = "q" in inputs or "kv_new" in inputs
    first_of_last_sequence = -math.prod(tuple_of(op.eager(**inputs))[0].shape[1:]) if by_sequence else 0
    assert "max error" in check_case(op, wrong_at(op, first_of_last_sequence), inputs).problem


def longer(op: Op, dim: int, by: int = 1) -> Callable[..., torch.Tensor]:
    """The eager output and more of it along a dimension: a sample of places inside never meets what is too much."""

    def provider(**inputs: Any) -> torch.Tensor:
        out = tuple_of(op.eager(**inputs))[0]
        return torch.cat([out, out.narrow(dim, 0, by)], dim)

    return provider


@pytest.mark.usefixtures("always_sampled")
@pytest.mark.parametrize(("op", "workload"), large_problems())
def test_an_output_with_too_much_of_a_dimension_is_caught_though_the_sample_is_right(
    op: Op, workload: Workload
) -> None:
    inputs = op.make_inputs(workload, "cpu", 0)
    shape = list(tuple_of(op.eager(**inputs))[0].shape)
    for dim in range(len(shape)):
        more = [size + (place == dim) for place, size in enumerate(shape)]
        assert check_case(op, longer(op, dim), inputs).problem == f"out: is {more}, wanted {shape}"


@pytest.mark.usefixtures("always_sampled")
def test_a_second_output_of_another_shape_is_named() -> None:
    op, axes, kv_lens = LARGER_THAN_THE_SAMPLE[-1]
    inputs = op.make_inputs(Workload(axes=axes, dtype="float32", phase="decode", kv_lens=kv_lens), "cpu", 0)

    def provider(**given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = op.eager(**given)
        return out, torch.cat([lse, lse[..., :1]], -1)

    assert check_case(op, provider, inputs).problem == "lse: is [7, 12, 3], wanted [7, 12, 2]"


@pytest.mark.usefixtures("always_sampled")
def test_a_sampled_op_whose_reference_needs_values_is_told_what_it_must_do() -> None:
    def needs_values(a: torch.Tensor, b: torch.Tensor, **how: object) -> torch.Tensor:
        return a.double() @ b.double() * float(a[0, 0] != math.pi)

    op = replace(matmul.OP, reference=needs_values)
    inputs = op.make_inputs(matmul.describe_axes({"M": 300, "N": 400, "K": 37}, "float32", ()), "cpu", 0)
    with pytest.raises(ValueError, match="op matmul checks a sample, so its reference must run on the meta device"):
        check_case(op, matmul.matmul_torch, inputs)


def test_tf32_of_a_large_problem_has_a_shape_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The yardstick refuses TF32 away from CUDA, and the meta device is away: the truth knows no TF32."""
    monkeypatch.setattr(matmul, "CHECK_IN_FULL", 0)
    monkeypatch.setattr(matmul, "set_tf32", lambda device, allow: None)
    inputs = matmul.make_inputs(matmul.describe_axes({"M": 300, "N": 400, "K": 37}, "tfloat32", ()), "cpu", 0)
    assert check_case(matmul.OP, matmul.matmul_torch, inputs).problem == ""
    assert check_case(matmul.OP, longer(matmul.OP, 0), inputs).problem == "out: is [301, 400], wanted [300, 400]"


def test_copy_is_checked_at_a_few_thousand_places_and_an_unwritten_output_fails() -> None:
    copy = ROOF_OPS[2]
    workload = copy.describe_axes({"N": 100_000}, "float32", ())
    inputs = copy.make_inputs(workload, "cpu", 0)
    assert 4000 < copy.sample(inputs)[0]["x"].numel() < 5000
    assert "NaN" in check_case(copy, lambda x, y: y, inputs).problem
    assert check_case(copy, copy.providers["torch"], inputs).problem == ""


@pytest.mark.parametrize(("size", "count"), [(1, 5), (7, 7), (100, 7), (2**24 + 4, 3), (2**31 + 12345, 128)])
def test_sampled_indices_are_distinct_inside_and_hold_both_ends(size: int, count: int) -> None:
    """In float32 the last of 2^24 + 4 rounds to 2^24 + 4, one past the end."""
    places = spread(size, count, torch.device("cpu")).tolist()
    assert len(set(places)) == len(places) == min(size, count)
    assert (places[0], places[-1]) == (0, size - 1)
    assert places == sorted(places)
