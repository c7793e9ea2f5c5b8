"""The ops over sequences of unlike lengths against each sequence alone, torch, other libraries, counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins import installed_packages
from test_attention import agree
from torch.profiler import ProfilerActivity, profile

from bench.case import Case
from bench.check import check_case
from bench.lookup import case_named
from bench.suites import suite_workloads
from kernels import attention_mixed, attention_varlen
from kernels.attention import masked_attention
from kernels.attention_paged import gathered, visible_of
from kernels.continuous import prompt_workloads, step_workloads
from kernels.models import model_named
from kernels.ragged_plan import Lengths
from kernels.ragged_tables import counts_of, tables_for
from kernels.spec import Inputs, Op, Workload

VARLEN, MIXED = attention_varlen.OP, attention_mixed.OP
BOTH = pytest.mark.parametrize("op", [VARLEN, MIXED], ids=lambda op: op.name)
PLANS: list[str] = []


def workload(op: Op, lengths: Lengths, dtype: str = "float32", **axes: int) -> Workload:
    q_lens, kv_lens = zip(*lengths, strict=True)
    sizes = {"batch": len(lengths), "q_len": max(q_lens), "kv_len": max(kv_lens), "q_heads": 4, "kv_heads": 2}
    sizes |= {"head_dim": 16} | ({"causal": 1} if op is VARLEN else {"page_size": 4}) | axes
    return Workload(axes=sizes, dtype=dtype, phase="mixed", technique="continuous", q_lens=q_lens, kv_lens=kv_lens)


def alone(op: Op, inputs: Inputs, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence's answer by attention over its own keys, in float64."""
    first = [sum(of[i] for of in inputs["lengths"][:b]) for i in (0, 1)]
    q_len, kv_len = inputs["lengths"][b]
    q = inputs["q"][first[0] : first[0] + q_len][None].double()
    if op is VARLEN:
        k, v = (inputs[name][first[1] : first[1] + kv_len][None].double() for name in ("k", "v"))
    else:
        row = inputs["block_table"][b : b + 1]
        k, v = (gathered(inputs[name], row, kv_len).double() for name in ("k_pool", "v_pool"))
    seen = visible_of(q_len, torch.tensor([kv_len]), kv_len)
    return masked_attention(q, k, v, seen if inputs.get("causal", True) else torch.ones_like(seen))


@BOTH
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_each_sequence_is_answered_as_if_it_were_alone(op: Op, data: st.DataObject) -> None:
    lengths = tuple(data.draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), min_size=1, max_size=5)))
    causal: dict[str, Any] = {"causal": data.draw(st.integers(0, 1))} if op is VARLEN else {}
    inputs = op.make_inputs(workload(op, lengths, **causal), "cpu", data.draw(st.integers(0, 9)))
    op.validate(**inputs)
    each = [alone(op, inputs, b) for b in range(len(lengths))]
    out, lse = torch.cat([of[0][0] for of in each]), torch.cat([of[1][0] for of in each], dim=1)
    answers = {"reference": op.reference(**inputs), "eager": op.eager(**inputs)}
    if op.unsupported(workload(op, lengths, **causal), "torch") is None and len(out):
        answers["torch"] = (op.providers["torch"](**inputs),)
    agree(answers, out, lse)


