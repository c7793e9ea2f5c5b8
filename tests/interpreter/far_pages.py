"""Run by far_addresses: ragged batches, pages and latents of which the last lie past 2^31."""

from __future__ import annotations

from typing import Any

import torch
from far_memory import ROW, alone, equal, far
from launches import only_programs

from kernels import attention_mla_decode_triton as mla
from kernels import attention_paged_triton as paged
from kernels import attention_ragged_triton as ragged
from kernels.attention_decode_configs import Config as DecodeConfig


def one_far_page(strides: tuple[int, ...], width: int) -> str:
    """Pages 0 and 100 of a pool, the second past 2^31, hold the same 16 keys: the values must come out alike."""
    pools = [far((101, 16, 1, width), strides) for _ in range(2)]
    for pool in pools:
        pool[100] = torch.randn(16, 1, width, generator=torch.Generator().manual_seed(1)).half()
    copies = [pool[100:].clone() for pool in pools]
    q, lens = torch.randn(1, 2, 3, width, generator=torch.Generator().manual_seed(2)).half(), torch.tensor([13]).int()
    for config in (DecodeConfig(block_n=16, block_m=16), DecodeConfig(block_n=32, block_m=16)):
        with only_programs(0):
            got, wanted = (
                paged.attention_paged(q, k, v, torch.tensor([[page]], dtype=torch.int32), lens, config=config)
                for (k, v), page in ((pools, 100), (copies, 0))
            )
        if (told := equal(alone(got), alone(wanted))) != "right":
            return f"{config}: {told}"
    return "right"


def k07_a_page_past_2_to_the_31() -> str:
    return one_far_page((ROW, 64, 64, 1), 64)


def k08_a_page_past_2_to_the_31_of_an_interleaved_pool() -> str:
    """[pages, page, Hkv, 2 x D] with keys and values as views, and slots that are as far apart as pages are."""
    return next(
        (t for s in ((ROW, 128, 128, 1), (64, 10 * ROW, 64, 1)) if (t := one_far_page(s, 64)) != "right"), "right"
    )


def ragged_rows_far_apart() -> str:
    """Sequences of 99 and 2 tokens, of which the last row of queries, keys and values lies past 2^31."""
    near = [torch.randn(101, 1, 64, generator=torch.Generator().manual_seed(i)).half() for i in range(3)]
    apart = [far((101, 1, 64), (ROW, 64, 1)).copy_(tensor) for tensor in near]
    starts = torch.tensor([0, 99, 101], dtype=torch.int32)
    got, wanted = (
        ragged.attention_varlen(q, k, v, starts, starts, lengths=((99, 99), (2, 2)), causal=False)
        for q, k, v in (apart, near)
    )
    return equal(alone(got), alone(wanted))


def k07_ragged_page_past_2_to_the_31() -> str:
    """Page 100 of a pool lies past 2^31, and page 0 of another holds the same 16 keys."""
    pools = [far((101, 16, 1, 64), (ROW, 64, 64, 1)) for _ in range(2)]
    for i, pool in enumerate(pools):
        pool[100] = torch.randn(16, 1, 64, generator=torch.Generator().manual_seed(i)).half()
    q, lens = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(2)).half(), torch.tensor([13]).int()
    got, wanted = (
        ragged.attention_mixed(
            q, k, v, torch.tensor([0, 2]).int(), torch.tensor([[page]]).int(), lens, lengths=((2, 13),)
        )
        for (k, v), page in ((pools, 100), ([pool[100:].clone() for pool in pools], 0))
    )
    return equal(alone(got), alone(wanted))


def k07_a_page_of_latents_past_2_to_the_31() -> str:
    """And queries whose rotated part begins there."""
    near, lens = torch.randn(1, 1, 3, 576, generator=torch.Generator().manual_seed(2)).half(), torch.tensor([13]).int()
    q = far((1, 1, 3, 576), (3, 3, 1, ROW // 5))
    q.copy_(near)
    for strides in ((ROW, 576, 1), (576, 10 * ROW, 1), (1, 101, ROW // 5)):
        pool = far((101, 16, 576), strides)
        pool[100] = torch.randn(16, 576, generator=torch.Generator().manual_seed(1)).half()
        for block_n in (16, 32):
            how: dict[str, Any] = {"softmax_scale": 0.07, "config": DecodeConfig(block_n=block_n, block_m=16)}
            with only_programs(0):
                got, wanted = (
                    mla.attention_mla_decode(rows, latents, torch.tensor([[page]]).int(), lens, **how)
                    for rows, latents, page in ((q, pool, 100), (near, pool[100:].clone(), 0))
                )
            if (told := equal(alone(got), alone(wanted))) != "right":
                return f"{strides}, {block_n}: {told}"
    return "right"
