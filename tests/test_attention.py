"""Attention against independent truth: loops in float64, and values worked out by hand.

Everything that answers is asked: the reference, the eager yardstick, and each provider that runs on a CPU.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import attention_decode, attention_prefill
from kernels.attention import masked_attention
from kernels.spec import Inputs, Op, UnsupportedError, Workload

Array = npt.NDArray[np.float64]
Answers = dict[str, tuple[torch.Tensor, ...]]
"""Who -> (out,) or (out, lse)."""


def by_loops(
    q: Array,
    k: Array,
    v: Array,
    lens: list[int],
    *,
    causal: bool,
    window: int = 0,
    scale: float | None = None,
    softcap: float = 0,
    sinks: Array | None = None,
) -> tuple[Array, Array]:
    """Attention from its definition, one query and one key at a time; the last query stands at the last key."""
    B, Sq, Hq, D = q.shape
    out, lse = np.zeros((B, Sq, Hq, v.shape[3])), np.full((B, Hq, Sq), -math.inf)
    factor = 1 / math.sqrt(D) if scale is None else scale
    for b, h, i in np.ndindex(B, Hq, Sq):
        own, kv_head = lens[b] - Sq + i, h // (Hq // k.shape[2])
        last = min(own, lens[b] - 1) if causal else lens[b] - 1
        keys = [j for j in range(last + 1) if not window or own - j < window]
        logits = [float(q[b, i, h] @ k[b, j, kv_head]) * factor for j in keys]
        if softcap:
            logits = [softcap * math.tanh(logit / softcap) for logit in logits]
        if sinks is not None:
            logits.append(float(sinks[h]))
        if not logits:
            continue
        top = max(logits)
        parts = [math.exp(logit - top) for logit in logits]
        lse[b, h, i] = top + math.log(sum(parts))
        out[b, i, h] = sum(part * v[b, j, kv_head] for part, j in zip(parts, keys, strict=False)) / sum(parts)
    return out, lse


def ask(op: Op, inputs: Inputs, kv_lens: tuple[int, ...] = ()) -> Answers:
    """Outputs of the reference, the eager yardstick and every provider that can run this here."""
    (batch, q_len, q_heads, head_dim), (_, kv_len, kv_heads, v_head_dim) = inputs["q"].shape, inputs["v"].shape
    axes = {"batch": batch, "q_len": q_len, "kv_len": kv_len, "q_heads": q_heads, "kv_heads": kv_heads}
    axes |= {"head_dim": head_dim, "v_head_dim": v_head_dim}
    axes |= {axis: int(inputs[axis]) for axis in ("causal", "window") if inputs.get(axis)}
    axes |= {"causal": 0} if inputs.get("causal") is False else {}
    dtype = str(inputs["q"].dtype).removeprefix("torch.")
    workload = Workload(axes=axes, dtype=dtype, phase="mixed", kv_lens=kv_lens)
    able = [p for p in op.providers if p not in op.cuda_only and op.unsupported(workload, p) is None]
    everyone: dict[str, Callable[..., Any]] = {"reference": op.reference, "eager": op.eager}
    everyone |= {provider: op.providers[provider] for provider in able}
    answers: Answers = {}
    for who, answer in everyone.items():
        with contextlib.suppress(UnsupportedError):  # raised by a library that refuses these head sizes
            out = answer(**inputs)
            answers[who] = out if isinstance(out, tuple) else (out,)
    return answers


def prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = True, window: int = 0) -> Answers:
    return ask(attention_prefill.OP, {"q": q, "k": k, "v": v, "causal": causal, "window": window})


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *lens: int) -> Answers:
    ragged = any(length != k.shape[1] for length in lens)
    kv_lens = torch.tensor(lens, dtype=torch.int32)
    return ask(attention_decode.OP, {"q": q, "k": k, "v": v, "kv_lens": kv_lens, "ragged": ragged}, lens)


def numbered(kv_len: int, *, batch: int = 1, heads: int = 1, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """K of zeros, so that every key weighs the same, and V[t] = t."""
    v = torch.arange(float(kv_len)).view(1, kv_len, 1, 1).expand(batch, kv_len, heads, width)
    return torch.zeros(batch, kv_len, heads, width), v.contiguous()


def agree(answers: Answers, out: Any, lse: Any = None, *, tolerance: float = 2e-5) -> None:
    """Each answer is `out` (broadcast to its shape), and `lse` where it tells one."""
    for who, got in answers.items():
        for value, wanted in zip(got, (out, lse), strict=False):
            if wanted is not None:
                expected = np.broadcast_to(np.asarray(wanted, dtype=np.float64), value.shape)
                np.testing.assert_allclose(
                    value.double().numpy(), expected, rtol=tolerance, atol=tolerance, equal_nan=False, err_msg=who
                )


def rows(*values: float) -> torch.Tensor:
    """[1, Sq, 1, 1] of these values, one a query."""
    return torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def arrays(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[Array, Array, Array]:
    return q.double().numpy(), k.double().numpy(), v.double().numpy()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_prefill_is_the_definition(data: st.DataObject) -> None:
    sizes = {name: data.draw(st.integers(1, high), name) for name, high in {"B": 2, "Hkv": 3, "G": 4}.items()}
    B, Hkv, G = sizes.values()
    Sq, Skv = data.draw(st.integers(1, 9), "Sq"), data.draw(st.integers(1, 9), "Skv")
    D, Dv = data.draw(st.sampled_from((1, 8, 24))), data.draw(st.sampled_from((8, 24)))
    causal = data.draw(st.booleans(), "causal")
    window = data.draw(st.integers(0, 10), "window") if causal else 0
    seed = data.draw(st.integers(0, 99), "seed")
    q, k, v = draw(seed, B, Sq, Hkv * G, D), draw(seed + 1, B, Skv, Hkv, D), draw(seed + 2, B, Skv, Hkv, Dv)
    agree(
        prefill(q, k, v, causal=causal, window=window),
        *by_loops(*arrays(q, k, v), [Skv] * B, causal=causal, window=window),
    )


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_decode_is_the_definition_over_each_sequences_own_length(data: st.DataObject) -> None:
    lens = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=3), "lens")
    allocated = max(1, max(lens)) + data.draw(st.integers(0, 3), "slack")
    Hkv, G, Sq = (data.draw(st.integers(1, 3), name) for name in ("Hkv", "G", "Sq"))
    seed = data.draw(st.integers(0, 99), "seed")
    shape = (len(lens), allocated, Hkv, 16)
    q, k, v = draw(seed, len(lens), Sq, Hkv * G, 16), draw(seed + 1, *shape), draw(seed + 2, *shape)
    agree(decode(q, k, v, *lens), *by_loops(*arrays(q, k, v), lens, causal=True))


@pytest.mark.parametrize("D", [72, 80, 96, 112, 160, 192])
def test_k12_heads_of_any_width_are_scaled_by_their_own_width(D: int) -> None:
    q, k, v = draw(1, 1, 33, 4, D), draw(2, 1, 33, 2, D), draw(3, 1, 33, 2, D)
    agree(prefill(q, k, v), *by_loops(*arrays(q, k, v), [33], causal=True))
    agree(decode(q[:, :1], k, v, 33), *by_loops(*arrays(q[:, :1], k, v), [33], causal=True))
    assert len(prefill(q, k, v)) >= 3


@pytest.mark.parametrize(("Hq", "Hkv"), [(28, 4), (25, 5), (24, 4), (64, 4), (21, 7)])
def test_k15_query_head_reads_the_kv_head_of_its_group(Hq: int, Hkv: int) -> None:
    """K = 0 and four keys: weights of 1/4 each, exact, so the output is the head's number exactly."""
    k, _ = numbered(4, heads=Hkv)
    v = torch.arange(float(Hkv)).view(1, 1, Hkv, 1).expand(1, 4, Hkv, 16).contiguous()
    expected = torch.tensor([h // (Hq // Hkv) for h in range(Hq)]).view(1, 1, Hq, 1)
    for answers in (prefill(draw(1, 1, 3, Hq, 16), k, v, causal=False), decode(draw(1, 1, 1, Hq, 16), k, v, 4)):
        agree(answers, expected, tolerance=0)


def test_k23_a_sequence_without_keys_gives_zero_and_leaves_the_others_right() -> None:
    k, v = numbered(5, batch=3)
    k[0], v[0], k[2], v[2] = (torch.full((5, 1, 16), math.nan),) * 4
    expected = torch.tensor([0.0, 2.0, 0.0]).view(3, 1, 1, 1)
    lse = torch.tensor([-math.inf, math.log(5), -math.inf]).view(3, 1, 1)
    agree(decode(draw(1, 3, 1, 1, 16), k, v, 0, 5, 0), expected, lse)


def test_k20_what_lies_past_a_sequences_keys_never_reaches_the_truth() -> None:
    q, k, v = draw(1, 2, 1, 2, 16), draw(2, 2, 16, 1, 16), draw(3, 2, 16, 1, 16)
    k[0, 5:], v[0, 5:] = math.nan, math.inf
    expected = by_loops(*arrays(q, k, v), [5, 16], causal=True)
    answers = decode(q, k, v, 5, 16)
    agree({who: answers[who] for who in ("reference", "eager")}, *expected)


def test_k24_causal_mask_is_aligned_bottom_right() -> None:
    q = draw(1, 1, 5, 1, 16)
    agree(prefill(q[:, :2], *numbered(5)), rows(1.5, 2.0), [[[math.log(4), math.log(5)]]])
    agree(prefill(q, *numbered(2)), rows(0, 0, 0, 0, 0.5), [[[-math.inf] * 3 + [0, math.log(2)]]])
    agree(decode(q[:, :2], *numbered(5), 5), rows(1.5, 2.0))


def test_k25_one_new_token_sees_every_key() -> None:
    q = draw(1, 1, 1, 1, 16)
    for answers in (prefill(q, *numbered(8)), decode(q, *numbered(8), 8)):
        assert "torch" in answers
        agree(answers, rows(3.5))


def test_k27_a_window_counts_the_querys_own_key() -> None:
    """8 queries, window 4: 1 + 2 + 3 + 5 x 4 = 26 pairs; window 1 is V itself; window 8 or more is plain causal."""
    q, (k, v) = draw(1, 1, 8, 1, 16), numbered(8)
    seen = (0, 0.5, 1, 1.5, 2.5, 3.5, 4.5, 5.5)
    agree(prefill(q, k, v, window=4), rows(*seen))
    workload = Workload(
        axes={
            "batch": 1,
            "q_len": 8,
            "kv_len": 8,
            "q_heads": 1,
            "kv_heads": 1,
            "head_dim": 16,
            "causal": 1,
            "window": 4,
        },
        dtype="float32",
        phase="prefill",
    )
    assert attention_prefill.OP.work(workload).flops == 2 * 26 * 32
    agree(prefill(q, k, v, window=1), rows(*range(8)))
    for window in (8, 9, 1000):
        agree(prefill(q, k, v, window=window), rows(*(i / 2 for i in range(8))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_k29_logits_of_minus_80000_are_numbers_like_others(dtype: torch.dtype) -> None:
    """-100 x 100 x 64 / 8 = -80,000 overflows float16, but no kernel keeps scores in it."""
    q, k = torch.full((1, 1, 1, 64), 100.0, dtype=dtype), torch.full((1, 4, 1, 64), -100.0, dtype=dtype)
    v = numbered(4, width=64)[1].to(dtype)
    for answers in (prefill(q, k, v, causal=False), decode(q, k, v, 4)):
        agree(answers, rows(1.5), [[[-80000 + math.log(4)]]], tolerance=1e-7)


def test_k30_a_fully_masked_row_gives_zero_and_leaves_the_others_right() -> None:
    q, k, v = draw(1, 1, 4, 2, 16), draw(2, 1, 4, 1, 16), draw(3, 1, 4, 1, 16)
    seen = torch.ones(1, 4, 4, dtype=torch.bool)
    seen[0, 2] = False
    whole, whole_lse = by_loops(*arrays(q, k, v), [4], causal=False)
    whole[:, 2], whole_lse[:, :, 2] = 0, -math.inf
    agree({"float32": masked_attention(q, k, v, seen)}, whole, whole_lse)
    agree({"float64": masked_attention(q.double(), k.double(), v.double(), seen)}, whole, whole_lse)


@pytest.mark.parametrize("S", [1, 127, 128, 129, 4095])
def test_k35_lengths_off_the_tile_are_as_right_as_those_on_it(S: int) -> None:
    k, v = numbered(S)
    agree(prefill(draw(1, 1, S, 1, 16), k, v), rows(*(i / 2 for i in range(S))), tolerance=1e-4)


def test_k36_one_key_gives_its_value_and_none_gives_zero() -> None:
    q, k, v = draw(1, 1, 1, 1, 16), draw(2, 1, 1, 1, 16), draw(3, 1, 1, 1, 16)
    logit = float((q * k).sum()) / 4
    agree(decode(q, k, v, 1), v, [[[logit]]])
    agree(decode(q, k, v, 0), rows(0), [[[-math.inf]]])


def test_k39_log_sum_exp_is_natural_so_that_parts_merge() -> None:
    """Keys {0} and {1, 2, 3} alone: lse ln 1 and ln 3, values 0 and 2; 0.25 x 0 + 0.75 x 2 = 1.5."""
    q, (k, v) = draw(1, 1, 1, 1, 16), numbered(4)
    agree(prefill(q, k, v, causal=False), rows(1.5), [[[1.3862943611]]])
    for who in ("reference", "eager"):
        parts = [prefill(q, k[:, s], v[:, s], causal=False)[who] for s in (slice(0, 1), slice(1, 4))]
        weights = [math.exp(float(lse)) for _, lse in parts]
        merged = sum(w * float(out[0, 0, 0, 0]) for w, (out, _) in zip(weights, parts, strict=True)) / sum(weights)
        assert merged == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("layout", ["heads first", "only v strided", "one fused buffer"])
def test_k40_strided_inputs_give_what_contiguous_ones_give(layout: str) -> None:
    B, H, S, D = 2, 3, 33, 16
    if layout == "one fused buffer":
        q, k, v = draw(1, B, S, 3 * H, D).split(H, dim=2)  # type: ignore[no-untyped-call]
    else:
        q, k, v = (draw(seed, B, H, S, D).transpose(1, 2) for seed in (1, 2, 3))
    if layout == "only v strided":
        q, k = q.contiguous(), k.contiguous()
    assert not v.is_contiguous()
    agree(prefill(q, k, v), *by_loops(*arrays(q, k, v), [S] * B, causal=True))
    agree(decode(q[:, :2], k, v, S, 7), *by_loops(*arrays(q[:, :2], k, v), [S, 7], causal=True))
    agree(decode(q[:, :1], k, v, S, S), *by_loops(*arrays(q[:, :1], k, v), [S] * B, causal=True))


def test_a_scale_of_zero_is_taken_as_given() -> None:
    q, (k, v) = draw(1, 1, 1, 1, 16), numbered(4)
    seen = torch.ones(1, 1, 4, dtype=torch.bool)
    agree({"eager": masked_attention(q, k + 1, v, seen, scale=0.0)}, rows(1.5), [[[math.log(4)]]])


def test_a_batch_of_no_sequences_is_no_error() -> None:
    q, k, v = draw(1, 0, 1, 2, 16), draw(2, 0, 4, 1, 16), draw(3, 0, 4, 1, 16)
    attention_decode.validate(q, k, v, torch.zeros(0, dtype=torch.int32), ragged=False)
    assert attention_decode.OP.reference(q, k, v, torch.zeros(0, dtype=torch.int32))[0].shape == (0, 1, 2, 16)


@pytest.mark.parametrize("lens", [(5, -1), (5, 9)])
def test_lengths_outside_the_allocation_are_refused(lens: tuple[int, ...]) -> None:
    k = torch.zeros(2, 8, 1, 16)
    with pytest.raises(ValueError, match=r"kv_lens must lie in 0\.\.8 .*, got"):
        attention_decode.OP.validate(torch.zeros(2, 1, 1, 16), k, k, torch.tensor(lens), ragged=True)


@pytest.mark.parametrize("op", [attention_prefill.OP, attention_decode.OP], ids=lambda op: op.name)
def test_e14_a_head_that_no_block_holds_is_unsupported_with_its_width(op: Op) -> None:
    """E14: two stages of K and V tiles of 64 x 512 bfloat16 are 262,144 bytes, over the 232,448 of sm_90."""
    sizes = {axis: size for axis, size in op.axes.items() if size is not None} | {"q_len": 1, "kv_len": 64}
    for width, told in ((512, True), (257, True), (256, False)):
        workload = op.describe_axes(sizes | {"head_dim": width}, "bfloat16", ())
        reason = op.unsupported(workload, "triton")
        assert (f"heads are {width} wide" in reason) if told and reason else reason is None and not told
