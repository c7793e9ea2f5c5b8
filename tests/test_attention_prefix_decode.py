"""attention_prefix_decode against loops in float64 over each sequence's whole keys, and what torch is asked for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention import Answers, Array, agree, arrays, by_loops, draw, numbered
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from bench.check import check_case
from kernels import attention_lse
from kernels.attention_lse import merged, sdpa_lse
from kernels.attention_prefix_decode import OP
from kernels.spec import Inputs, Workload


def given_as(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, P: int, *lens: int) -> Inputs:
    """Inputs of sequences whose whole keys are [B, P + S, Hkv, D], of which the first's P stand for everyone's."""
    kv_lens = torch.tensor(lens, dtype=torch.int32)
    ragged = any(length != k.shape[1] - P for length in lens)
    shared = {"prefix_k": k[0, :P], "prefix_v": v[0, :P]}
    return {"q": q, **shared, "k": k[:, P:], "v": v[:, P:], "kv_lens": kv_lens, "ragged": ragged}


def truth(inputs: Inputs) -> tuple[Array, Array]:
    """By loops, over the prefix and what follows it laid end to end."""
    B, P = len(inputs["q"]), len(inputs["prefix_k"])
    whole = (torch.cat([inputs[f"prefix_{name}"].expand(B, -1, -1, -1), inputs[name]], dim=1) for name in ("k", "v"))
    return by_loops(*arrays(inputs["q"], *whole), [P + n for n in inputs["kv_lens"].tolist()], causal=True)


def answers(inputs: Inputs) -> Answers:
    everyone = {"reference": OP.reference, "eager": OP.eager, "torch": OP.providers["torch"]}
    outs = {who: answer(**inputs) for who, answer in everyone.items()}
    return {who: out if isinstance(out, tuple) else (out,) for who, out in outs.items()}


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_it_is_attention_over_both_parts_together(data: st.DataObject) -> None:
    lens = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4), "lens")
    P, slack = data.draw(st.integers(0, 12), "P"), data.draw(st.integers(0, 2), "slack")
    Hkv, G = (data.draw(st.integers(1, 3), name) for name in ("Hkv", "G"))
    shape, seed = (len(lens), P + max(lens) + slack, Hkv, 16), data.draw(st.integers(0, 99), "seed")
    q, k, v = draw(seed, len(lens), 1, Hkv * G, 16), draw(seed + 1, *shape), draw(seed + 2, *shape)
    inputs = given_as(q, k, v, P, *lens)
    agree(answers(inputs), *truth(inputs))


def test_values_by_hand() -> None:
    """Keys that weigh the same and values 0, 1, .., 5 of which 4 are shared: means of 0..3, 0..4 and 0..5."""
    k, v = numbered(6, batch=3)
    got = answers(given_as(draw(1, 3, 1, 1, 16), k, v, 4, 0, 1, 2))
    expected = torch.tensor([1.5, 2.0, 2.5]).view(3, 1, 1, 1)
    agree(got, expected, torch.tensor([math.log(n) for n in (4, 5, 6)]).view(3, 1, 1))


def test_k23_without_any_key_it_is_zero_and_minus_infinity() -> None:
    k, v = numbered(3, batch=3)
    k[1], v[1] = math.nan, math.nan
    got = answers(given_as(draw(1, 3, 1, 1, 16), k, v, 0, 3, 0, 1))
    kept = {who: got[who] for who in ("reference", "eager")}
    agree(kept, torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1, 1), torch.tensor([math.log(3), -math.inf, 0]).view(3, 1, 1))
    k[1], v[1] = 0, 0  # SDPA adds its mask to the scores, and NaN stays what it is
    torchs = answers(given_as(draw(1, 3, 1, 1, 16), k, v, 0, 3, 0, 1))["torch"]
    agree({"torch": torchs}, torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1, 1))


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_k29_logits_of_80000_either_way_merge(sign: int, dtype: torch.dtype) -> None:
    """Four keys of logit +-80,000, 3 of them shared; then one far above the others takes all the weight.

    A log-sum-exp of 80,000 in float32 comes in steps of 2^-7, so what is merged by it weighs right to 2^-8.
    """
    q, (k, v) = torch.full((1, 1, 1, 64), 100.0).to(dtype), numbered(4, width=64)
    k, v = (k + sign * 100).to(dtype), v.to(dtype)
    got = answers(given_as(q, k, v, 3, 1))
    agree({who: got.pop(who) for who in ("reference", "eager")}, 1.5, sign * 80000 + math.log(4), tolerance=1e-6)
    agree(got, 1.5, tolerance=2**-8)
    for place in (1, 3):
        far = -torch.ones_like(k) * 100
        far[:, place] = 100
        agree(answers(given_as(q, far, v, 3, 1)), place, 80000.0, tolerance=1e-6)


def test_k36_two_empty_parts_merge_to_nothing_and_one_leaves_the_other_as_it_is() -> None:
    nothing, some = (torch.zeros(2, 4), torch.full((2,), -math.inf)), (draw(1, 2, 4), draw(2, 2))
    assert torch.equal(merged(*nothing, *nothing), torch.zeros(2, 4))
    assert torch.equal(merged(*nothing, *some), some[0]) and torch.equal(merged(*some, *nothing), some[0])


def test_k39_torchs_log_sum_exp_is_natural() -> None:
    """Keys {0} and {1, 2, 3} that weigh the same: 0.25 x 0 + 0.75 x 2 = 1.5; base 2 would give 1.6598."""
    q, (k, v) = draw(1, 1, 1, 1, 16), numbered(4)
    parts = [sdpa_lse(q, *(t[:, s].transpose(1, 2) for t in (k, v))) for s in (slice(0, 1), slice(1, 4))]
    assert [lse.item() for _, lse in parts] == pytest.approx([0.0, math.log(3)], abs=1e-6)
    agree({"merged": (merged(*parts[0], *parts[1]),)}, 1.5)


def test_the_prefix_is_never_expanded_in_memory() -> None:
    """The prefix's K is 1 MiB; a copy for each of 32 sequences, or of 8 heads, would be 32 or 8 MiB."""
    axes = {"batch": 32, "q_len": 1, "kv_len": 4, "prefix_len": 4096, "q_heads": 8, "kv_heads": 1, "head_dim": 64}
    inputs = OP.make_inputs(Workload(axes=axes, dtype="float32", phase="decode"), "cpu", 0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as allocations:
        OP.providers["torch"](**inputs)
    made = sum(max(0, event.self_cpu_memory_usage) for event in allocations.events() or [])
    assert 32 * 8 * 64 * 4 <= made < 6 * 2**20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("ragged", [False, True])
def test_cuda_operators_accept_the_call(dtype: torch.dtype, ragged: bool) -> None:
    """torch checks signature, shapes and dtypes on fake CUDA tensors; nothing is computed."""
    with FakeTensorMode():
        like: dict[str, Any] = {"device": "cuda", "dtype": dtype}
        q, k, v = (torch.empty(3, size, heads, 64, **like) for size, heads in ((1, 4), (5, 2), (5, 2)))
        prefix = torch.empty(7, 2, 64, **like)
        lens = torch.empty(3, dtype=torch.int32, device="cuda")
        out = OP.providers["torch"](q, prefix, prefix, k, v, lens, ragged=ragged)
    assert (out.shape, out.dtype, out.device.type) == ((3, 1, 4, 64), dtype, "cuda")


def test_rows_of_a_mask_are_padded_in_memory_as_the_efficient_kernel_wants() -> None:
    seen = torch.tensor([[[[True, False, True]]]])
    bias = attention_lse._bias(seen, torch.float16)
    assert bias.stride()[:3] == (16, 16, 16) and bias.tolist() == [[[[0, -math.inf, 0]]]]


def test_lengths_outside_what_follows_the_prefix_are_refused() -> None:
    inputs = given_as(draw(1, 2, 1, 1, 16), draw(2, 2, 9, 1, 16), draw(3, 2, 9, 1, 16), 4, 5, 6)
    with pytest.raises(ValueError, match=r"kv_lens must lie in 0\.\.5 \(keys allocated after the prefix\), got 5\.\.6"):
        check_case(OP, OP.providers["torch"], inputs)


def test_described_sizes_are_a_decode_step_behind_one_prompt() -> None:
    sizes = {"batch": 16, "q_len": 1, "kv_len": 512, "prefix_len": 8192, "q_heads": 8, "kv_heads": 0, "head_dim": 64}
    described = OP.describe_axes(sizes, "bfloat16", ("a test",))
    assert (described.technique, described.phase, described.axes["kv_heads"]) == ("prefix", "decode", 8)


def test_work_by_hand() -> None:
    """2 sequences of 4 heads on 2, width 8, float32: 5 shared keys and 3 + 0 own; Q and O 64 values each."""
    axes = {"batch": 2, "q_len": 1, "kv_len": 9, "prefix_len": 5, "q_heads": 4, "kv_heads": 2, "head_dim": 8}
    work = OP.work(Workload(axes=axes, dtype="float32", phase="decode", kv_lens=(3, 0)))
    assert work.flops == 2 * 4 * (2 * 5 + 3) * 16
    assert (work.bytes, work.overhead_bytes) == (4 * (2 * 64 + (5 + 3) * 2 * 16), 8)
    assert np.isclose(work.flops / work.bytes, 1664 / 1536)
