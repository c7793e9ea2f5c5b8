"""Every way that the Triton attention kernels can be launched, asked at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from test_attention import Answers

from bench.check import judge, poisoned
from kernels import attention_decode as decode_op
from kernels import attention_decode_triton as decode_kernel
from kernels import attention_prefill as prefill_op
from kernels import attention_prefill_triton as prefill_kernel
from kernels.attention_decode_configs import Config as DecodeConfig
from kernels.spec import Inputs, Op

FEW = 4096
DTYPES = (torch.float16, torch.float32)
TILES = (
    prefill_kernel.Config(block_m=64, block_n=64, lazy=True),
    prefill_kernel.Config(block_m=128, block_n=32, descriptors="host"),
    prefill_kernel.Config(block_m=64, block_n=64, warp_specialize=True),
    prefill_kernel.Config(block_m=64, block_n=32, descriptors=""),
)
USUAL = (None, TILES[-1])
"""What a launch chooses by itself, and pointers."""
Tiles = Sequence[prefill_kernel.Config | None]


def prefill(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = True, tiles: Tiles = USUAL, **variant: Any
) -> Answers:
    """(out, lse) by these configurations, without those whose descriptors cannot be made of these tensors."""
    operands = (("q", q), ("k", k), ("v", v))
    refused = prefill_kernel.path_for(operands, 90) or (v.shape[3] * v.element_size()) % 16 or not k.shape[1]
    able = [config for config in tiles if not (refused and config and config.descriptors)]
    with poisoned():
        return {
            f"prefill {config}": _pair(
                prefill_kernel.attention_prefill, q, k, v, causal=causal, config=config, **variant
            )
            for config in able
        }


def decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *lens: int,
    splits: Sequence[int] = (1, 4),
    block_n: int = 32,
    **variant: Any,
) -> Answers:
    """(out, lse) with these numbers of splits; 0 lets the rule choose. Even numbers raise the maximum lazily."""
    kv_lens = torch.tensor(lens, dtype=torch.int32)
    with poisoned():
        return {
            f"decode {n}": _pair(
                decode_kernel.attention_decode,
                q,
                k,
                v,
                kv_lens,
                config=DecodeConfig(block_n=block_n, splits=n, lazy=n % 2 == 0),
                **variant,
            )
            for n in splits
        }


def _pair(attention: Any, *operands: torch.Tensor, **how: Any) -> tuple[torch.Tensor, ...]:
    out: tuple[torch.Tensor, ...] = attention(*operands, return_lse=True, **how)
    return out


def follow_the_rule(op: Op, answers: Answers, inputs: Inputs) -> None:
    """Each answer passes the error rule, with eager torch as yardstick."""
    eager, truth = op.eager(**inputs), op.reference(**inputs)
    assert answers
    for who, got in answers.items():
        verdict = judge(got, eager, truth)
        assert not verdict.problem or by_chance(got, verdict.figures), (who, verdict)


def by_chance(got: tuple[torch.Tensor, ...], figures: dict[str, float]) -> bool:
    """Whether a failure may be luck: the limits compare the errors of many values, and of a few float32 rows the
    yardstick's may happen to be small. Twice the limit is what no wrong kernel meets."""
    if got[0].dtype != torch.float32 or got[0].numel() > FEW:
        return False
    names = [f"{output}_{kind}" for output in ("out", "lse") for kind in ("max", "rms")]
    return all(figures.get(f"{n}_error", torch.inf) <= 2 * figures.get(f"{n}_limit", 0) for n in names)


def prefill_is_right(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = True, tiles: Tiles = USUAL, **variant: Any
) -> Answers:
    """The answers, which pass the error rule."""
    answers = prefill(q, k, v, causal=causal, tiles=tiles, **variant)
    follow_the_rule(prefill_op.OP, answers, {"q": q, "k": k, "v": v, "causal": causal, **variant})
    return answers


def decode_is_right(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *lens: int, splits: Sequence[int] = (1, 4), **variant: Any
) -> Answers:
    """The answers, which pass the error rule."""
    answers = decode(q, k, v, *lens, splits=splits, **variant)
    kv_lens = torch.tensor(lens, dtype=torch.int32)
    follow_the_rule(decode_op.OP, answers, {"q": q, "k": k, "v": v, "kv_lens": kv_lens, **variant})
    return answers
