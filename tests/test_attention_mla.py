"""Absorbed MLA against loops, against the attention that it stands for, and what other libraries are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins import installed_packages
from test_attention import Answers, agree, arrays, by_loops, draw

from bench.check import check_case
from bench.suites import kv_bytes, suite_workloads
from kernels import attention_mla_decode, attention_prefill
from kernels.attention import masked_attention
from kernels.attention_mla_decode import OP
from kernels.attention_paged import gathered, visible_of
from kernels.latent_attention import mla_decode_workloads, mla_prefill_workloads
from kernels.models import model_named
from kernels.spec import Inputs, UnsupportedError, Workload

DEEPSEEK = model_named("deepseek-v3")
LATENT, ROPE, WIDTH = 512, 64, 576
PLANS: list[str] = []


def in_pages(latent: torch.Tensor, lens: list[int], page_size: int, scale: float = 192**-0.5) -> Inputs:
    """Inputs beside q: pages handed out from the last on, zeros in their unused slots."""
    B, S, _ = latent.shape
    most = max(1, math.ceil(S / page_size))
    pool, table = torch.zeros(B * most, page_size, WIDTH, dtype=latent.dtype), torch.full((B, most), -1).int()
    free = list(range(B * most))
    for b, length in enumerate(lens):
        for place in range(length):
            if place % page_size == 0:
                table[b, place // page_size] = free.pop()
            pool[table[b, place // page_size], place % page_size] = latent[b, place]
    kv_lens = torch.tensor(lens, dtype=torch.int32)
    return {"latent_pool": pool, "block_table": table, "kv_lens": kv_lens, "softmax_scale": scale, "ragged": True}


def answers(q: torch.Tensor, cache: Inputs) -> Answers:
    everyone = {"reference": OP.reference, "eager": OP.eager}
    if int(cache["kv_lens"].min()) >= q.shape[1]:
        everyone["torch"] = OP.providers["torch"]
    outs = {who: answer(q, **cache) for who, answer in everyone.items()}
    return {who: out if isinstance(out, tuple) else (out,) for who, out in outs.items()}


@pytest.mark.parametrize("Sq", [1, 3])
def test_k14_scores_are_576_wide_and_values_512_and_the_scale_is_given(Sq: int) -> None:
    """K14: S = 33, H = 3."""
    q, latent = draw(1, 1, Sq, 3, WIDTH), draw(2, 1, 33, WIDTH)
    for scale in (192**-0.5, 0.1):
        got = answers(q, in_pages(latent, [33], 16, scale))
        assert set(got) == {"reference", "eager", "torch"} and got["torch"][0].shape == (1, Sq, 3, LATENT)
        keys = latent[:, :, None]
        agree(got, *by_loops(*arrays(q, keys, keys[..., :LATENT]), [33], causal=True, scale=scale))


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_absorbed_is_the_attention_of_expanded_heads(data: st.DataObject) -> None:
    """In float64: keys (W_UK c, rope) of 192 and values W_UV c of 128 for each head give what the latent gives when
    W_UK goes into the queries and W_UV is applied to the output."""
    H, Sq, S, nope, v_width = data.draw(st.integers(1, 5), "H"), data.draw(st.integers(1, 4), "Sq"), 9, 128, 128
    length, seed = data.draw(st.integers(Sq, S), "length"), data.draw(st.integers(0, 99), "seed")
    w_uk, w_uv = draw(seed, H, nope, LATENT).double() / 20, draw(seed + 1, H, v_width, LATENT).double() / 20
    q, latent = draw(seed + 2, 1, Sq, H, nope + ROPE).double(), draw(seed + 3, 1, S, WIDTH).double()
    c, rope = torch.split(latent, [LATENT, ROPE], dim=-1)
    keys = torch.cat([torch.einsum("hnl,bsl->bshn", w_uk, c), rope[:, :, None].expand(-1, -1, H, -1)], dim=-1)
    values = torch.einsum("hvl,bsl->bshv", w_uv, c)
    seen = visible_of(Sq, torch.tensor([length]), S)
    expected, lse = masked_attention(q, keys, values, seen)
    absorbed = torch.cat([torch.einsum("bthn,hnl->bthl", q[..., :nope], w_uk), q[..., nope:]], dim=-1)
    out, own_lse = OP.reference(absorbed, **in_pages(latent, [length], 4))
    torch.testing.assert_close(torch.einsum("bthl,hvl->bthv", out, w_uv), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(own_lse, lse, rtol=1e-10, atol=1e-10)


def test_torch_expands_no_latent() -> None:
    """Its problem has one KV head and all rows as one head's queries."""
    inputs = OP.make_inputs(replace(OP.check_workloads[0], dtype="float32"), "cpu", 0)
    tables = inputs["block_table"], inputs["kv_lens"]
    q, k, v, seen = attention_mla_decode._packed_problem(inputs["q"], inputs["latent_pool"], *tables, ragged=True)
    assert (q.shape, k.shape, v.shape) == ((2, 1, 16, WIDTH), (2, 1, 128, WIDTH), (2, 1, 128, LATENT))
    assert v.data_ptr() == k.data_ptr() and seen is not None and seen.shape == (2, 1, 16, 128)
    assert set(OP.facts("torch", inputs)) == {"sdpa_backend"} and OP.facts("triton", {}) == {}


