"""Every op of the registry: declared work against the tensors' own sizes, checks that pass and that catch, names.

Loops over the registry, so an op or a provider added there is tested without a change here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.case import Case
from bench.check import check_case
from bench.suites import suite_workloads
from kernels import (
    attention_decode,
    attention_prefill,
    gate_up_silu,
    kv_append,
    matmul,
    matmul_decode,
    matmul_weight_only,
)
from kernels.attention_variants import VARIANT_AXES
from kernels.quantised_matmuls import with_weights
from kernels.registry import OPS, ROOF_OPS, op_named
from kernels.spec import Inputs, Op, UnsupportedError, Workload

EVERY_OP = (*OPS, *ROOF_OPS)
TABLES = ("kv_lens", "positions", "block_table", "cu_seqlens_q", "cu_seqlens_k", "offsets")
"""Inputs that tell where data lies: moved, but counted as overhead."""
OUTPUT_BUFFERS = ("y",)
"""Inputs that are written instead of read."""
NOT_OF_8_BITS = {"channel": {"group_size"}}
"""Axes that do not apply where each column has one scale."""


def by_name(op: Op) -> str:
    return op.name


def checks() -> list[Any]:
    """Check workloads of each provider that the CPU has, without those that it says it cannot take."""
    workloads = [(op, w) for op in EVERY_OP for w in op.check_workloads]
    cases = [Case(op, p, w) for op, w in workloads for p in op.providers if p not in op.cuda_only]
    cases = [case for case in cases if not case.op.unsupported(case.workload, case.provider)]
    assert {case.op.name for case in cases} == {op.name for op in EVERY_OP}
    return [pytest.param(case.op, case.provider, case.workload, id=case.id) for case in cases]


def sizes_of(op: Op) -> list[Workload]:
    """Check workloads in every dtype of the op, its standard suite, and the ragged batches of the full suite."""
    in_every_dtype = [replace(w, dtype=dtype) for w in op.check_workloads for dtype in op.dtypes]
    in_every_dtype = [w for w in in_every_dtype if any(not op.unsupported(w, provider) for provider in op.providers)]
    ragged = [w for w in suite_workloads("full").get(op.name, []) if w.kv_lens]
    return [*op.check_workloads, *in_every_dtype, *suite_workloads("standard").get(op.name, []), *ragged]


def tuple_of(outputs: Any) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def tensor_bytes(inputs: Inputs, names: Iterable[str]) -> int:
    return sum(inputs[name].numel() * inputs[name].element_size() for name in names)


def compulsory_bytes(op: Op, workload: Workload) -> int:
    """Of the tensors themselves: inputs without tables, keys past a sequence's end left out, and outputs but the
    log-sum-exp."""
    inputs = op.make_inputs(workload, "meta", 0)
    tensors = [name for name, value in inputs.items() if isinstance(value, torch.Tensor)]
    total: int = tensor_bytes(inputs, (n for n in tensors if n not in (*TABLES, *OUTPUT_BUFFERS, "k", "v")))
    if "k_pool" in inputs:
        total -= tensor_bytes(inputs, ["k_pool", "v_pool"])
        q, v = inputs["q"], inputs["v_pool"]
        total += math.prod((*q.shape[:-1], v.shape[3])) * q.element_size()
        of_a_key = sum(int(inputs[pool][:1, :1].numel()) * q.element_size() for pool in ("k_pool", "v_pool"))
        return total + int(of_a_key) * keys_with_queries(workload)
    if "latent_pool" in inputs:  # once, though it is keys and values
        total -= tensor_bytes(inputs, ["latent_pool"])
        B, Sq, H, _ = inputs["q"].shape
        values: int = B * Sq * H * 512 + keys_with_queries(workload) * 576
        return total + values * int(inputs["q"].element_size())
    if "kv_cache" in inputs:
        return total - tensor_bytes(inputs, ["kv_cache"]) + tensor_bytes(inputs, ["kv_new"])
    if "offsets" in inputs:  # weights of experts with a row alone
        ends, w = op.make_inputs(workload, "cpu", 0)["offsets"], inputs["w"]
        idle = int((ends.diff(prepend=ends.new_zeros(1)) == 0).sum())
        total -= idle * tensor_bytes(inputs, ["w"]) // len(w)
    if "k" not in inputs:
        full_precision = {"allow_tf32": False} if "allow_tf32" in inputs else {}
        outputs = tuple_of(op.eager(**inputs | full_precision))
        return total + sum(out.numel() * out.element_size() for out in outputs)
    q, v = inputs["q"], inputs["v"]
    total += math.prod((*q.shape[:-1], v.shape[-1])) * q.element_size()
    if "cu_seqlens_k" in inputs:
        of_a_key = sum(tensor_bytes(inputs, [name]) // max(1, len(v)) for name in ("k", "v"))
        return total + of_a_key * keys_with_queries(workload)
    batch, allocated = v.shape[:2]
    for name in ("k", "v"):
        bytes_of_a_key = tensor_bytes(inputs, [name]) // max(1, batch * allocated)
        total += bytes_of_a_key * sum(keys_in_reach(workload, n) for n in workload.kv_lens or [allocated] * batch)
    return total


def keys_in_reach(workload: Workload, length: int) -> int:
    """Of so many keys: all, or those in the window of some query."""
    if not (window := workload.axes.get("window", 0)):
        return length
    places = range(length - workload.axes["q_len"], length)
    return len({key for own in places for key in range(max(0, own - window + 1), own + 1)})


def keys_with_queries(workload: Workload) -> int:
    """Real keys of the sequences that have a new token."""
    batch, axes = workload.axes["batch"], workload.axes
    kv_lens, q_lens = workload.kv_lens or (axes["kv_len"],) * batch, workload.q_lens or (axes["q_len"],) * batch
    return sum(kv_len for q_len, kv_len in zip(q_lens, kv_lens, strict=True) if q_len)


@pytest.mark.parametrize("op", [op for op in EVERY_OP if op.name != "empty_launch"], ids=by_name)
def test_declared_bytes_are_the_tensors_own_sizes(op: Op) -> None:
    for workload in sizes_of(op):
        assert op.work(workload).bytes == compulsory_bytes(op, workload), workload.key


def test_decode_reads_the_real_lengths_not_the_allocation() -> None:
    """q and out 2 x 4 x 8 values each, K and V 3 + 1 keys of 2 heads x 8 values, 4 bytes a value; lengths 2 x 4 B."""
    axes = {"batch": 2, "q_len": 1, "kv_len": 100, "q_heads": 4, "kv_heads": 2, "head_dim": 8}
    workload = Workload(axes=axes, dtype="float32", phase="decode", kv_lens=(3, 1))
    counted = attention_decode.OP.work(workload)
    assert (counted.bytes, counted.overhead_bytes) == (4 * (2 * 64 + 2 * 4 * 16), 8)
    assert counted.flops == 2 * 4 * (3 + 1) * (8 + 8)


def test_a_window_reads_the_keys_that_some_query_sees() -> None:
    """3 queries over 10 keys, each seeing its own and one before: keys 6 to 9, and 6 pairs."""
    axes = {"batch": 1, "q_len": 3, "kv_len": 10, "q_heads": 1, "kv_heads": 1, "head_dim": 8, "causal": 1, "window": 2}
    counted = attention_prefill.OP.work(Workload(axes=axes, dtype="bfloat16", phase="prefill"))
    assert (counted.flops, counted.bytes) == (2 * 6 * 16, 2 * 8 * (3 + 3 + 4 + 4))


def test_overhead_is_the_tables_own_size() -> None:
    for op in EVERY_OP:
        for workload in op.check_workloads:
            inputs = op.make_inputs(workload, "meta", 0)
            tables = tensor_bytes(inputs, (name for name in TABLES if name in inputs))
            if "block_table" in inputs:  # entries past a sequence's pages are not read
                [pages] = {len(pool) for name, pool in inputs.items() if name.endswith("_pool")}
                tables -= 4 * (inputs["block_table"].numel() - pages)
            assert op.work(workload).overhead_bytes == tables, workload.key


def test_an_empty_launch_declares_no_work() -> None:
    counted = ROOF_OPS[-1].work(ROOF_OPS[-1].check_workloads[0])
    assert (counted.flops, counted.bytes, counted.overhead_bytes) == (0, 0, 0)


def test_an_append_counts_the_new_rows_twice_and_nothing_of_the_cache() -> None:
    """3 sequences x 2 tokens x 2 (K and V) x 4 heads x 8 values of 2 bytes, in and out; 3 positions of 4 bytes."""
    axes = {"batch": 3, "q_len": 2, "kv_len": 1000, "kv_heads": 4, "head_dim": 8}
    counted = kv_append.OP.work(Workload(axes=axes, dtype="bfloat16", phase="decode", kv_lens=(1000, 2, 7)))
    assert (counted.flops, counted.bytes, counted.overhead_bytes) == (0, 2 * 3 * 2 * 2 * 4 * 8 * 2, 12)


def counted_alike(op: Op) -> list[Workload]:
    """Check workloads of which torch counts what is useful: those without a mask, since it takes every pair."""
    whole = [w for w in op.check_workloads if "window" not in w.axes]
    unmasked = [replace(w, axes={**w.axes, "causal": 0}) if "causal" in w.axes else w for w in whole]
    return [w for w in unmasked if "causal" in w.axes or (w.axes.get("q_len", 1) == 1 and not w.kv_lens)]


@pytest.mark.parametrize("op", [op for op in OPS if op.name.startswith(("matmul", "attention"))], ids=by_name)
def test_declared_flops_are_what_torch_counts(op: Op) -> None:
    workloads = counted_alike(op)
    assert len(workloads) >= 2
    for workload in workloads:
        with FlopCounterMode(display=False) as counter:
            op.eager(**op.make_inputs(workload, "cpu", 0))
        counted = counter.get_total_flops()
        assert op.work(workload).flops == counted > 0, workload.key


@pytest.mark.parametrize(("op", "provider", "workload"), checks())
def test_provider_passes_the_error_rule(op: Op, provider: str, workload: Workload) -> None:
    inputs = op.make_inputs(workload, "cpu", 0)
    verdict = check_case(op, op.providers[provider], inputs)
    assert verdict.problem == ""
    assert verdict.figures["out_max_error"] <= verdict.figures["out_max_limit"]


def test_case_ids_are_unique_over_ops_providers_and_workloads() -> None:
    ids = [Case(op, p, w).id for op in EVERY_OP for p in op.providers for w in op.check_workloads]
    ids += [Case(op, p, w).id for op in OPS for p in op.providers for w in suite_workloads("standard").get(op.name, [])]
    assert len(set(ids)) == len(ids) > 700


@pytest.mark.parametrize("op", EVERY_OP, ids=by_name)
def test_roles_and_axes_name_what_is_there(op: Op) -> None:
    for workload in [*op.check_workloads, *suite_workloads("standard").get(op.name, [])]:
        inputs = op.make_inputs(workload, "meta", 0)
        given = {name for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        optional = {name for name in op.roles if name == "sinks" or name.endswith(("scale", "zero"))}
        assert given <= set(op.roles) and set(op.roles) - given <= optional - set(inputs)
        assert set(op.roles.values()) <= {"streamed", "resident"}
        wanted = set(op.axes) - set(VARIANT_AXES) - NOT_OF_8_BITS.get(workload.scale, set())
        assert set(workload.axes) - {"v_head_dim", *VARIANT_AXES} == wanted
        assert workload.dtype in op.dtypes
    described = op.describe_axes({axis: default or 1 for axis, default in op.axes.items()}, op.dtypes[0], ("a test",))
    assert set(described.axes) == set(op.axes)
    assert described.source == ("a test",)
    assert set(op.cuda_only) <= set(op.providers)
    assert all(op.cuda_only.values())


@pytest.mark.parametrize(
    ("name", "change", "provider", "reason"),
    [
        ("matmul_decode", {"M": 65}, "torch", "for 1 to 64 rows; use matmul"),
        ("attention_prefill", {"q_heads": 5}, "torch", "5 query heads do not divide among 2 KV heads"),
        ("attention_prefill", {"window": 4}, "torch", "no sliding window"),
        ("attention_prefill", {"q_len": 40}, "torch", "queries that see no key"),
        ("attention_prefill", {"q_len": 3}, "torch_cudnn", "cuDNN backend has a bottom-right causal mask only as"),
        ("attention_prefill", {}, "flash_attn", "float16 and bfloat16 only"),
        ("attention_decode", {"q_len": 17}, "torch", "for 1 to 16 new tokens; use attention_prefill"),
        ("attention_prefix_decode", {"q_len": 2}, "torch", "for one new token a sequence; use attention_decode"),
        ("attention_prefix_decode", {"q_heads": 5}, "torch", "5 query heads do not divide among 2 KV heads"),
        ("attention_prefix_decode", {"v_head_dim": 32}, "torch", "want values as wide as keys, got 32"),
        ("attention_prefix_decode", {"head_dim": 257}, "triton", "heads are 257 wide"),
        ("attention_decode", {"q_heads": 5}, "torch", "5 query heads do not divide among 2 KV heads"),
        ("attention_decode", {"kv_len": 2, "q_len": 3}, "torch", "queries that see no key"),
        ("attention_decode", {"q_len": 3}, "torch_cudnn", "cuDNN backend has a bottom-right causal mask only as"),
        ("attention_decode", {}, "flash_attn", "float16 and bfloat16 only"),
        ("attention_paged_decode", {"q_len": 17}, "torch", "for 1 to 16 new tokens; use attention_paged_prefill"),
        ("attention_paged_decode", {"q_heads": 5}, "triton", "5 query heads do not divide among 2 KV heads"),
        ("attention_paged_decode", {"head_dim": 257}, "triton", "heads are 257 wide"),
        ("attention_paged_decode", {}, "flashinfer", "float16 and bfloat16 only"),
        ("attention_varlen", {"q_heads": 5}, "torch", "5 query heads do not divide among 2 KV heads"),
        ("attention_varlen", {}, "flash_attn", "float16 and bfloat16 only"),
        ("attention_varlen", {"head_dim": 257}, "triton", "heads are 257 wide"),
        ("attention_mixed", {"q_len": 41}, "torch", "queries that see no key (q_len, kv_len = (41, 40))"),
        ("attention_mixed", {"head_dim": 257}, "triton", "heads are 257 wide"),
        ("attention_mixed", {}, "flashinfer", "float16 and bfloat16 only"),
        ("attention_mla_decode", {"q_len": 17}, "triton", "for 1 to 16 new tokens"),
        ("attention_mla_decode", {"kv_len": 1, "q_len": 2}, "torch", "queries that see no key (length 1, q_len=2)"),
        ("attention_mla_decode", {"page_size": 16}, "flash_mla", "FlashMLA takes pages of 64 keys, not 16"),
        ("attention_mla_decode", {"kv_len": 0}, "flashinfer", "flashinfer plans no sequence without keys"),
        ("attention_paged_prefill", {"q_len": 71}, "torch", "queries that see no key (length 70, q_len=71)"),
        ("attention_paged_prefill", {}, "flash_attn", "float16 and bfloat16 only"),
    ],
)
def test_what_a_provider_cannot_run_is_refused_with_the_reason(
    name: str, change: dict[str, int], provider: str, reason: str
) -> None:
    op = op_named(name)
    first = op.check_workloads[0]
    assert reason in (op.unsupported(replace(first, axes={**first.axes, **change}), provider) or "")


@pytest.mark.parametrize("provider", ["triton", "flash_mla", "flashinfer"])
def test_mla_in_float32_is_refused_with_the_reason(provider: str) -> None:
    op = op_named("attention_mla_decode")
    workload = replace(op.check_workloads[0], dtype="float32")
    assert "float16" in (op.unsupported(workload, provider) or "") and op.unsupported(workload, "torch") is None


def test_reasons_of_one_provider_are_not_given_to_another() -> None:
    first = attention_prefill.OP.check_workloads[0]
    for axes in ({"window": 4}, {"q_len": 40}):
        assert attention_prefill.OP.unsupported(replace(first, axes={**first.axes, **axes}), "somebody_elses") is None


@pytest.mark.parametrize("op", [matmul.OP, matmul_decode.OP], ids=by_name)
def test_tfloat32_off_cuda_is_unsupported_not_float32(op: Op) -> None:
    inputs = op.make_inputs(replace(op.check_workloads[0], dtype="tfloat32"), "cpu", 0)
    with pytest.raises(UnsupportedError, match="on cpu use float32"):
        op.providers["torch"](**inputs)


@pytest.mark.parametrize("op", [matmul.OP, matmul_decode.OP], ids=by_name)
@pytest.mark.parametrize(
    ("dtype", "scale", "sizes", "provider", "reason"),
    [
        ("float32", "token", (4, 16, 512), "triton", "float32 takes no scales, got token"),
        ("float8_e4m3fn", "", (4, 16, 512), "triton", "needs scales per tensor, token, block128, got none"),
        ("float8_e4m3fn", "channel", (4, 16, 512), "torch", "needs scales per tensor, token, block128, got channel"),
        ("float8_e4m3fn", "token", (4, 24, 512), "torch", "wants N and K in whole 16, got N=24, K=512"),
        ("float8_e4m3fn", "block128", (5, 16, 512), "torch", "M in whole 4, K in whole 512, got M=5, K=512"),
        ("float8_e4m3fn", "block128", (4, 16, 256), "torch", "M in whole 4, K in whole 512, got M=4, K=256"),
        ("float8_e4m3fn", "block128", (5, 24, 256), "triton", ""),
    ],
)
def test_scales_and_sizes_that_an_fp8_matmul_cannot_take_are_refused(
    op: Op, dtype: str, scale: str, sizes: tuple[int, int, int], provider: str, reason: str
) -> None:
    axes = dict(zip("MNK", sizes, strict=True))
    workload = Workload(axes=axes, dtype=dtype, scale=scale, phase="decode")
    found = op.unsupported(workload, provider) or ""
    assert (reason in found) if reason else not found


@pytest.mark.parametrize(
    ("stored", "group", "scale", "K", "provider", "reason"),
    [
        ("", 128, "", 512, "triton", "wanted weights of int4, uint4, int8, float8_e4m3fn, got bfloat16"),
        ("int4", 96, "", 512, "triton", "int4 has a scale for (32, 64, 128) places of K, got group_size=96"),
        ("uint4", 128, "channel", 512, "triton", "got group_size=128 channel"),
        ("int8", 0, "token", 512, "triton", "int8 has a scale a channel, got token"),
        ("float8_e4m3fn", 64, "channel", 512, "triton", "a scale a channel, got channel and group_size=64"),
        ("int4", 128, "", 512, "torch", "torch._weight_int4pack_mm takes a layout of its own"),
        ("float8_e4m3fn", 0, "channel", 512, "torch", "no 16-bit activations by float8_e4m3fn weights"),
        ("int8", 0, "channel", 500, "torch", "wants K in whole 16, got K=500"),
        ("int8", 0, "channel", 512, "torch", ""),
        ("uint4", 32, "", 77, "triton", ""),
    ],
)
def test_storage_of_weights_that_a_provider_cannot_take_is_refused(
    stored: str, group: int, scale: str, K: int, provider: str, reason: str
) -> None:
    axes = {"M": 4, "N": 16, "K": K} | ({"group_size": group} if group else {})
    workload = Workload(axes=axes, dtype="bfloat16", weight_dtype=stored, scale=scale, phase="decode")
    found = matmul_weight_only.OP.unsupported(workload, provider) or ""
    assert (reason in found) if reason else not found


@pytest.mark.parametrize(("stored", "group"), [("uint4", 64), ("int8", 0)])
def test_a_sample_of_a_product_with_stored_weights_is_the_products_own_values(
    stored: str, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = matmul_weight_only.OP
    monkeypatch.setattr(matmul, "CHECK_IN_FULL", 0)
    monkeypatch.setattr(matmul, "SAMPLED_ROWS", 5)
    described = op.describe_axes({"M": 30, "N": 520, "K": 272}, "float16", ("test",))
    inputs = op.make_inputs(with_weights(described, stored, group), "cpu", 0)
    fewer, cut = op.sample(inputs)
    of_sample = op.reference(**fewer)
    assert of_sample.shape == (5, matmul.SAMPLED_COLUMNS)
    assert torch.allclose(of_sample, cut(op.reference(**inputs)), rtol=1e-9)


def test_a_sample_of_a_fused_projection_keeps_each_gate_with_its_up_row(monkeypatch: pytest.MonkeyPatch) -> None:
    op = gate_up_silu.OP
    monkeypatch.setattr(matmul, "CHECK_IN_FULL", 0)
    monkeypatch.setattr(matmul, "SAMPLED_ROWS", 5)
    inputs = op.make_inputs(op.describe_axes({"M": 30, "N": 520, "K": 40}, "float16", ("test",)), "cpu", 0)
    fewer, cut = op.sample(inputs)
    of_sample = op.reference(**fewer)
    assert of_sample.shape == (5, matmul.SAMPLED_COLUMNS)
    assert torch.allclose(of_sample, cut(op.reference(**inputs)), rtol=1e-9)


def test_scales_of_blocks_off_sm_90_are_unsupported_by_torch() -> None:
    workload = Workload(axes={"M": 4, "N": 16, "K": 512}, dtype="float8_e4m3fn", scale="block128", phase="decode")
    with pytest.raises(UnsupportedError, match="scales of blocks on sm_90 only"):
        matmul_decode.OP.providers["torch"](**matmul_decode.OP.make_inputs(workload, "cpu", 0))


@pytest.mark.parametrize("scale", ["tensor", "token", "block128"])
@pytest.mark.parametrize("op", [matmul.OP, matmul_decode.OP], ids=by_name)
def test_a_sample_of_an_fp8_product_is_the_products_own_values(
    op: Op, scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales go with their rows and channels, and blocks stay whole: 3 of the 5 along N, the last of 8 channels."""
    monkeypatch.setattr(matmul, "CHECK_IN_FULL", 0)
    monkeypatch.setattr(matmul, "SAMPLED_ROWS", 5)
    axes = {"M": 30, "N": 520, "K": 272}
    workload = Workload(axes=axes, dtype="float8_e4m3fn", scale=scale, phase="decode")
    inputs = op.make_inputs(workload, "cpu", 0)
    fewer, cut = op.sample(inputs)
    assert fewer is not inputs
    of_sample = op.reference(**fewer)
    assert torch.allclose(of_sample, cut(op.reference(**inputs)), rtol=1e-9)
    assert of_sample.shape[1] == (264 if scale == "block128" else matmul.SAMPLED_COLUMNS)
