"""Named suites and questions: their sizes, that ids are unique and sources joined, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bench.suites import (
    KV_LIMIT_BYTES,
    SUITES,
    fits_kv_limit,
    kv_bytes,
    model_workloads,
    question_workloads,
    suite_cases,
    suite_workloads,
)
from kernels.attention_variants import VARIANT_AXES
from kernels.spec import DECODE_ROWS, Op, Workload
from kernels.work import Work

AXES_BY_OP = {
    "matmul": {"M", "N", "K"},
    "matmul_decode": {"M", "N", "K"},
    "attention_prefill": {"batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "causal"},
    "attention_decode": {"batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim"},
}
BASIC = set(AXES_BY_OP)
AXES_BY_OP |= {
    "quantise_fp8": {"M", "K"},
    "rms_norm": {"M", "K"},
    "add_rms_norm": {"M", "K"},
    "residual_add": {"M", "K"},
    "silu_mul": {"M", "K"},
    "gate_up_silu": {"M", "N", "K"},
    "grouped_matmul": {"M", "N", "K", "experts", "top_k", "skewed"},
    "matmul_weight_only": {"M", "N", "K", "group_size"},
    "kv_append": {"batch", "q_len", "kv_len", "kv_heads", "head_dim"},
    "attention_paged_decode": {"batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size"},
    "attention_paged_prefill": {"batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size"},
    "attention_varlen": {"batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "causal"},
    "attention_mixed": {"batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size"},
    "attention_prefix_decode": {"batch", "q_len", "kv_len", "prefix_len", "q_heads", "kv_heads", "head_dim"},
    "attention_mla_decode": {"batch", "q_len", "kv_len", "q_heads", "page_size"},
}
ALL = [(suite, op_name, w) for suite in SUITES for op_name, ws in suite_workloads(suite).items() for w in ws]


def nothing(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a list of cases runs nothing")


def described(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    return Workload(axes=dict(axes), dtype=dtype, phase="decode", source=source)


def fake_op(name: str) -> Op:
    return Op(
        name=name,
        summary="does nothing",
        axes={"batch": 1, "kv_len": None, "q_heads": 32, "head_dim": None},
        dtypes=("bfloat16", "float32"),
        make_inputs=nothing,
        reference=nothing,
        eager=nothing,
        providers={"triton": nothing, "torch": nothing},
        work=lambda workload: Work(0, 0),
        describe_axes=described,
        check_workloads=(),
        roles={},
    )


OPS = [fake_op(name) for name in AXES_BY_OP]


def test_the_suites() -> None:
    assert SUITES == ("smoke", "quick", "standard", "techniques", "full")
    for suite in SUITES:
        ops = {"full": set(AXES_BY_OP), "techniques": set(AXES_BY_OP)}.get(suite, BASIC)
        assert set(suite_workloads(suite)) == ops
        assert all(suite_workloads(suite).values())


def test_an_unknown_suite_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown suite 'fast'; known: smoke, quick, standard, techniques, full"):
        suite_workloads("fast")
    with pytest.raises(ValueError, match="unknown suite"):
        suite_cases("fast", OPS)


def test_every_workload_has_the_axes_of_its_op_and_a_source() -> None:
    for _, op_name, workload in ALL:
        values_of_their_own = {"v_head_dim"} if workload.technique == "mla" and "head_dim" in workload.axes else set()
        of_groups = {"group_size"} if workload.scale == "channel" else set()
        wanted = (AXES_BY_OP[op_name] | values_of_their_own) - of_groups
        assert set(workload.axes) - set(VARIANT_AXES) == wanted, workload
        assert workload.source, workload


def test_prefill_and_decode_matmuls_are_told_apart_by_rows() -> None:
    for _, op_name, workload in ALL:
        any_rows = op_name in ("matmul_weight_only", "gate_up_silu", "grouped_matmul")
        if "N" in workload.axes and not any_rows:
            assert (op_name == "matmul_decode") == (workload.axes["M"] <= DECODE_ROWS)
        if any_rows:
            assert (workload.phase == "decode") == (workload.axes["M"] <= DECODE_ROWS)
        elif op_name not in ("kv_append", "quantise_fp8") and workload.technique != "glue":
            phase = "decode" if "decode" in op_name else "mixed" if "mixed" in op_name else "prefill"
            assert workload.phase == phase


@pytest.mark.parametrize("suite", SUITES)
def test_ids_are_unique_and_every_provider_is_a_case(suite: str) -> None:
    cases = suite_cases(suite, OPS)
    ids = [case.id for case in cases]
    assert len(set(ids)) == len(ids) == 2 * sum(map(len, suite_workloads(suite).values()))


def test_cases_are_those_of_the_given_ops() -> None:
    assert {case.op.name for case in suite_cases("smoke", OPS[:1])} == {"matmul"}
    assert suite_cases("smoke", [fake_op("peak_read")]) == []


def test_smoke_is_tiny_and_quick_is_bounded() -> None:
    smoke, quick = suite_workloads("smoke"), suite_workloads("quick")
    assert sum(map(len, smoke.values())) <= 10
    assert all(max(w.axes.values()) <= 256 for ws in smoke.values() for w in ws)
    assert sum(map(len, quick.values())) <= 45
    assert max(map(kv_bytes, quick["attention_decode"])) == 16384 * 4096
    flops = max(2 * w.axes["M"] * w.axes["N"] * w.axes["K"] for w in quick["matmul"])
    assert flops < 150e9  # a fifth of a second a sample at 800 GFLOP/s


def test_standard_has_every_size_of_both_models() -> None:
    standard = suite_workloads("standard")
    # Four projections of 128, 512, 2048 and 8192 rows and a head of 128 and 512; five matmuls of 1 to 64 rows.
    assert len(standard["matmul"]) == 2 * (4 * 4 + 2)
    assert len(standard["matmul_decode"]) == 2 * 5 * 5
    assert len(standard["attention_prefill"]) == 2 * 6
    # Nine batches times eight lengths, less the three that pass 64 GB: (128 and 256, 128k) and (256, 64k).
    assert len(standard["attention_decode"]) == 2 * (9 * 8 - 3)
    assert {w.dtype for ws in standard.values() for w in ws} == {"bfloat16"}


def test_full_contains_standard_and_every_technique_asked_of_it() -> None:
    standard, full = suite_workloads("standard"), suite_workloads("full")
    for op_name, workloads in standard.items():
        assert {w.key for w in workloads} < {w.key for w in full[op_name]}
    prefill = full["attention_prefill"]
    assert any(w.axes["causal"] == 0 for w in prefill)
    assert any(w.axes["q_len"] < w.axes["kv_len"] and w.technique == "chunked" for w in prefill)
    assert any(w.axes["batch"] > 1 for w in prefill)
    decode = full["attention_decode"]
    assert {1, 2, 4, 8, 16} == {w.axes["q_len"] for w in decode}
    assert {1, 32} <= {w.axes["kv_heads"] for w in decode if w.axes["q_heads"] == 32}
    assert any(w.kv_lens for w in decode)
    eight_bits = {"float8_e4m3fn", "int8"}
    assert {w.dtype for w in full["matmul"]} == {"bfloat16", "float16", "tfloat32", "float32"} | eight_bits


def test_kv_bytes_and_their_limit() -> None:
    axes = {"batch": 256, "q_len": 1, "kv_len": 65536, "q_heads": 32, "kv_heads": 8, "head_dim": 128}
    workload = Workload(axes=axes, dtype="bfloat16", phase="decode")
    assert kv_bytes(workload) == 256 * 65536 * 8 * (128 + 128) * 2 == 68_719_476_736
    assert not fits_kv_limit(workload)
    assert fits_kv_limit(Workload(axes=axes, dtype="bfloat16", phase="decode", kv_dtype="float8_e4m3fn"))
    narrow = Workload(axes={**axes, "v_head_dim": 64}, dtype="bfloat16", phase="decode")
    assert kv_bytes(narrow) == 256 * 65536 * 8 * (128 + 64) * 2
    assert kv_bytes(Workload(axes={"M": 1, "N": 1, "K": 1}, dtype="bfloat16", phase="decode")) == 0
    shared = Workload(axes={**axes, "batch": 2, "kv_len": 3, "prefix_len": 10}, dtype="bfloat16", phase="decode")
    assert kv_bytes(shared) == (10 + 2 * 3) * 8 * (128 + 128) * 2
    assert all(kv_bytes(w) <= KV_LIMIT_BYTES for _, op_name, w in ALL if op_name == "attention_decode")


def test_one_shape_of_two_models_names_both() -> None:
    by_key = {w.key: w for w in suite_workloads("full")["matmul"]}
    sources = by_key["bfloat16/M=512,N=4096,K=14336"].source
    assert {"llama-3.1-8b: down_proj, tp 1", "mistral-7b: down_proj, tp 1"} <= set(sources)
    assert len(set(sources)) == len(sources)


def test_a_model_at_a_tp_size() -> None:
    by_op = model_workloads("llama-3.1-70b", 8, ["bf16", "float16"])
    assert {w.dtype for ws in by_op.values() for w in ws} == {"bfloat16", "float16"}
    assert {(w.axes["q_heads"], w.axes["kv_heads"]) for w in by_op["attention_decode"]} == {(8, 1)}
    assert all(source.endswith(", tp 8") for ws in by_op.values() for w in ws for source in w.source)
    with pytest.raises(ValueError, match="tp 3 does not divide 64 query heads; these sizes fit: 1, 2, 4, 8"):
        model_workloads("llama-3.1-70b", 3, ["bf16"])
    with pytest.raises(ValueError, match="unknown model"):
        model_workloads("llama", 1, ["bf16"])
    with pytest.raises(ValueError, match="unknown dtype 'fp12'"):
        model_workloads("llama-3.1-70b", 1, ["fp12"])


def test_a_question_is_every_combination_with_the_defaults_filled_in() -> None:
    sets = {"kv_len": (1024, 2048), "head_dim": (64, 128), "q_heads": (8,)}
    workloads = question_workloads(OPS[0], sets, ["bf16", "float32"], ("asked",))
    assert [w.key for w in workloads[:4]] == [
        f"bfloat16/batch=1,kv_len={kv_len},q_heads=8,head_dim={head_dim}"
        for kv_len in (1024, 2048)
        for head_dim in (64, 128)
    ]
    assert len(workloads) == 8
    assert {(w.dtype, w.source) for w in workloads} == {("bfloat16", ("asked",)), ("float32", ("asked",))}
    once = question_workloads(OPS[0], {"kv_len": (1024, 1024), "head_dim": (64,)}, ["bfloat16"], ("asked",))
    assert [w.key for w in once] == ["bfloat16/batch=1,kv_len=1024,q_heads=32,head_dim=64"]


def test_what_a_question_cannot_ask() -> None:
    good = {"kv_len": (1024,), "head_dim": (64,)}
    with pytest.raises(ValueError, match="matmul has no axis 'M'; its axes: batch, kv_len, q_heads, head_dim"):
        question_workloads(OPS[0], {**good, "M": (1,)}, ["bf16"], ())
    with pytest.raises(ValueError, match="matmul needs a size for axis 'head_dim'; its axes: batch, kv_len"):
        question_workloads(OPS[0], {"kv_len": (1024,)}, ["bf16"], ())
    with pytest.raises(ValueError, match="matmul has no dtype 'float16'; it has: bfloat16, float32"):
        question_workloads(OPS[0], good, ["fp16"], ())
