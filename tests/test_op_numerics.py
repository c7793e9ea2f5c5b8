"""The matmul and roof ops against independent truth: loops in float64, values worked out by hand, sizes off a tile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.check import check_case
from kernels import matmul, matmul_decode, roofs
from kernels.spec import Op

MATMULS = (matmul.OP, matmul_decode.OP)
EPS = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


def ask(op: Op, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
    """a [M, K] times b [K, N] by the reference, the yardstick and every provider that can run it here."""
    axes = {"M": a.shape[0], "N": b.shape[1], "K": a.shape[1]}
    workload = op.describe_axes(axes, str(a.dtype).removeprefix("torch."), ())
    able = [p for p in op.providers if p not in op.cuda_only and op.unsupported(workload, p) is None]
    everyone: dict[str, Callable[..., Any]] = {"reference": op.reference, "eager": op.eager}
    everyone |= {provider: op.providers[provider] for provider in able}
    operands = (a, b) if op is matmul.OP else (a, b.t())
    return {who: answer(*operands) for who, answer in everyone.items()}


def fits(op: Op, M: int) -> bool:
    return op is matmul.OP or M <= 64


def by_loops(a: torch.Tensor, b: torch.Tensor) -> npt.NDArray[np.float64]:
    """The product from its definition, one output and one k at a time."""
    left, right = a.double().numpy(), b.double().numpy()
    out = np.zeros((left.shape[0], right.shape[1]))
    for m, n in np.ndindex(out.shape):
        for k in range(left.shape[1]):
            out[m, n] += left[m, k] * right[k, n]
    return out


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def all_equal(answers: dict[str, torch.Tensor], value: float) -> None:
    assert "torch" in answers
    for who, out in answers.items():
        assert (out == value).all(), f"{who}: {out.flatten()[:5].tolist()}, wanted {value} everywhere"


@pytest.mark.parametrize("op", MATMULS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("M", "N", "K"), [(1000, 999, 1001), (33, 17, 31), (5, 3, 1)])
def test_k01_ones_give_k_exactly_where_k_is_no_multiple_of_a_tile(
    op: Op, dtype: torch.dtype, M: int, N: int, K: int
) -> None:
    M = M if fits(op, M) else 61
    all_equal(ask(op, torch.ones(M, K, dtype=dtype), torch.ones(N, K, dtype=dtype).t()), K)


def test_k01_random_inputs_are_within_a_hundredth_of_float32() -> None:
    a, b = draw(1, 300, 1001).half(), draw(2, 199, 1001).half().t()
    expected = a.numpy().astype(np.float32) @ b.numpy().astype(np.float32)
    for who, out in ask(matmul.OP, a, b).items():
        np.testing.assert_allclose(out.float().numpy(), expected, rtol=1e-2, atol=1e-2 * expected.std(), err_msg=who)


@pytest.mark.parametrize("op", MATMULS, ids=lambda op: op.name)
@pytest.mark.parametrize("M", [1, 2, 7, 15, 17])
def test_k04_rows_and_columns_below_a_tensor_core_tile(op: Op, M: int) -> None:
    all_equal(ask(op, torch.ones(M, 16), torch.ones(8, 16).t()), 16)
    a, b = draw(M, M, 16), draw(M + 50, 8, 16).t()
    for who, out in ask(op, a, b).items():
        np.testing.assert_allclose(out.double().numpy(), by_loops(a, b), rtol=1e-5, atol=1e-5, err_msg=who)


@pytest.mark.parametrize("op", MATMULS, ids=lambda op: op.name)
@pytest.mark.parametrize("size", [16, 17, 48])
def test_k53_sizes_of_one_tile_and_not(op: Op, size: int) -> None:
    a, b = draw(size, size, size), draw(size + 50, size, size).t()
    for who, out in ask(op, a, b).items():
        np.testing.assert_allclose(out.double().numpy(), by_loops(a, b), rtol=1e-5, atol=1e-5, err_msg=who)


@pytest.mark.parametrize("op", MATMULS, ids=lambda op: op.name)
def test_k45_float32_is_not_tf32(op: Op) -> None:
    """TF32 keeps 10 bits after the point and makes 1 + 2^-12 one."""
    all_equal(ask(op, torch.full((3, 1), 1 + 2.0**-12), torch.ones(1, 5)), 1.000244140625)


@pytest.mark.parametrize("op", MATMULS, ids=lambda op: op.name)
def test_sums_of_half_precision_products_are_kept_in_float32(op: Op) -> None:
    """2048 + 1 is 2048 in float16 and 256 + 1 is 256 in bfloat16: a sum kept in either would stop there."""
    for dtype, ones in ((torch.float16, 4096), (torch.bfloat16, 4096)):
        all_equal(ask(op, torch.ones(2, ones, dtype=dtype), torch.ones(3, ones, dtype=dtype).t()), ones)


@pytest.mark.parametrize("op", MATMULS, ids=lambda op: op.name)
@pytest.mark.parametrize("layout", ["k fast", "n fast", "every other row", "transposed left"])
def test_strided_inputs_give_what_contiguous_ones_give(op: Op, layout: str) -> None:
    a, b = draw(1, 9, 21), draw(2, 21, 13)
    if layout == "k fast":
        b = b.t().contiguous().t()
    elif layout == "every other row":
        a, b = draw(1, 18, 21)[::2], draw(2, 21, 26)[:, ::2]
    elif layout == "transposed left":
        a = a.t().contiguous().t()
    for who, out in ask(op, a, b).items():
        np.testing.assert_allclose(out.double().numpy(), by_loops(a, b), rtol=1e-5, atol=1e-5, err_msg=who)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 40), st.sampled_from(sorted(EPS, key=str)))
def test_any_shape_and_dtype_is_the_definition_rounded_once(M: int, N: int, K: int, dtype: torch.dtype) -> None:
    a, b = draw(K, M, K).to(dtype), draw(K + 50, N, K).to(dtype).t()
    expected = by_loops(a, b)
    rounding = EPS[dtype] * np.abs(expected) + 2.0**-18 * np.sqrt(K)
    for op in MATMULS:
        for who, out in ask(op, a, b).items():
            assert out.dtype == (torch.float64 if who == "reference" else dtype)
            assert (np.abs(out.double().numpy() - expected) <= rounding).all(), (op.name, who)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 64), st.integers(1, 150), st.integers(1, 150), st.sampled_from(("float32", "float16")))
def test_any_shape_passes_the_error_rule(M: int, N: int, K: int, dtype: str) -> None:
    for op in MATMULS:
        workload = op.describe_axes({"M": M, "N": N, "K": K}, dtype, ())
        inputs = op.make_inputs(workload, "cpu", 0)
        for provider in set(op.providers) - set(op.cuda_only):
            if op.unsupported(workload, provider) is None:
                assert check_case(op, op.providers[provider], inputs).problem == "", (op.name, provider)


def test_roof_ops_read_copy_and_launch_what_they_say() -> None:
    """1 + 2 + .. + 1001 = 501,501, exact in float32; a copy fills what was NaN; a launch leaves its one value 0."""
    numbers = torch.arange(1.0, 1002)
    for op, inputs, expected in (
        (roofs.PEAK_READ, {"x": numbers}, torch.tensor(501501.0)),
        (roofs.PEAK_COPY, {"x": numbers, "y": torch.full((1001,), math.nan)}, numbers),
        (roofs.EMPTY_LAUNCH, {"x": torch.ones(1)}, torch.zeros(1)),
    ):
        assert torch.equal(op.reference(**inputs), expected.double())
        for provider in set(op.providers) - set(op.cuda_only):
            assert torch.equal(op.providers[provider](**inputs), expected), (op.name, provider)
            assert "y" not in inputs or torch.equal(inputs["y"], expected)
