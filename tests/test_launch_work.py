"""What launches declare to a profiler: the work of their case, by Triton's own launch on a driver that runs none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from triton import knobs
from triton.profiler.hooks.launch import LaunchHook

from bench.case import Case
from bench.compile import compile_driver
from kernels import launch_work
from kernels.matmul_w8a8 import E4M3, with_scales
from kernels.quantised_cache import quantised_kv
from kernels.quantised_matmuls import with_weights
from kernels.registry import OPS, op_named

WITH_TRITON = [op for op in OPS if "triton" in op.providers]


def launched(case: Case, **how: Any) -> list[dict[str, Any]]:
    """What each launch of a case tells a hook, as Proton's gets it."""
    told: list[dict[str, Any]] = []

    def note(metadata: Any) -> None:
        told.append(metadata.get())

    with compile_driver(90):
        knobs.runtime.launch_enter_hook.add(note)
        try:
            case.op.providers["triton"](**case.op.make_inputs(case.workload, "meta", 0), **how)
        finally:
            knobs.runtime.launch_enter_hook.remove(note)
    return told


def asked(op: str, dtype: str = "bfloat16", kv_lens: tuple[int, ...] = (), **axes: int) -> Case:
    found = op_named(op)
    sizes = {axis: size for axis, size in found.axes.items() if size is not None} | axes
    described = found.describe_axes(sizes, dtype, ("test",))
    return Case(found, "triton", replace(described, kv_lens=kv_lens))


def in_blocks(op: str, M: int, N: int, K: int) -> Case:
    """An fp8 case with scales of blocks."""
    case = asked(op, E4M3, M=M, N=N, K=K)
    return replace(case, workload=with_scales(case.workload, "block128"))


def stored(how: str, group: int = 0, *, M: int, N: int, K: int) -> Case:
    """A case of weights stored so."""
    case = asked("matmul_weight_only", M=M, N=N, K=K)
    return replace(case, workload=with_weights(case.workload, how, group))


def quantising(scale: str) -> Case:
    """Activations to be quantised with these scales."""
    case = asked("quantise_fp8", M=70, K=300)
    return replace(case, workload=replace(case.workload, scale=scale))


def quantised(case: Case, kv_dtype: str, scale: str) -> Case:
    return replace(case, workload=quantised_kv(case.workload, kv_dtype, scale))


def flops(told: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in told.items() if name.startswith("flops")}


ONE_LAUNCH = (
    asked("matmul", M=512, N=1024, K=512),
    asked("matmul", M=100, N=99, K=101),
    asked("matmul", "tfloat32", M=512, N=1024, K=512),
    asked("matmul_decode", M=1, N=200_000, K=512),
    asked("matmul_decode", "float32", M=1, N=200_000, K=512),
    asked("matmul", E4M3, M=512, N=1024, K=512),
    in_blocks("matmul", M=100, N=300, K=400),
    asked("matmul", E4M3, M=100, N=99, K=101),
    asked("matmul_decode", E4M3, M=1, N=200_000, K=512),
    in_blocks("matmul_decode", M=5, N=200_000, K=400),
    stored("int4", 128, M=1, N=200_000, K=600),
    stored("uint4", 32, M=100, N=2000, K=600),
    stored("int8", M=16, N=200_000, K=600),
    stored("float8_e4m3fn", M=4096, N=512, K=512),
    *(asked(op, M=70, K=300) for op in ("rms_norm", "add_rms_norm", "residual_add", "silu_mul")),
    asked("add_rms_norm", "float32", M=3, K=9000),
    quantising("token"),
    quantising("tensor"),
    quantising("block128"),
    asked("gate_up_silu", M=3, N=2048, K=512),
    asked("gate_up_silu", M=300, N=2000, K=512),
    asked("gate_up_silu", M=100, N=99, K=101),
    asked("grouped_matmul", M=512, N=512, K=512),
    asked("grouped_matmul", M=1, N=70, K=77),
    asked("attention_prefill", q_len=512, q_heads=4, kv_heads=2),
    asked("attention_prefill", q_len=100, kv_len=300, causal=0, head_dim=80),
    asked("attention_decode", batch=64, kv_len=512, q_len=2),
    quantised(asked("attention_decode", batch=132, kv_len=512, q_len=2), "float8_e4m3fn", "head"),
    quantised(asked("attention_decode", "float32", batch=64, kv_len=512), "int8", "tensor"),
    asked("attention_paged_decode", batch=64, kv_len=512, q_len=2),
    asked("attention_paged_prefill", q_len=512, kv_len=1024, q_heads=4, kv_heads=2, page_size=64, batch=40),
    asked("attention_mla_decode", batch=132, kv_len=512, q_heads=16, q_len=2),
    asked("kv_append", batch=3, q_len=5, kv_len=512),
)
"""Descriptors of host and kernel, pointers, CUDA cores, and as many programs as need no split."""


