"""Inputs: the same from the same seed, normal(0, 1), stored in the dtype that a compute dtype means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels import inputs
from kernels.inputs import Sampler, torch_dtype
from kernels.registry import OPS, ROOF_OPS
from kernels.spec import Op

EVERY_OP = (*OPS, *ROOF_OPS)
OF_ONE_INPUT = ("quantise_fp8", "silu_mul")


def floating(op: Op, seed: int, dtype: str) -> dict[str, torch.Tensor]:
    scale = op.describe_axes({axis: default or 1 for axis, default in op.axes.items()}, dtype, ()).scale
    made = op.make_inputs(replace(op.check_workloads[0], dtype=dtype, scale=scale), "cpu", seed)
    return {n: v.float() for n, v in made.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}


@pytest.mark.parametrize("op", EVERY_OP, ids=lambda op: op.name)
def test_a_seed_gives_its_values_and_no_others(op: Op) -> None:
    for dtype in op.dtypes:
        first, again, other = (floating(op, seed, dtype) for seed in (7, 7, 8))
        for name, tensor in first.items():
            torch.testing.assert_close(tensor, again[name], rtol=0, atol=0, equal_nan=True)
            assert name == "y" or not torch.equal(tensor, other[name])


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_inputs_of_one_problem_are_drawn_apart(op: Op) -> None:
    drawn = [tensor.flatten()[:8] for tensor in floating(op, 0, "float32").values()]
    assert len({tuple(values.tolist()) for values in drawn}) == len(drawn) >= (1 if op.name in OF_ONE_INPUT else 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_are_normal_with_mean_0_and_deviation_1(dtype: torch.dtype) -> None:
    """Of 200,000: the mean within 4 / sqrt(n) of 0; 68.27 % within one deviation, give or take 0.5 points."""
    values = Sampler("cpu", 0).normal((200, 1000), dtype).double()
    assert abs(float(values.mean())) < 4 / 200_000**0.5
    assert float(values.std()) == pytest.approx(1, abs=0.01)
    assert float((values.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.005)
    assert inputs.DISTRIBUTION == "normal(0, 1)"


def test_tfloat32_is_stored_as_float32_and_others_under_their_own_name() -> None:
    assert torch_dtype("tfloat32") is torch_dtype("float32") is torch.float32
    assert (torch_dtype("bfloat16"), torch_dtype("float8_e4m3fn")) == (torch.bfloat16, torch.float8_e4m3fn)
    for op in OPS:
        if "tfloat32" in op.dtypes:
            assert {tensor.dtype for tensor in floating(op, 0, "tfloat32").values()} == {torch.float32}


@pytest.mark.parametrize("name", ["nonsense", "randn"])
def test_a_name_that_is_no_dtype_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is no torch dtype"):
        torch_dtype(name)


def test_a_large_tensor_is_never_held_in_float32_beside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 GB of bfloat16 keys would need another 64 GB otherwise."""
    drawn_at_once: list[int] = []
    randn = torch.randn

    def watched(*size: Any, **how: Any) -> torch.Tensor:
        values = randn(*size, **how)
        drawn_at_once.append(values.numel())
        return values

    monkeypatch.setattr(torch, "randn", watched)
    monkeypatch.setattr(inputs, "DRAWN_AT_ONCE", 100)
    values = Sampler("cpu", 0).normal((3, 333), torch.bfloat16)
    assert drawn_at_once == [100] * 9 + [99]
    assert values.shape == (3, 333)
    assert float(values.double().std()) == pytest.approx(1, abs=0.1)
    assert values.flatten()[:100].tolist() != values.flatten()[100:200].tolist()


@pytest.mark.parametrize("op", EVERY_OP, ids=lambda op: op.name)
def test_meta_inputs_have_the_shapes_strides_and_dtypes_of_real_ones(op: Op) -> None:
    for workload in op.check_workloads:
        meta, real = op.make_inputs(workload, "meta", 0), op.make_inputs(workload, "cpu", 0)
        assert meta.keys() == real.keys()
        for name, value in real.items():
            if not isinstance(value, torch.Tensor):
                assert meta[name] == value
                continue
            assert (meta[name].shape, meta[name].stride(), meta[name].dtype) == (
                value.shape,
                value.stride(),
                value.dtype,
            )
