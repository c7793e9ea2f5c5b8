"""Paged attention by other libraries: what flash-attn and FlashInfer are asked for, and when a plan is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from stand_ins import installed_packages

from bench.check import check_case
from kernels import attention_paged_decode, attention_paged_prefill
from kernels.attention import masked_attention
from kernels.attention_paged import gathered, visible_of
from kernels.spec import Op, UnsupportedError

DECODE, PREFILL = attention_paged_decode.OP, attention_paged_prefill.OP
BOTH = pytest.mark.parametrize("op", [DECODE, PREFILL], ids=lambda op: op.name)
PLANS: list[str] = []


def flash_attn_with_kvcache(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k: Any = None, v: Any = None, rotary_cos: Any = None,
    rotary_sin: Any = None, cache_seqlens: torch.Tensor | None = None, cache_batch_idx: Any = None,
    cache_leftpad: Any = None, block_table: torch.Tensor | None = None, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    rotary_interleaved: bool = True, alibi_slopes: Any = None, num_splits: int = 0, return_softmax_lse: bool = False,
) -> torch.Tensor:  # fmt: skip
    assert k is v is None and causal and cache_seqlens is not None and block_table is not None
    assert cache_seqlens.dtype == block_table.dtype == torch.int32 and k_cache.shape[1] % 256 == 0
    most = block_table.shape[1] * k_cache.shape[1]
    k, v = gathered(k_cache, block_table, most), gathered(v_cache, block_table, most)
    return masked_attention(q, k, v, visible_of(q.shape[1], cache_seqlens, most), scale=softmax_scale)[0]


class Wrapper:
    """What both of FlashInfer's wrappers do with a plan: attention over CSR lists of pages."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", **options: Any) -> None:
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "NHD"
        assert set(options) <= {"use_tensor_cores"}

    def keep(self, q_len: int, starts: torch.Tensor, indices: torch.Tensor, last: torch.Tensor, page: int) -> None:
        assert starts.dtype == indices.dtype == last.dtype == torch.int32
        assert bool(((last >= 1) & (last <= page)).all()), "1 <= last_page_len <= page_size"
        self.q_len, self.starts, self.indices, self.last, self.page = q_len, starts, indices, last, page
        PLANS.append(type(self).__name__)

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        outs = []
        for b, queries in enumerate(q.view(-1, self.q_len, *q.shape[1:])):
            pages = self.indices[int(self.starts[b]) : int(self.starts[b + 1])]
            length = (len(pages) - 1) * self.page + self.last[b : b + 1]
            k, v = (gathered(pool, pages[None], int(length)) for pool in paged_kv_cache)
            outs.append(masked_attention(queries[None], k, v, visible_of(self.q_len, length, int(length)))[0][0])
        return torch.cat(outs)


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    def plan(
        self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, num_qo_heads: int,
        num_kv_heads: int, head_dim: int, page_size: int, pos_encoding_mode: str = "NONE", window_left: int = -1,
        logits_soft_cap: float | None = None, q_data_type: Any = "float16", kv_data_type: Any = None,
    ) -> None:  # fmt: skip
        assert q_data_type == kv_data_type == torch.float16
        self.keep(1, indptr, indices, last_page_len, page_size)


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    def plan(
        self, qo_indptr: torch.Tensor, paged_kv_indptr: torch.Tensor, paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int,
        head_dim_vo: int | None = None, custom_mask: Any = None, packed_custom_mask: Any = None, causal: bool = False,
        pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, sm_scale: float | None = None,
        window_left: int = -1, logits_soft_cap: float | None = None, rope_scale: float | None = None,
        rope_theta: float | None = None, q_data_type: Any = "float16", kv_data_type: Any = None,
    ) -> None:  # fmt: skip
        assert causal and q_data_type == kv_data_type == torch.float16 and qo_indptr[0] == 0
        assert len(qo_indptr) == len(paged_kv_indptr)
        self.keep(int(qo_indptr[1]), paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)


@pytest.fixture
def installed() -> Iterator[None]:
    """Packages of the real ones' signatures and semantics, in plain torch."""
    PLANS.clear()
    wrappers = (BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper)
    with installed_packages({"flash_attn": (flash_attn_with_kvcache,), "flashinfer": wrappers}):
        yield


@BOTH
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("provider", ["flash_attn", "flashinfer"])
def test_it_is_asked_for_what_the_reference_gives(op: Op, provider: str) -> None:
    asked = 0
    for each in op.check_workloads:
        workload = replace(each, dtype="float16")
        if provider == "flash_attn":
            assert "pages of multiples of 256 keys" in (op.unsupported(workload, provider) or "")
            workload = replace(workload, axes={**workload.axes, "page_size": 256})
        if op.unsupported(workload, provider) is None:
            inputs = op.make_inputs(workload, "cpu", 0)
            assert check_case(op, op.providers[provider], inputs).problem == "", workload.key
            asked += 1
    assert asked >= len(op.check_workloads) - 1
    if provider == "flashinfer":
        kinds = {"BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"}
        assert set(PLANS) == kinds and "without keys" in (op.unsupported(_without_keys(op), provider) or "")


def _without_keys(op: Op) -> Any:
    lens = (0, *(5,) * (op.check_workloads[0].axes["batch"] - 1))
    return replace(op.check_workloads[0], dtype="float16", kv_lens=lens)


@pytest.mark.usefixtures("installed")
def test_flashinfer_plans_once_for_a_block_table_and_anew_for_another_problem() -> None:
    """Rotated copies of K and V share the tables, as timed calls do: none of them plans."""
    inputs = DECODE.make_inputs(replace(DECODE.check_workloads[0], dtype="float16"), "cpu", 0)
    run = DECODE.providers["flashinfer"]
    first = run(**inputs)
    copies = inputs | {name: inputs[name].clone() for name in ("k_pool", "v_pool")}
    assert torch.equal(run(**copies), first) and len(PLANS) == 1
    shorter = inputs | {"kv_lens": inputs["kv_lens"] - 3}
    assert not torch.equal(run(**shorter), first) and len(PLANS) == 2
    run(**inputs | {"block_table": inputs["block_table"].clone()})
    assert len(PLANS) == 3


@pytest.mark.parametrize(("provider", "package"), [("flash_attn", "flash-attn"), ("flashinfer", "flashinfer-python")])
def test_a_missing_package_is_unsupported_and_says_how_to_get_it(provider: str, package: str) -> None:
    inputs = DECODE.make_inputs(replace(DECODE.check_workloads[0], dtype="float16"), "cpu", 0)
    missing = pytest.raises(UnsupportedError, match=f"ModuleNotFoundError: .*{provider}.*; pip install {package}")
    with installed_packages({provider: None}), missing:
        DECODE.providers[provider](**inputs)


@BOTH
def test_torch_gathers_pages_once_and_never_expands_keys(op: Op) -> None:
    """The recorded backend is not the math one, which would repeat K and V for every query head."""
    for workload in op.check_workloads:
        if op.unsupported(workload, "torch") is None:
            facts = op.facts("torch", op.make_inputs(workload, "cpu", 0))
            assert set(facts) == {"sdpa_backend"} and facts["sdpa_backend"] != "MATH"
    assert op.facts("triton", {}) == {}
