"""Decode attention over quantised caches by the interpreter: values by hand, widening, scales, lengths, strides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from attention_paths import DTYPES, decode, follow_the_rule
from guarded import guard_bands
from test_attention import agree, arrays, by_loops, draw, rows
from triton.runtime import interpreter

from kernels import attention_decode as decode_op
from kernels.quantisation import quantised, scales_of
from kernels.quantised_cache import as_values

STORAGE = (torch.float8_e4m3fn, torch.int8)
BOTH = pytest.mark.parametrize("stored", STORAGE)
QUERIES = pytest.mark.parametrize("dtype", DTYPES)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3}
NOT_A_NUMBER = 0x7F
"""Of e4m3; as int8 the largest."""


def rows_of(*values: float, dtype: torch.dtype, heads: int = 1, width: int = 16) -> torch.Tensor:
    """[1, S, heads, width] stored: each key's row of one value."""
    return torch.tensor(values).view(1, -1, 1, 1).expand(1, -1, heads, width).contiguous().to(dtype)


def scale(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def cache(seed: int, *shape: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Drawn values of heads that differ in size, stored, and the scale of each head."""
    values = draw(seed, *shape) * (2.0 ** torch.arange(shape[2])).view(-1, 1)
    scales = scales_of(values, dtype, [0, 1, 3])
    return quantised(values, scales, dtype), scales.flatten()


@BOTH
@QUERIES
def test_queries_of_zeros_give_the_mean_of_the_dequantised_values(dtype: torch.dtype, stored: torch.dtype) -> None:
    """(1 + 2 + 3 + 6) / 4 = 3, halved by the scale; every logit is 0."""
    k, v = draw(1, 1, 4, 1, 16).to(stored), rows_of(1, 2, 3, 6, dtype=stored)
    q = torch.zeros(1, 1, 2, 16, dtype=dtype)
    agree(decode(q, k, v, 4, k_scale=scale(7.0), v_scale=scale(0.5)), rows(1.5), [[[math.log(4)]]], tolerance=1e-6)


@BOTH
@QUERIES
@pytest.mark.parametrize("power", [-24, 0, 15])
def test_keys_and_values_worked_by_hand(power: int, dtype: torch.dtype, stored: torch.dtype) -> None:
    """Logits 16 x 2^p x s x 2^-(p+2) / 4 = s of 0, 1, 2; values 16, 32, 64 eighths: (2 + 4e + 8e^2) / (1 + e + e^2).

    2^-24 is float16's least number, 2^15 its largest power of two.
    """
    q = torch.full((1, 1, 1, 16), 2.0**power, dtype=dtype)
    k, v = rows_of(0, 1, 2, dtype=stored), rows_of(16, 32, 64, dtype=stored)
    answers = decode(q, k, v, 3, k_scale=scale(2.0 ** -(power + 2)), v_scale=scale(0.125))
    agree(answers, rows(6.480903), [[[2.407606]]], tolerance=1e-6 if dtype == torch.float32 else 1e-3)


@BOTH
@QUERIES
def test_heads_of_far_sizes_share_a_tile_and_keep_their_logits(dtype: torch.dtype, stored: torch.dtype) -> None:
    """Queries of 2^14 and 1.5 x 2^-14 in one tile, K's scale 2^12: logits of 2^28 s and 1.5 s, s of 0, 1, 2.

    The first gives the last value, 8, and lse 2^29; the second (2 + 4 e^1.5 + 8 e^3) / (1 + e^1.5 + e^3).
    """
    q = torch.tensor([2.0**14, 1.5 * 2.0**-14]).view(1, 1, 2, 1).expand(1, 1, 2, 16).to(dtype)
    k, v = rows_of(0, 1, 2, dtype=stored), rows_of(16, 32, 64, dtype=stored)
    answers = decode(q, k, v, 3, k_scale=scale(2.0**12), v_scale=scale(0.125))
    out, lse = torch.tensor([8.0, 7.064163]).view(1, 1, 2, 1), torch.tensor([2.0**29, 3.241311]).view(1, 2, 1)
    agree(answers, out, lse, tolerance=1e-6 if dtype == torch.float32 else 1e-3)


@BOTH
@QUERIES
def test_every_stored_number_is_widened_exactly(dtype: torch.dtype, stored: torch.dtype) -> None:
    """One key weighs 1, so that the output is its row: each byte that is a number, doubled by the scale."""
    v = torch.arange(256, dtype=torch.uint8).view(stored).view(1, 1, 1, 256)
    v = torch.where(v.float().isnan(), torch.zeros_like(v.float()), v.float()).to(stored)
    assert len({*v.float().flatten().tolist()}) == (253 if stored == torch.float8_e4m3fn else 256)
    answers = decode(draw(1, 1, 1, 1, 16).to(dtype), v[..., :16], v, 1, k_scale=scale(0.01), v_scale=scale(2.0))
    agree(answers, 2 * v.double(), tolerance=0)


@BOTH
@pytest.mark.parametrize("group", [5, 7])
def test_k15_each_head_has_the_scales_of_its_kv_head(group: int, stored: torch.dtype) -> None:
    """Four equal keys of 4 a head: logits 16 x 4 x (h + 1) / 4 = 16 (h + 1); values 64 x (h + 1) / 64."""
    heads = torch.arange(3 * group).div(group, rounding_mode="floor")
    q = torch.ones(1, 1, 3 * group, 16, dtype=torch.float16)
    k, v = (rows_of(*[value] * 4, dtype=stored, heads=3) for value in (4, 64))
    each = torch.arange(3.0) + 1
    for k_scale in (each, torch.stack((each, each * 9), 1)[:, 0]):  # a column of a table, too
        answers = decode(q, k, v, 4, k_scale=k_scale, v_scale=each / 64)
        agree(answers, (heads + 1).view(1, 1, -1, 1), (16 * (heads + 1) + math.log(4)).view(1, -1, 1), tolerance=1e-6)
    one = decode(q, k, v, 4, k_scale=scale(2.0), v_scale=each / 64)
    agree(one, (heads + 1).view(1, 1, -1, 1), [[[32 + math.log(4)]]], tolerance=1e-6)
    one = decode(q, k, v, 4, k_scale=each, v_scale=scale(1 / 32))
    agree(one, rows(2), (16 * (heads + 1) + math.log(4)).view(1, -1, 1), tolerance=1e-6)


@BOTH
@QUERIES
def test_k23_a_sequence_without_keys_gives_zero_and_leaves_the_others_alone(
    dtype: torch.dtype, stored: torch.dtype
) -> None:
    """Of 0 .. 4 the mean is 2, and 3 with the scale; the other caches hold what is no number in e4m3."""
    k, v = torch.zeros(3, 5, 1, 16).to(stored), rows_of(0, 1, 2, 3, 4, dtype=stored).repeat(3, 1, 1, 1)
    for batch in (0, 2):
        k[batch].view(torch.uint8).fill_(NOT_A_NUMBER)
        v[batch].view(torch.uint8).fill_(NOT_A_NUMBER)
    with guard_bands():
        answers = decode(draw(1, 3, 1, 1, 16).to(dtype), k, v, 0, 5, 0, k_scale=scale(1.0), v_scale=scale(1.5))
    lse = torch.tensor([-math.inf, math.log(5), -math.inf]).view(3, 1, 1)
    agree(answers, torch.tensor([0.0, 3.0, 0.0]).view(3, 1, 1, 1), lse, tolerance=1e-6)


@contextmanager
def bytes_read() -> Iterator[set[int]]:
    """Collects the addresses that loads of interpreted launches inside start at."""
    read: set[int] = set()
    builder = interpreter.InterpreterBuilder
    original = builder.create_masked_load

    def load(self: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        read.update(pointers.data[mask.data.astype(bool)].tolist())
        return original(self, pointers, mask, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_masked_load", load)
        yield read


@BOTH
@QUERIES
def test_k20_bytes_past_a_sequences_keys_are_never_read(dtype: torch.dtype, stored: torch.dtype) -> None:
    """By their addresses too: the interpreter takes e4m3's NaN for 480, which a weight of 0 hides."""
    k, k_scale = cache(2, 2, 80, 1, 16, dtype=stored)
    v, v_scale = cache(3, 2, 80, 1, 16, dtype=stored)
    q, lens = draw(1, 2, 2, 2, 16).to(dtype), (5, 65)
    truth = by_loops(*arrays(q, k.float() * k_scale, v.float() * v_scale), [*lens], causal=True)
    for batch, length in enumerate(lens):
        k[batch, length:].view(torch.uint8).fill_(NOT_A_NUMBER)
        v[batch, length:].view(torch.uint8).fill_(NOT_A_NUMBER)
    with bytes_read() as read:
        answers = decode(q, k, v, *lens, k_scale=k_scale, v_scale=v_scale)
    agree(answers, *truth, tolerance=TOLERANCE[dtype])
    for tensor in (k, v):
        used = {tensor[batch].data_ptr() + i for batch, length in enumerate(lens) for i in range(16 * length)}
        assert read & {*range(tensor.data_ptr(), tensor.data_ptr() + tensor.numel())} == used


@pytest.mark.parametrize(("dtype", "stored"), [*zip(DTYPES, STORAGE, strict=True)])
def test_splits_give_what_one_gives_and_follow_the_error_rule(dtype: torch.dtype, stored: torch.dtype) -> None:
    """Scales a head apart in powers of two; 8 splits of 5 tiles leave some empty."""
    k, k_scale = cache(2, 2, 140, 2, 24, dtype=stored)
    v, v_scale = cache(3, 2, 140, 2, 40, dtype=stored)
    q = draw(1, 2, 3, 6, 24).to(dtype)
    answers = decode(q, k, v, 140, 33, splits=(1, 2, 8), k_scale=k_scale, v_scale=v_scale)
    agree(answers, *answers["decode 1"], tolerance=TOLERANCE[dtype])
    lens, scales = torch.tensor([140, 33], dtype=torch.int32), {"k_scale": k_scale, "v_scale": v_scale}
    follow_the_rule(decode_op.OP, answers, {"q": q, "k": k, "v": v, "kv_lens": lens} | scales)
    wide = arrays(q, as_values(k, k_scale, torch.float64), as_values(v, v_scale, torch.float64))
    agree(answers, *by_loops(*wide, [140, 33], causal=True), tolerance=2 * TOLERANCE[dtype])


@BOTH
@pytest.mark.parametrize("layout", ["heads first", "one fused buffer", "width slow"])
def test_k40_strided_caches_give_the_bits_that_contiguous_ones_give(layout: str, stored: torch.dtype) -> None:
    B, H, S, D = 2, 2, 33, 16
    if layout == "one fused buffer":
        fused = (draw(2, B, S, 2 * H, D) * 20).to(stored)
        k, v = fused[:, :, :H], fused[:, :, H:]
    elif layout == "width slow":
        k, v = ((draw(seed, B, H, D, S) * 20).to(stored).permute(0, 3, 1, 2) for seed in (2, 3))
    else:
        k, v = ((draw(seed, B, H, S, D) * 20).to(stored).transpose(1, 2) for seed in (2, 3))
    q = draw(1, B, 1, 4, D).half()
    scales: dict[str, Any] = {"k_scale": scale(0.02, 0.05), "v_scale": scale(0.1, 0.3)}
    assert not k.is_contiguous()
    answers = decode(q, k, v, S, 7, **scales)
    plain = decode(q, k.contiguous(), v.contiguous(), S, 7, **scales)
    for who, got in answers.items():
        assert all(map(torch.equal, got, plain[who])), who
    lens = torch.tensor([S, 7], dtype=torch.int32)
    follow_the_rule(decode_op.OP, answers, {"q": q, "k": k, "v": v, "kv_lens": lens} | scales)


@BOTH
@pytest.mark.parametrize(("k_scale", "v_scale"), [(2.0**-126, 2.0**-126), (1e30, 1e30), (2.0**-126, 1e30)])
def test_the_largest_stored_values_with_extreme_scales(k_scale: float, v_scale: float, stored: torch.dtype) -> None:
    """Forty equal keys, all of the largest: logits 16 x 3 x largest x scale / 4, the value itself as output."""
    largest = 448 if stored == torch.float8_e4m3fn else 127
    k = v = rows_of(*[largest] * 40, dtype=stored)
    q = torch.full((1, 1, 1, 16), 3.0)
    for answers in (
        decode(q, k, v, 40, k_scale=scale(k_scale), v_scale=scale(v_scale)),
        decode(q.half(), k, v, 40, k_scale=scale(k_scale), v_scale=scale(1.0)),
    ):
        value = largest * v_scale if answers["decode 1"][0].dtype == torch.float32 else largest
        for out, lse in answers.values():
            assert out.double().numpy() == pytest.approx(value, rel=1e-5)
            assert lse.double().numpy() == pytest.approx(12 * largest * k_scale + math.log(40), rel=1e-5)