def test_lengths_and_pages_are_looked_at() -> None:
    cache = in_pages(draw(1, 2, 20, WIDTH), [20, 3], 16)
    with pytest.raises(ValueError, match=r"kv_lens must lie in 0\.\.32"):
        OP.validate(draw(2, 2, 1, 1, WIDTH), **cache | {"kv_lens": torch.tensor([33, 3])})
    cache["block_table"][1, 0] = 99
    with pytest.raises(ValueError, match=r"block_table\[1, 0\] is 99, and 1 of the 3 entries"):
        OP.validate(draw(2, 2, 1, 1, WIDTH), **cache)


def test_the_latent_is_counted_once_and_two_tokens_of_128_heads_are_past_the_ridge() -> None:
    """8,192 keys: 9,437,184 bytes of latent; two queries of 128 heads see 16,383 pairs: 457 FLOP/byte in bfloat16."""
    axes = {"batch": 1, "q_len": 2, "kv_len": 8192, "q_heads": 128, "page_size": 64}
    work = OP.work(Workload(axes=axes, dtype="bfloat16", phase="decode"))
    assert work.flops == 2 * 128 * 16_383 * (576 + 512)
    assert work.bytes == 9_437_184 + 2 * 128 * (576 + 512) * 2
    assert work.flops / work.bytes == pytest.approx(457, abs=1)
    assert work.overhead_bytes == 4 * (128 + 1)


def test_s07_a_token_of_deepseek_costs_70272_bytes() -> None:
    """S07: 61 layers x (512 + 64) x 2 bytes, by what one more key costs a decode, and by what is allocated."""
    one, two = (
        Workload(axes={"batch": 1, "q_len": 1, "kv_len": n, "q_heads": 128, "page_size": 64}, dtype="bfloat16",
                 phase="decode")
        for n in (1, 2)
    )  # fmt: skip
    assert DEEPSEEK.layers * (OP.work(two).bytes - OP.work(one).bytes) == 70_272
    assert DEEPSEEK.layers * (kv_bytes(two) - kv_bytes(one)) == 70_272


def test_workloads_of_deepseek_and_of_models_without_a_latent() -> None:
    for tp, heads in ((1, 128), (8, 16)):
        made = mla_decode_workloads(DEEPSEEK, tp, (1, 64), (4096,), (1, 2), 64, "bfloat16")
        assert [(w.axes["q_len"], w.axes["batch"]) for w in made] == [(1, 1), (1, 64), (2, 1), (2, 64)]
        assert {w.axes["q_heads"] for w in made} == {heads} and {w.technique for w in made} == {"mla"}
        [prefill] = mla_prefill_workloads(DEEPSEEK, tp, (4096,), "bfloat16")
        wanted = {"q_heads": heads, "kv_heads": heads, "head_dim": 192, "v_head_dim": 128, "causal": 1}
        assert {axis: prefill.axes[axis] for axis in wanted} == wanted
        assert attention_prefill.OP.unsupported(prefill, "triton") is None
    llama = model_named("llama-3.1-8b")
    assert mla_decode_workloads(llama, 1, (1,), (8,), (1,), 64, "bfloat16") == []
    assert mla_prefill_workloads(llama, 1, (8,), "bfloat16") == []


def test_the_suite_has_both_splits_of_heads_and_both_lengths() -> None:
    made = suite_workloads("techniques")
    decode = made["attention_mla_decode"]
    assert {(w.axes["q_heads"], w.axes["kv_len"]) for w in decode} == {(h, n) for h in (128, 16) for n in (4096, 32768)}
    assert {w.axes["batch"] for w in decode} == {1, 16, 64} and {w.axes["q_len"] for w in decode} == {1, 2, 4}
    assert {w.axes["q_heads"] for w in made["attention_prefill"] if w.technique == "mla"} == {128, 16}


def get_mla_metadata(cache_seqlens: torch.Tensor, num_heads_per_head_k: int, num_heads_k: int) -> tuple[Any, Any]:
    assert cache_seqlens.dtype == torch.int32 and num_heads_k == 1
    PLANS.append("flash_mla")
    return ("schedule", num_heads_per_head_k), "splits"


