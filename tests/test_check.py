"""bench.check: the error rule worked by hand, and outputs that must not pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.check import Verdict, check_case, judge, poisoned
from kernels import attention_decode, matmul
from kernels.spec import Inputs, Op

EPS32 = 2.0**-23
INF, NAN = math.inf, math.nan


def f32(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def verdict(got: Any, eager: torch.Tensor, truth: torch.Tensor) -> Verdict:
    return judge((got,), (eager,), (truth,))


def problem_of(provider: Callable[..., Any], dtype: str = "float32", K: int = 64, op: Op = matmul.OP) -> str:
    workload = matmul.describe_axes({"M": 16, "N": 32, "K": K}, dtype, ("test",))
    return check_case(op, provider, matmul.make_inputs(workload, "cpu", 3)).problem


def product(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
    return a @ b


# The rule: truth 4 everywhere, yardstick off by 0.5 everywhere.
# max limit = 2 x 0.5 + 4 eps x 4 = 1 + 2^-19; RMS limit = 1.5 x 0.5 + eps x 4 = 0.75 + 2^-21.
TRUTH, EAGER = f64(4, 4, 4, 4), f32(4.5, 4.5, 4.5, 4.5)
MAX_LIMIT, RMS_LIMIT = 1 + 2.0**-19, 0.75 + 2.0**-21
ULP = 2.0**-21
"""Of float32 between 4 and 8."""


def test_maximum_limit_is_twice_the_yardstick_and_four_eps_of_the_largest_truth() -> None:
    at, over = f32(4 + MAX_LIMIT, 4, 4, 4), f32(4 + MAX_LIMIT + ULP, 4, 4, 4)
    assert verdict(at, EAGER, TRUTH).problem == ""
    assert verdict(over, EAGER, TRUTH).problem == "out: max error 1 over 1"
    figures = verdict(at, EAGER, TRUTH).figures
    assert (figures["out_max_error"], figures["out_max_limit"]) == (MAX_LIMIT, MAX_LIMIT)


def test_rms_limit_is_one_and_a_half_of_the_yardstick_and_eps_of_the_truths_rms() -> None:
    at, over = f32(*[4 + RMS_LIMIT] * 4), f32(*[4 + RMS_LIMIT + ULP] * 4)
    assert verdict(at, EAGER, TRUTH).problem == ""
    assert verdict(over, EAGER, TRUTH).problem.startswith("out: rms error 0.75 over 0.75")
    figures = verdict(at, EAGER, TRUTH).figures
    assert (figures["out_rms_error"], figures["out_rms_limit"]) == (RMS_LIMIT, RMS_LIMIT)


def test_eps_is_that_of_the_outputs_dtype() -> None:
    """An exact yardstick leaves 4 eps x 1 of the maximum: 2^-5 for bfloat16, 2^-8 for float16."""
    truth, ones = f64(*[1.0] * 64), torch.ones(64)
    for dtype, limit in ((torch.bfloat16, 2.0**-5), (torch.float16, 2.0**-8), (torch.float32, 2.0**-21)):
        figures = verdict(ones.to(dtype), ones.to(dtype), truth).figures
        assert (figures["out_max_limit"], figures["out_rms_limit"]) == (limit, limit / 4)


@pytest.mark.parametrize("scale", [2.0**-100, 1.0, 2.0**100])
def test_both_limits_scale_with_the_truth(scale: float) -> None:
    got = f32(4 + MAX_LIMIT, 4, 4, 4)
    assert verdict(got * scale, EAGER * scale, TRUTH * scale).problem == ""
    assert verdict((got + f32(ULP, 0, 0, 0)) * scale, EAGER * scale, TRUTH * scale).problem != ""


def test_zeros_for_tiny_values_fail() -> None:
    """K54: a softmax over 393,216 columns is 2.54e-6 everywhere, far under any absolute tolerance."""
    logits = torch.zeros(393_216)
    truth, eager = logits.double().softmax(0), logits.softmax(0)
    assert float(truth[0]) == pytest.approx(2.54e-6, rel=1e-2)
    assert verdict(eager, eager, truth).problem == ""
    assert "max error 2.54e-06 over" in verdict(torch.zeros_like(eager), eager, truth).problem
    half = eager.half()
    assert verdict(half, half, truth).problem == ""
    assert "error" in verdict(torch.zeros_like(half), half, truth).problem


def test_a_nan_never_passes_whoever_has_it() -> None:
    """K31: output NaN; reference NaN; both NaN."""
    numbers, nans = f32(1, 2), f32(NAN, 2)
    assert "1 of 2 values are NaN" in verdict(nans, numbers, f64(1, 2)).problem
    assert "the reference itself holds NaN" in verdict(numbers, numbers, f64(NAN, 2)).problem
    assert "the reference itself holds NaN" in verdict(nans, nans, f64(NAN, 2)).problem


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_yardstick_without_a_value_allows_no_verdict_and_leaves_no_figure_that_json_refuses(bad: float) -> None:
    """An infinite limit would pass anything, and NaN or infinity in a record ends the run that writes it."""
    found = verdict(f32(100, 2), f32(bad, 2), f64(1, 2))
    assert "the yardstick is NaN or infinite where the reference is not" in found.problem
    assert all(math.isfinite(figure) for figure in found.figures.values())


@pytest.mark.parametrize("extreme", [INF, -INF])
def test_infinity_for_a_number_fails(extreme: float) -> None:
    assert "values are NaN or infinite" in verdict(f32(extreme, 2), f32(1, 2), f64(1, 2)).problem


def test_log_sum_exp_of_a_masked_row_must_be_minus_infinity() -> None:
    exact, eager = f64(0.5, -INF), f32(0.5, -INF)
    assert verdict(f32(0.5, -INF), eager, exact).problem == ""
    for wrong in (0.0, INF, NAN, -1e30):
        assert "differs from the reference where that is infinite" in verdict(f32(0.5, wrong), eager, exact).problem
    assert verdict(f32(-INF, -INF), f32(-INF, -INF), f64(-INF, -INF)).problem == ""


@pytest.mark.parametrize(
    ("got", "told"),
    [
        (torch.zeros(3), r"is \[3\] torch.float32, wanted \[2\] torch.float32"),
        (torch.zeros(2, 1), r"is \[2, 1\] torch.float32, wanted \[2\] torch.float32"),
        (torch.zeros(2, dtype=torch.float64), r"is \[2\] torch.float64, wanted \[2\] torch.float32"),
        (None, "is NoneType, wanted a tensor"),
        ([1.0, 2.0], "is list, wanted a tensor"),
    ],
)
def test_what_is_no_such_tensor_is_told_by_what_came_and_what_was_wanted(got: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        assert verdict(got, f32(1, 2), f64(1, 2)).problem == ""


def test_each_output_is_judged_and_named_and_the_last_may_be_left_out() -> None:
    right, wrong = (f32(1), f32(2)), (f32(9), f32(9))
    exact = (f64(1), f64(2))
    assert judge(right, right, exact).problem == judge(right[:1], right, exact).problem == ""
    assert judge((right[0], wrong[1]), right, exact).problem.startswith("lse: ")
    assert judge(wrong, right, exact).problem.split("; ")[1].startswith("lse: ")
    assert set(judge(wrong, right, exact).figures) == {
        f"{name}_{kind}_{what}" for name in ("out", "lse") for kind in ("max", "rms") for what in ("error", "limit")
    }
    assert judge((), right, exact).problem == "0 outputs, wanted 1 to 2"
    assert judge((*right, f32(0)), right, exact).problem == "3 outputs, wanted 1 to 2"


def test_no_output_goes_unjudged_for_want_of_a_yardstick_or_a_name() -> None:
    right, exact = (f32(1), f32(2)), (f64(1), f64(2))
    with pytest.raises(ValueError, match="1 yardsticks for 2 outputs"):
        judge((f32(1), f32(9)), right[:1], exact)
    with pytest.raises(ValueError, match="3 yardsticks for 3 outputs"):
        judge((*right, f32(9)), (*right, f32(3)), (*exact, f64(3)))


def test_torchs_own_product_passes() -> None:
    assert problem_of(product) == problem_of(product, "bfloat16") == problem_of(product, "float16") == ""


@pytest.mark.parametrize(
    ("provider", "told"),
    [
        (lambda a, b, **_: torch.zeros(16, 32), "max error"),
        (lambda a, b, **_: (a @ b) * 1.001, "error"),
        (lambda a, b, **_: torch.empty(16, 32), "512 of 512 values are NaN"),
        (lambda a, b, **_: torch.full((16, 32), NAN), "512 of 512 values are NaN"),
        (lambda a, b, **_: torch.full((16, 32), 12345.0), "max error"),
        (lambda a, b, **_: (a @ b).t(), "is [32, 16]"),
        (lambda a, b, **_: (a @ b).double(), "wanted [16, 32] torch.float32"),
        (lambda a, b, **_: None, "is NoneType"),
        (lambda a, b, **_: (a @ b)[:0], "is [0, 32]"),
    ],
)
def test_wrong_providers_are_found_out(provider: Callable[..., Any], told: str) -> None:
    """K11 among them: a sentinel, and memory that a rejected launch never wrote."""
    assert told in problem_of(provider)


def test_a_launch_that_writes_all_but_one_value_is_found_out() -> None:
    """K11: the last program of a grid is cut off; freed memory with the right answer in it must not stand in."""

    def nearly(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        right = a @ b
        out = torch.empty_like(right)
        out.view(-1)[:-1] = right.view(-1)[:-1]
        return out

    assert "1 of 512 values are NaN" in problem_of(nearly)


def test_poison_ends_with_the_block_in_whatever_mode_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = [2]
    monkeypatch.setattr(torch, "get_deterministic_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch, "set_deterministic_debug_mode", modes.append)
    with pytest.raises(KeyError), poisoned():
        raise KeyError
    assert modes == [2, "warn", 2]


def test_poison_reaches_every_way_to_leave_memory_unwritten() -> None:
    with poisoned():
        for made in (
            torch.empty(4),
            torch.empty_like(torch.ones(4)),
            torch.ones(4).new_empty(4),
            torch.empty_strided((4,), (1,)),
            torch.empty(4, dtype=torch.bfloat16),
        ):
            assert made.isnan().all()
        assert (torch.empty(4, dtype=torch.int32) == 2**31 - 1).all()


def in_bfloat16(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
    return (a.bfloat16() @ b.bfloat16()).float()


def in_tf32(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
    """Products of float32 cut to TF32's 10 bits of mantissa, as tensor cores take them, summed in float32."""
    return tf32(a) @ tf32(b)