@BOTH
def test_torch_expands_no_key(op: Op) -> None:
    """K and V of 16 tokens x 4,096 keys are 1 MiB each; a copy for each of 8 query heads would be 8 MiB."""
    lengths: Lengths = ((16, 2048), (16, 2048))
    inputs = op.make_inputs(workload(op, lengths, q_heads=8, kv_heads=1, head_dim=64), "cpu", 0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as allocations:
        op.providers["torch"](**inputs)
    made = sum(max(0, event.self_cpu_memory_usage) for event in allocations.events() or [])
    assert 32 * 8 * 64 * 4 <= made < 5 * 2**20


def test_work_by_hand() -> None:
    """Sequences (2 tokens, 5 keys), (0, 9), (3, 2): 4 + 5 and 1 + 2 causal pairs; 5 tokens of 4 heads; 5 + 2 keys of 2
    KV heads, since nobody asks for the 9; widths of 16; two tables of 4 entries, or 4 + 3 and 2 + 3 + 1 pages of 4."""
    lengths: Lengths = ((2, 5), (0, 9), (3, 2))
    for op, tables in ((VARLEN, 8), (MIXED, 4 + 3 + 2 + 3 + 1)):
        work = op.work(workload(op, lengths))
        assert work.flops == 2 * 4 * 12 * 32
        assert (work.bytes, work.overhead_bytes) == (4 * (2 * 5 * 4 * 16 + 2 * 7 * 2 * 16), 4 * tables), op.name
    assert VARLEN.work(workload(VARLEN, lengths, causal=0)).flops == 2 * 4 * 16 * 32


@BOTH
def test_ids_tell_the_lengths_and_are_found_again(op: Op) -> None:
    case = Case(op, "torch", op.check_workloads[2 if op is MIXED else 0])
    kv_lens, q_lens = ("30+40+1+20", "19+1+1+4") if op is MIXED else ("17+40+9", "17+5+9")
    assert case.id.endswith(f",kv_lens={kv_lens},q_lens={q_lens}")
    found = case_named(case.id)
    assert (found.id, found.workload.q_lens, found.workload.kv_lens) == (
        case.id,
        case.workload.q_lens,
        case.workload.kv_lens,
    )


def test_lengths_on_the_device_must_be_the_hosts() -> None:
    packed, paged = (op.make_inputs(op.check_workloads[2 if op is MIXED else 0], "cpu", 0) for op in (VARLEN, MIXED))
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        wrong = packed[name].clone()
        wrong[1] += 1
        with pytest.raises(ValueError, match=rf"{name}\[1\] is 18: wanted 17, the sum of the lengths before it"):
            check_case(VARLEN, VARLEN.providers["torch"], packed | {name: wrong})
    with pytest.raises(ValueError, match=r"cu_seqlens_k ends with 66: wanted 65, the rows of k"):
        VARLEN.validate(**packed | {"k": packed["k"][:-1]})
    with pytest.raises(ValueError, match=r"kv_lens are \[30, 40, 1, 19\]: wanted \[30, 40, 1, 20\]"):
        MIXED.validate(**paged | {"kv_lens": paged["kv_lens"] - torch.tensor([0, 0, 0, 1], dtype=torch.int32)})
    paged["block_table"][0, 0] = 99
    with pytest.raises(ValueError, match=r"block_table\[0, 0\] is 99"):
        MIXED.validate(**paged)


def test_tables_are_made_once_for_a_table_of_lengths() -> None:
    starts = torch.tensor([0, 2, 3], dtype=torch.int32)
    how = {"group": 2, "kv_heads": 1, "block_n": 16, "slots": 4, "pieces": 2}
    first = tables_for(starts, ((2, 40), (1, 20)), block_m=16, causal=True, **how)
    assert tables_for(starts, ((2, 40), (1, 20)), block_m=16, causal=True, **how) is first
    assert tables_for(starts, ((2, 40), (1, 21)), block_m=16, causal=True, **how) is not first
    assert tables_for(starts.clone(), ((2, 40), (1, 20)), block_m=16, causal=True, **how) is not first
    assert first.items.tolist() == [[0, 0, 1, 2, 0], [0, 0, 0, 2, 0], [1, 0, 0, 2, 2], [1, 0, 1, 2, 2]]
    assert (first.merged.shape, first.parts, counts_of(first.items)) == ((2, 5), 4, (39 + 40 + 20, 60))


def test_workloads_of_a_model() -> None:
    """70B has 64 query heads on 8; equal lengths are told by the axes alone, and are one line over batches."""
    model = model_named("llama-3.1-70b")
    [prompts] = prompt_workloads(model, 8, {"two prompts": (3, 5)}, "bfloat16")
    assert (prompts.q_lens, prompts.kv_lens, prompts.axes["q_heads"], prompts.axes["kv_heads"]) == (
        (3, 5),
        (3, 5),
        8,
        1,
    )
    assert prompts.source == ("llama-3.1-70b: attention, tp 8, two prompts",)
    [step] = step_workloads(model, 1, {"a chunk": ((7, 9), (1, 9))}, 16, "bfloat16")
    assert (step.q_lens, step.kv_lens, step.axes["kv_len"], step.phase) == ((7, 1), (), 9, "mixed")
    by_op = suite_workloads("techniques")
    for op, steps in (("attention_varlen", 5), ("attention_mixed", 7)):
        assert len(by_op[op]) == 2 * steps
    decoding = [w for w in by_op["attention_mixed"] if not w.q_lens and not w.kv_lens]
    assert sorted({w.axes["batch"] for w in decoding}) == [1, 16, 64]


def flash_attn_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert max_seqlen_q == int(cu_seqlens_q.diff().max()) and max_seqlen_k == int(cu_seqlens_k.diff().max())
    return by_starts(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, block_table)


def by_starts(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_starts: torch.Tensor, k_starts: torch.Tensor, causal: bool,
    block_table: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    outs = []
    for b in range(len(q_starts) - 1):
        lo, hi, first, last = (int(x) for s in (q_starts, k_starts) for x in s[b : b + 2])
        if block_table is None:
            keys, values = (t[first:last][None] for t in (k, v))
        else:
            keys, values = (gathered(t, block_table[b : b + 1], last - first) for t in (k, v))
        seen = visible_of(hi - lo, torch.tensor([last - first]), last - first)
        outs.append(masked_attention(q[lo:hi][None], keys, values, seen if causal else torch.ones_like(seen))[0][0])
    return torch.cat(outs)


class Wrapper:
    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "NHD"


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    def plan(
        self, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
        head_dim_vo: int | None = None, custom_mask: Any = None, packed_custom_mask: Any = None, causal: bool = False,
        pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, window_left: int = -1,
        logits_soft_cap: float | None = None, sm_scale: float | None = None, rope_scale: float | None = None,
        rope_theta: float | None = None, q_data_type: Any = "float16", kv_data_type: Any = None,
    ) -> None:  # fmt: skip
        assert q_data_type == kv_data_type == torch.float16
        self.starts, self.causal = (qo_indptr, kv_indptr), causal
        PLANS.append(type(self).__name__)

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return by_starts(q, k, v, *self.starts, self.causal)


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    def plan(
        self, qo_indptr: torch.Tensor, paged_kv_indptr: torch.Tensor, paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int,
        head_dim_vo: int | None = None, custom_mask: Any = None, packed_custom_mask: Any = None, causal: bool = False,
        q_data_type: Any = "float16", kv_data_type: Any = None,
    ) -> None:  # fmt: skip
        assert causal and q_data_type == kv_data_type == torch.float16
        pages = paged_kv_indptr.diff()
        table = torch.zeros(len(pages), int(pages.max()), dtype=torch.int32)
        for b, n in enumerate(pages.tolist()):
            table[b, :n] = paged_kv_indices[int(paged_kv_indptr[b]) :][:n]
        lens = (pages - 1) * page_size + paged_kv_last_page_len
        self.given: Any = qo_indptr, torch.cat([torch.zeros(1), lens.cumsum(0)]), True, table
        PLANS.append(type(self).__name__)

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return by_starts(q, *paged_kv_cache, *self.given)


@pytest.fixture
def installed() -> Iterator[None]:
    """Packages of the real ones' signatures and semantics, in plain torch."""
    PLANS.clear()
    wrappers = (BatchPrefillWithRaggedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper)
    with installed_packages({"flash_attn": (flash_attn_varlen_func,), "flashinfer": wrappers}):
        yield


@BOTH
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("provider", ["flash_attn", "flashinfer"])
def test_other_libraries_are_asked_for_what_the_reference_gives_and_plan_once(op: Op, provider: str) -> None:
    pages = {"page_size": 256} if op is MIXED else {}
    for lengths in (((3, 9), (0, 5), (1, 1), (7, 7)), ((2, 300), (1, 20))):
        given_lengths: Lengths = lengths
        asked = workload(op, given_lengths, "float16", **pages)
        assert op.unsupported(asked, provider) is None
        inputs = op.make_inputs(asked, "cpu", 0)
        for _ in range(2):
            assert check_case(op, op.providers[provider], inputs).problem == "", asked.key
    assert len(PLANS) == (2 if provider == "flashinfer" else 0)
    refused = {"flash_attn": "pages of multiples of 256", "flashinfer": "without keys"}[provider]
    if provider == "flashinfer" or op is MIXED:
        assert refused in (op.unsupported(workload(op, ((1, 4), (1, 0)), "float16"), provider) or "")