@pytest.mark.parametrize("case", ONE_LAUNCH, ids=lambda case: case.id)
def test_a_launch_declares_the_work_of_its_case(case: Case) -> None:
    work = case.op.work(case.workload)
    [told] = launched(case)
    width = {"bfloat16": 16, "tfloat32": 32, "float32": 32, E4M3: 8}[case.workload.dtype]
    assert flops(told) == {f"flops{width}": work.flops} and told["bytes"] == work.bytes
    assert told["name"].startswith("_") and "[" in told["name"], "the kernel's name and the sizes"


def test_golden_counts() -> None:
    """matmul(2, 3, 4) is 48 FLOPs and (8 + 12 + 6) x 2 bytes; decode B=4 S=4096 32/8 heads is 67,174,400 bytes."""
    [told] = launched(asked("matmul", M=2, N=3, K=4))
    assert (told["flops16"], told["bytes"]) == (48, 52)
    first, _ = launched(asked("attention_decode", batch=4, kv_len=4096))
    splits = int(first["name"].split("splits=")[1].rstrip("]"))
    out_bytes, partial_bytes = 4 * 32 * 128 * 2, 4 * 32 * splits * (128 + 1) * 4
    assert splits > 1 and first["bytes"] == 67_174_400 - out_bytes + partial_bytes


SPLIT = (
    asked("matmul_decode", M=1, N=4096, K=4096),
    asked("matmul_decode", "float32", M=1, N=512, K=8192),
    asked("matmul_decode", M=16, N=1024, K=8192),
    asked("matmul_decode", E4M3, M=16, N=1024, K=8192),
    in_blocks("matmul_decode", M=3, N=1024, K=8192),
    stored("int4", 128, M=3, N=1024, K=8192),
    stored("uint4", 64, M=64, N=1024, K=8192),
    asked("attention_decode", batch=1, kv_len=8192),
    quantised(asked("attention_decode", batch=1, kv_len=8192), "int8", "head"),
    asked("attention_paged_decode", batch=1, kv_len=8192),
    asked("attention_mla_decode", batch=1, kv_len=8192, q_heads=16),
)


@pytest.mark.parametrize("case", SPLIT, ids=lambda case: case.id)
def test_two_launches_count_no_flop_twice_and_add_the_partials_way_out_and_back(case: Case) -> None:
    work = case.op.work(case.workload)
    first, second = launched(case)
    assert list(flops(first).values()) == [work.flops] and list(flops(second).values()) == [0]
    splits = int(first["name"].split("splits=")[1].rstrip("]"))
    a = case.workload.axes
    values = a["M"] * a["N"] if "M" in a else a["batch"] * a["q_heads"] * (a.get("head_dim", 512) + 1)
    assert splits > 1 and first["bytes"] + second["bytes"] == work.bytes + 2 * splits * values * 4