def tf32(values: torch.Tensor) -> torch.Tensor:
    return (values.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("provider", [in_bfloat16, in_tf32])
@pytest.mark.parametrize("K", [1, 64, 4096])
def test_float32_that_is_secretly_less_precise_fails(provider: Callable[..., Any], K: int) -> None:
    assert "error" in problem_of(provider, K=K)


@pytest.mark.parametrize("provider", [in_bfloat16, in_tf32])
def test_one_plus_a_quarter_thousandth_tells_tf32_from_float32(provider: Callable[..., Any]) -> None:
    """K45: K=1, a = 1 + 2^-12, b = 1 is 1.000244140625 in float32 and 1.0 in TF32."""
    inputs = {"a": f32(1 + 2.0**-12)[:, None], "b": f32(1)[:, None], "allow_tf32": False}
    assert check_case(matmul.OP, matmul.matmul_torch, inputs).problem == ""
    assert float(provider(**inputs)) == 1.0
    found = check_case(matmul.OP, provider, inputs)
    assert "max error 0.000244 over 4.77e-07" in found.problem
    assert found.figures["out_max_error"] == 2.0**-12


def test_a_sample_of_a_large_case_is_judged_like_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "CHECK_IN_FULL", 0)
    monkeypatch.setattr(matmul, "SAMPLED_ROWS", 4)
    assert problem_of(product) == ""
    assert "error" in problem_of(lambda a, b, **_: torch.zeros(16, 32))
    assert problem_of(lambda a, b, **_: None) == "out: is NoneType, wanted a tensor"
    assert problem_of(lambda a, b, **_: (a @ b, None)) == "2 outputs, wanted 1 to 1"


