"""Mixtures of experts: who gets rows, and the work of that, against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from bench.suites import suite_workloads
from kernels.expert_routing import expert_rows
from kernels.grouped_matmul import OP, rows_of


def test_distinct_experts_are_near_what_is_expected() -> None:
    """128 (1 - (15/16)^16): 15/16 squared four times is 0.878906, 0.772476, 0.596719, 0.356074, and 128 times 0.643926
    is 82.42. 8 experts, 2 a token, 4 tokens: 8 (1 - 0.75^4) = 5.47."""
    rows = expert_rows(16, 128, 8, skewed=False)
    assert sum(rows) == 128 and abs(sum(count > 0 for count in rows) - 82.4) <= 5
    assert abs(sum(count > 0 for count in expert_rows(4, 8, 2, skewed=False)) - 5.47) <= 1.5


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 8, 2), (16, 128, 8), (256, 256, 8), (9, 3, 3)])
def test_a_token_visits_distinct_experts(tokens: int, experts: int, top_k: int, skewed: bool) -> None:
    rows = expert_rows(tokens, experts, top_k, skewed=skewed)
    assert len(rows) == experts and sum(rows) == tokens * top_k and max(rows) <= tokens
    assert top_k <= sum(count > 0 for count in rows) <= min(experts, tokens * top_k)


def test_even_routing_is_even_and_skewed_is_zipf() -> None:
    """4,096 tokens of one expert of 8: 512 each, with a deviation of 21; skewed 4,096 / 2.71786 = 1,507 for the first,
    half of it for the next, and so on."""
    even = expert_rows(4096, 8, 1, skewed=False)
    assert all(abs(count - 512) < 4 * 21.2 for count in even)
    falling = sorted(expert_rows(4096, 8, 1, skewed=True), reverse=True)
    assert all(abs(count - 1507 / (rank + 1)) < 4 * (1507 / (rank + 1)) ** 0.5 for rank, count in enumerate(falling))
    assert sum(count > 0 for count in expert_rows(16, 128, 8, skewed=True)) < 75


def test_work_counts_the_rows_and_the_experts_that_got_one() -> None:
    """One token, 8 of 128 experts of [1536, 2048]: 8 rows, 2 x 8 x 1,536 x 2,048 FLOPs; 8 x 3,145,728 weights, 8 x
    2,048 values in and 8 x 1,536 out of 2 bytes; offsets of 4."""
    axes = {"M": 1, "N": 1536, "K": 2048, "experts": 128, "top_k": 8, "skewed": 0}
    counted = OP.work(OP.describe_axes(axes, "bfloat16", ("test",)))
    assert (counted.flops, counted.bytes) == (50_331_648, 2 * (25_165_824 + 16_384 + 12_288))
    assert counted.overhead_bytes == 512


def test_offsets_are_the_rows_of_the_workload() -> None:
    workload = OP.check_workloads[1]
    offsets = OP.make_inputs(workload, "cpu", 0)["offsets"]
    assert offsets.diff(prepend=torch.zeros(1, dtype=torch.int32)).tolist() == list(rows_of(workload))
    assert 0 in rows_of(workload)


def test_a_sample_keeps_each_rows_expert() -> None:
    axes = {"M": 300, "N": 1024, "K": 1024, "experts": 6, "top_k": 2, "skewed": 1}
    inputs = OP.make_inputs(OP.describe_axes(axes, "float16", ("test",)), "cpu", 0)
    fewer, cut = OP.sample(inputs)
    OP.validate(**fewer)
    assert len(fewer["x"]) == 128 < len(inputs["x"])
    assert torch.equal(OP.reference(**fewer), cut(OP.reference(**inputs)))


def test_the_suites_experts() -> None:
    """Qwen3-30B-A3B whole: 128 of [2 x 768, 2048] and [2048, 768]; DeepSeek-V3's 2,048 columns on eight GPUs: 256."""
    made = suite_workloads("techniques")["grouped_matmul"]
    shapes = {source.partition(", skewed")[0]: (w.axes["N"], w.axes["K"]) for w in made for source in w.source}
    assert shapes == {
        "qwen3-30b-a3b: gate_up_proj of experts, tp 1": (1536, 2048),
        "qwen3-30b-a3b: down_proj of experts, tp 1": (2048, 768),
        "mixtral-8x7b: gate_up_proj of experts, tp 1": (28672, 4096),
        "mixtral-8x7b: down_proj of experts, tp 1": (4096, 14336),
        "deepseek-v3: gate_up_proj of experts, tp 8": (512, 7168),
        "deepseek-v3: down_proj of experts, tp 8": (7168, 256),
    }
    assert {w.axes["M"] for w in made} == {1, 16, 64, 256, 4096}
    assert {w.axes["M"] for w in made if w.axes["skewed"]} == {16, 256, 4096}
    assert {(w.axes["experts"], w.axes["top_k"]) for w in made} == {(128, 8), (8, 2), (256, 8)}


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"top_k": 9}, "top_k <= experts"), ({"top_k": 0}, "top_k <= experts"), ({"skewed": 2}, "skewed 0 or 1")],
)
def test_what_no_routing_can_be_is_told(changes: dict[str, int], why: str) -> None:
    axes = {"M": 4, "N": 64, "K": 64, "experts": 8, "top_k": 2, "skewed": 0} | changes
    assert why in (OP.unsupported(OP.describe_axes(axes, "float16", ("test",)), "triton") or "")
