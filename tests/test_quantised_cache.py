"""kernels.quantised_cache: what is stored, what is refused, and that another head's scale does not pass the check."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_attention import agree, arrays, by_loops

from bench.check import judge
from bench.compile_jobs import jobs
from bench.gpu_compile import groups
from kernels import attention_decode
from kernels.attention_decode import OP
from kernels.attention_decode_triton import bucket_of
from kernels.quantised_cache import check_stored, quantised_inputs, quantised_kv, scale_bytes
from kernels.spec import UnsupportedError, Workload

E4M3, INT8 = torch.float8_e4m3fn, torch.int8
AXES = {"batch": 2, "q_len": 1, "kv_len": 40, "q_heads": 6, "kv_heads": 3, "head_dim": 16}
PLAIN = OP.describe_axes(AXES, "float16", ("test",))
BOTH = pytest.mark.parametrize("dtype", [E4M3, INT8])


def stored_as(dtype: torch.dtype, scale: str) -> Workload:
    return quantised_kv(PLAIN, str(dtype).removeprefix("torch."), scale)


@BOTH
@pytest.mark.parametrize("scale", ["tensor", "head"])
def test_inputs_are_stored_values_and_their_scales(dtype: torch.dtype, scale: str) -> None:
    workload = stored_as(dtype, scale)
    inputs, plain = OP.make_inputs(workload, "cpu", 3), OP.make_inputs(PLAIN, "cpu", 3)
    assert {name: inputs[name].dtype for name in "qkv"} == {"q": torch.float16, "k": dtype, "v": dtype}
    scales = [inputs[name] for name in ("k_scale", "v_scale")]
    assert [(s.dtype, s.shape) for s in scales] == [(torch.float32, (3 if scale == "head" else 1,))] * 2
    assert scale_bytes(workload) == sum(s.nbytes for s in scales) and scale_bytes(PLAIN) == 0
    largest = inputs["k"].float().abs().amax((0, 1, 3) if scale == "head" else (0, 1, 2, 3))
    assert (largest == (448 if dtype == E4M3 else 127)).all()
    sizes = torch.tensor([1.0, 0.25, 2.0] if scale == "head" else [1.0])
    back = inputs["k"].float() * (inputs["k_scale"] / sizes).view(-1, 1)
    assert (back - plain["k"].float()).abs().max() < (0.25 if dtype == E4M3 else 0.05)


def test_a_plain_cache_is_left_as_it_is() -> None:
    inputs = {"k": torch.ones(1)}
    assert quantised_inputs(PLAIN, ("k", "v"), inputs) is inputs


@BOTH
def test_truth_is_of_the_dequantised_values(dtype: torch.dtype) -> None:
    inputs = OP.make_inputs(stored_as(dtype, "head"), "cpu", 3)
    k, v = (inputs[name].double() * inputs[f"{name}_scale"].double().view(-1, 1) for name in "kv")
    truth = by_loops(*arrays(inputs["q"], k, v), [40, 40], causal=True)
    agree({"reference": OP.reference(**inputs)}, *truth, tolerance=1e-12)
    agree({"eager": OP.eager(**inputs)}, *truth, tolerance=2e-3)


@BOTH
@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_another_heads_scale_fails_the_error_rule(name: str, dtype: torch.dtype) -> None:
    inputs = OP.make_inputs(stored_as(dtype, "head"), "cpu", 3)
    eager, truth = OP.eager(**inputs), OP.reference(**inputs)
    assert not judge(eager, eager, truth).problem
    for wrong in (inputs[name].roll(1), inputs[name].roll(-1), inputs[name][:1]):
        assert judge(OP.eager(**inputs | {name: wrong}), eager, truth).problem


@pytest.mark.parametrize("scale", ["tensor", "head"])
def test_a_sample_takes_its_own_heads_scales(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_decode, "CHECK_IN_FULL", 0)
    inputs = OP.make_inputs(stored_as(INT8, scale), "cpu", 3)
    assert OP.sample is not None
    part, cut = OP.sample(inputs)
    assert part["k"].shape[2] == 2 and len(part["k_scale"]) == (2 if scale == "head" else 1)
    whole, of_part = cut(OP.reference(**inputs)), OP.reference(**part)
    for value, other in zip(whole, of_part, strict=True):
        torch.testing.assert_close(value, other)


@pytest.mark.parametrize(
    ("provider", "kv_dtype", "scale", "reason"),
    [
        ("triton", "float8_e5m2", "head", "wanted KV caches of float8_e4m3fn and int8 with scales per tensor or head"),
        ("triton", "int8", "token", "got int8 with scales per token"),
        ("triton", "int8", "", "got int8 with scales per nothing"),
        ("torch", "int8", "head", "SDPA takes no int8 keys and values: a dequantised copy would move more"),
        ("torch_flash", "float8_e4m3fn", "tensor", "SDPA takes no float8_e4m3fn keys and values"),
        ("flash_attn", "float8_e4m3fn", "tensor", "flash_attn takes no float8_e4m3fn KV cache"),
    ],
)
def test_l01_what_has_no_kernel_is_refused_with_a_reason(provider: str, kv_dtype: str, scale: str, reason: str) -> None:
    assert reason in str(OP.unsupported(quantised_kv(PLAIN, kv_dtype, scale), provider))


def test_what_has_a_kernel_is_not_refused() -> None:
    every = [stored_as(dtype, scale) for dtype in (E4M3, INT8) for scale in ("tensor", "head")]
    assert [OP.unsupported(workload, "triton") for workload in every] == [None] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"v": torch.zeros(1, 4, 3, 16)},
            "k and v both of torch.float8_e4m3fn or torch.int8, got .*int8 and .*float32",
        ),
        ({"k": torch.zeros(1, 4, 3, 16), "v": torch.zeros(1, 4, 3, 16)}, "got torch.float32 and torch.float32"),
        ({"k_scale": None}, r"wanted k_scale float32 \[1\] or \[3\], one a KV head, got None"),
        ({"v_scale": torch.ones(2)}, r"wanted v_scale .*, got \[2\] torch.float32"),
        ({"v_scale": torch.ones(3, dtype=torch.float64)}, r"wanted v_scale .*, got \[3\] torch.float64"),
    ],
)
def test_caches_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    cache = torch.zeros(1, 4, 3, 16, dtype=INT8)
    given: dict[str, Any] = {"k": cache, "v": cache, "k_scale": torch.ones(1), "v_scale": torch.ones(3), "arch": 90}
    check_stored(**given)
    with pytest.raises(ValueError, match=message):
        check_stored(**given | changes)


def test_gpus_that_convert_no_e4m3_refuse_it_and_take_int8() -> None:
    for dtype in (E4M3, INT8):
        cache = torch.zeros(1, 4, 3, 16).to(dtype)
        check_stored(cache, cache, torch.ones(1), torch.ones(1), 89)
    check_stored(cache, cache, torch.ones(1), torch.ones(1), 80)
    with pytest.raises(UnsupportedError, match="sm_86 converts no float8_e4m3fn, as sm_89 and newer do"):
        check_stored(cache.to(E4M3), cache.to(E4M3), torch.ones(1), torch.ones(1), 86)


def test_e4m3_is_compiled_ahead_only_for_gpus_that_convert_it() -> None:
    def kinds(workloads: list[Workload]) -> set[str]:
        return {workload.kv_dtype for workload in workloads}

    for arch, wanted in ((80, {"", "int8"}), (90, {"", "int8", "float8_e4m3fn"})):
        assert kinds([job.workload for job in jobs([OP], [arch])]) == wanted
        assert kinds([workload for group in groups(arch) for _, workload, _ in group]) == wanted


def test_buckets_of_plain_caches_are_what_they_were_and_stored_ones_their_own() -> None:
    assert bucket_of(torch.float16, 128, 8) == bucket_of(torch.float16, 128, 8, stored=torch.float16)
    names = [bucket_of(torch.float16, 128, 8, stored=stored) for stored in (torch.float16, E4M3, INT8)]
    assert len(set(names)) == 3 and all(name[:3] == names[0] for name in names)
    keys = {OP.bucket(workload, 90) for workload in (PLAIN, stored_as(E4M3, "head"), stored_as(INT8, "head"))}
    assert len(keys) == 3
    assert OP.bucket(stored_as(INT8, "tensor"), 90) == OP.bucket(stored_as(INT8, "head"), 90)