def test_both_outputs_of_a_ragged_decode_with_an_empty_sequence_are_judged() -> None:
    workload = next(w for w in attention_decode.OP.check_workloads if 0 in w.kv_lens)
    inputs = attention_decode.make_inputs(workload, "cpu", 0)

    def with_lse(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
        def provider(**given: Any) -> tuple[torch.Tensor, torch.Tensor]:
            out, lse = attention_decode.attention_decode_eager(**given)
            return out, change(lse)

        return provider

    assert check_case(attention_decode.OP, with_lse(lambda lse: lse), inputs).problem == ""
    zeroed = with_lse(lambda lse: lse.masked_fill(lse.isinf(), 0))
    assert "lse: differs" in check_case(attention_decode.OP, zeroed, inputs).problem
    base_2 = with_lse(lambda lse: lse / math.log(2))
    assert "lse: max error" in check_case(attention_decode.OP, base_2, inputs).problem


def test_inputs_out_of_range_are_refused_before_the_provider_runs() -> None:
    def refuse(**inputs: Any) -> None:
        raise ValueError("kv_lens must lie in 0..7")

    def run_it(**inputs: Any) -> torch.Tensor:
        raise KeyError("the provider ran")

    inputs: Inputs = {"a": torch.ones(2, 2), "b": torch.ones(2, 2)}
    with pytest.raises(ValueError, match="kv_lens must lie"):
        check_case(replace(matmul.OP, validate=refuse), run_it, inputs)


def test_a_provider_that_changes_its_input_fails_even_when_its_output_fits_the_new_one() -> None:
    """Zeroed inputs and a zero output agree with each other; the truth of what was given is not zero."""

    def zeroing(a: torch.Tensor, b: torch.Tensor, **how: object) -> torch.Tensor:
        a.zero_()
        return a @ b

    workload = matmul.describe_axes({"M": 4, "N": 8, "K": 16}, "float32", ())
    verdict = check_case(matmul.OP, zeroing, matmul.make_inputs(workload, "cpu", 0))
    assert verdict.problem == "the provider changed its input a"