def test_a_shared_prefix_is_counted_once_and_both_walks_read_the_queries() -> None:
    """Beyond the work of the case: the queries a second time, and the parts' way out and back."""
    case = asked("attention_prefix_decode", batch=16, kv_len=512, prefix_len=8192)
    work, told = case.op.work(case.workload), launched(case)
    assert sum(told[0][name] for name in flops(told[0])) == 2 * 32 * 16 * 8192 * 256
    assert sum(value for each in told for value in flops(each).values()) == work.flops
    splits = sum(int(each["name"].split("splits=")[1].rstrip("]")) for each in told[:2])
    rows = 16 * 32
    assert sum(each["bytes"] for each in told) == work.bytes + rows * 128 * 2 + 2 * rows * splits * (128 + 1) * 4


@pytest.mark.parametrize("op", ["attention_varlen", "attention_mixed"])
def test_a_ragged_batch_is_counted_by_its_real_lengths(op: str) -> None:
    """Beyond the work of the case: the schedule's 5 columns for programs and merged tiles, and parts out and back."""
    case = asked(op, batch=64, q_len=3, kv_len=9000)
    case = replace(case, workload=replace(case.workload, q_lens=(3, *[1] * 63), kv_lens=(9000, *[300] * 63)))
    work, told = case.op.work(case.workload), launched(case)
    assert [list(flops(each).values()) for each in told] == [[work.flops], [0]]
    items, tiles = (int(each["name"].rpartition("=")[2].rstrip("]")) for each in told)
    assert tiles == 1 and items > 64, "the long sequence in pieces, the others whole"
    parts = (items - 63) * 8 * 16 * (128 + 1) * 4
    assert sum(each["bytes"] for each in told) == work.bytes + 4 * 5 * (items + tiles) + 2 * parts
    assert told[0]["name"].startswith(f"_attention_ragged_kernel[tokens=66,keys={9000 + 63 * 300},heads=32")


def test_a_log_sum_exp_that_is_written_counts() -> None:
    for case in (
        asked("attention_prefill", q_len=512, q_heads=4, kv_heads=2),
        asked("attention_decode", batch=64, kv_len=512),
        asked("attention_paged_decode", batch=64, kv_len=512),
        asked("attention_mla_decode", batch=264, kv_len=512, q_heads=16),
    ):
        [without], [with_lse] = launched(case), launched(case, return_lse=True)
        rows = case.workload.axes["batch"] * case.workload.axes["q_len"] * case.workload.axes["q_heads"]
        assert with_lse["bytes"] - without["bytes"] == 4 * rows


def test_ragged_lengths_are_counted_as_their_allocation_and_the_name_says_so() -> None:
    """Reading them would wait for the device in the middle of a launch."""
    ragged = asked("attention_decode", batch=64, kv_len=512, kv_lens=(512, *[3] * 63))
    [told] = launched(ragged)
    whole = asked("attention_decode", batch=64, kv_len=512)
    assert told["bytes"] == whole.op.work(whole.workload).bytes > ragged.op.work(ragged.workload).bytes
    assert "kv_len<=512" in told["name"]


def test_proton_takes_what_is_declared() -> None:
    """Its metrics by name; all else that it keeps must be a plain number."""
    [told] = launched(asked("matmul", M=512, N=1024, K=512))
    declared = {name: value for name, value in told.items() if name not in ("name", "function", "stream")}
    assert set(declared) <= set(LaunchHook.metrics) and all(type(value) is int for value in declared.values())


def test_nothing_is_counted_unless_a_hook_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise AssertionError("counted in a launch that nobody profiles")

    case = asked("matmul", M=512, N=1024, K=512)
    monkeypatch.setattr(launch_work, "matmul_work", refuse)
    with compile_driver(90):
        out = case.op.providers["triton"](**case.op.make_inputs(case.workload, "meta", 0))
    assert isinstance(out, torch.Tensor)
    with pytest.raises(AssertionError, match="nobody profiles"):
        launched(case)


@pytest.mark.parametrize("op", WITH_TRITON, ids=lambda op: op.name)
def test_every_kernel_of_the_suite_declares_something(op: Any) -> None:
    """A kernel without the metadata has a name alone: a new op is caught here."""
    for workload in op.check_workloads:
        if not op.unsupported(workload, "triton"):
            for told in launched(Case(op, "triton", workload)):
                assert flops(told) and told["bytes"] > 0, told