def flash_mla_with_kvcache(
    q: torch.Tensor, k_cache: torch.Tensor, block_table: torch.Tensor, cache_seqlens: torch.Tensor, head_dim_v: int,
    tile_scheduler_metadata: Any, num_splits: Any, softmax_scale: float | None = None, causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    assert tile_scheduler_metadata == ("schedule", q.shape[1] * q.shape[2]) and num_splits == "splits" and causal
    assert k_cache.shape[1:3] == (64, 1) and block_table.dtype == torch.int32
    most = block_table.shape[1] * 64
    k = gathered(k_cache, block_table, most)
    seen = visible_of(q.shape[1], cache_seqlens, most)
    return masked_attention(q, k, k[..., :head_dim_v], seen, scale=softmax_scale)


class BatchMLAPagedAttentionWrapper:
    """FlashInfer's, in plain torch."""

    def __init__(self, float_workspace_buffer: torch.Tensor, use_cuda_graph: bool = False) -> None:
        assert float_workspace_buffer.element_size() == 1 and not use_cuda_graph

    def plan(
        self, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, kv_indices: torch.Tensor, kv_len_arr: torch.Tensor,
        num_heads: int, head_dim_ckv: int, head_dim_kpe: int, page_size: int, causal: bool, sm_scale: float,
        q_data_type: torch.dtype, kv_data_type: torch.dtype,
    ) -> None:  # fmt: skip
        assert {t.dtype for t in (qo_indptr, kv_indptr, kv_indices, kv_len_arr)} == {torch.int32}
        assert (head_dim_ckv, head_dim_kpe, causal, q_data_type) == (512, 64, True, kv_data_type)
        self.q_len, self.starts, self.indices = int(qo_indptr[1]), kv_indptr, kv_indices
        self.lens, self.page, self.scale = kv_len_arr, page_size, sm_scale
        PLANS.append("flashinfer")

    def run(self, q_nope: torch.Tensor, q_pe: torch.Tensor, ckv: torch.Tensor, kpe: torch.Tensor) -> torch.Tensor:
        outs, q, pool = [], torch.cat([q_nope, q_pe], -1), torch.cat([ckv, kpe], -1)[:, :, None]
        for b, queries in enumerate(q.view(-1, self.q_len, *q.shape[1:])):
            pages = self.indices[int(self.starts[b]) : int(self.starts[b + 1])]
            k, seen = gathered(pool, pages[None], len(pages) * self.page), self.lens[b : b + 1]
            seen = visible_of(self.q_len, seen, k.shape[1])
            outs.append(masked_attention(queries[None], k, k[..., :LATENT], seen, scale=self.scale)[0][0])
        return torch.cat(outs)


@pytest.fixture
def installed() -> Iterator[None]:
    """Packages of the real ones' signatures and semantics."""
    PLANS.clear()
    flash_mla = (get_mla_metadata, flash_mla_with_kvcache)
    with installed_packages(
        {"flash_mla": flash_mla, "flashinfer": (), "flashinfer.mla": (BatchMLAPagedAttentionWrapper,)}
    ):
        yield


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("provider", ["flash_mla", "flashinfer"])
def test_other_libraries_are_asked_for_what_the_reference_gives(provider: str) -> None:
    asked = 0
    for workload in OP.check_workloads:
        if OP.unsupported(workload, provider) is None:
            inputs = OP.make_inputs(workload, "cpu", 0)
            assert check_case(OP, OP.providers[provider], inputs).problem == "", workload.key
            asked += 1
    assert asked == {"flash_mla": 2, "flashinfer": 4}[provider]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("provider", ["flash_mla", "flashinfer"])
def test_a_plan_is_made_once_for_a_block_table_and_anew_for_another_problem(provider: str) -> None:
    inputs = OP.make_inputs(OP.check_workloads[0], "cpu", 0)
    run = OP.providers[provider]
    first = run(**inputs)
    assert torch.equal(run(**inputs | {"latent_pool": inputs["latent_pool"].clone()}), first) and len(PLANS) == 1
    assert not torch.equal(run(**inputs | {"kv_lens": inputs["kv_lens"] - 3}), first) and len(PLANS) == 2
    for change, plans in (({}, 3), ({"softmax_scale": 0.5}, 4), ({"block_table": inputs["block_table"].clone()}, 5)):
        run(**inputs | change)
        assert len(PLANS) == plans


@pytest.mark.parametrize("provider", ["flash_mla", "flashinfer"])
def test_a_missing_package_is_unsupported_and_says_how_to_get_it(provider: str) -> None:
    inputs = OP.make_inputs(OP.check_workloads[0], "cpu", 0)
    missing = pytest.raises(UnsupportedError, match=r"ModuleNotFoundError: .*; pip install ")
    with installed_packages({provider: None, f"{provider}.mla": None}), missing:
        OP.providers[provider](**inputs)
