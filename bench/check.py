"""The error rule: a provider's output against the float64 truth, with plain torch in the same precision as yardstick.

max error <= 2 x the yardstick's + 4 eps x max|truth|, and RMS error <= 1.5 x the yardstick's + eps x RMS(truth),
where eps is that of the output's dtype. Both scale with the truth, so an all-zero output of tiny values fails too.
A NaN anywhere fails: it never exceeds a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.spec import Inputs, Op

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
NAMES = ("out", "lse")
"""Of an op's outputs in order."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check found: `problem` is '' when the output is right; figures are kept either way."""

    problem: str = ""
    figures: dict[str, float] = field(default_factory=dict)


@contextmanager
def poisoned() -> Iterator[None]:
    """Uninitialised memory reads as NaN inside, so that an output nobody wrote cannot pass."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms would import inductor, seconds of it
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def check_case(op: Op, provider: Callable[..., Any], inputs: Inputs) -> Verdict:
    """Runs a provider once on `inputs` and judges what it returns; large cases by the op's sample.

    An input that the op does not write must come back as it was, or the truth would be that of other inputs.
    """
    op.validate(**inputs)
    fewer, cut = op.sample(inputs)
    whole = fewer is inputs
    # What the op writes is judged against what it was before, or a stray write would be in the truth too.
    fewer = fewer | {name: fewer[name].clone() for name in op.writes}
    before = fingerprints(op, inputs)
    with poisoned():
        got = provider(**inputs)
    changed = [name for name, print_ in fingerprints(op, inputs).items() if print_ != before[name]]
    if changed:
        return Verdict(f"the provider changed its input {', '.join(changed)}")
    if not whole and all(isinstance(output, torch.Tensor) for output in _tuple(got)):
        if problem := _wrong_shape(_tuple(got), op, inputs):
            return Verdict(problem)
        got = cut(got)
    return judge(_tuple(got), _tuple(op.eager(**fewer)), _tuple(op.reference(**fewer)))


def _wrong_shape(got: tuple[torch.Tensor, ...], op: Op, inputs: Inputs) -> str:
    """What is wrong with the whole outputs' shapes, which a sample of them cannot show; '' when nothing is.

    Raises:
        ValueError: the op's reference cannot tell shapes alone.
    """
    shapes = {name: v.to("meta") if isinstance(v, torch.Tensor) else v for name, v in inputs.items()}
    try:
        truth = _tuple(op.reference(**shapes))
    except Exception as error:
        raise ValueError(
            f"op {op.name} checks a sample, so its reference must run on the meta device, where tensors have a shape "
            f"and no values: {type(error).__name__}: {error}"
        ) from error
    wrong = [
        f"{name}: is {list(value.shape)}, wanted {list(exact.shape)}"
        for name, value, exact in zip(NAMES, got, truth, strict=False)
        if value.shape != exact.shape
    ]
    return "; ".join(wrong)


def fingerprints(op: Op, inputs: Inputs) -> dict[str, int]:
    """A sum over the bits of each input that the op must not write: cheap on a GPU, and no copy of the input."""
    kept = {n: v for n, v in inputs.items() if isinstance(v, torch.Tensor) and n not in op.writes}
    return {name: int(value.view(_BITS[value.element_size()]).sum(dtype=torch.int64)) for name, value in kept.items()}


def judge(got: tuple[Any, ...], eager: tuple[Any, ...], truth: tuple[Any, ...]) -> Verdict:
    """Judges each output that the provider returned, in the reference's order.

    Args:
        got: the provider's outputs; it may leave out the last ones.
        eager: the yardstick's.
        truth: float64.

    Raises:
        ValueError: an output without a yardstick or a name would go unjudged.
    """
    if len(eager) != len(truth) or len(truth) > len(NAMES):
        raise ValueError(f"{len(eager)} yardsticks for {len(truth)} outputs of {', '.join(NAMES)}")
    figures: dict[str, float] = {}
    problems: list[str] = []
    if not 1 <= len(got) <= len(truth):
        return Verdict(f"{len(got)} outputs, wanted 1 to {len(truth)}")
    for name, value, yardstick, exact in zip(NAMES, got, eager, truth, strict=False):
        problem, found = _judge_one(value, yardstick, exact)
        figures |= {f"{name}_{figure}": number for figure, number in found.items()}
        if problem:
            problems.append(f"{name}: {problem}")
    return Verdict("; ".join(problems), figures)


def _judge_one(got: Any, eager: torch.Tensor, truth: torch.Tensor) -> tuple[str, dict[str, float]]:
    if not isinstance(got, torch.Tensor):
        return f"is {type(got).__name__}, wanted a tensor", {}
    if got.shape != truth.shape or got.dtype != eager.dtype:
        wanted = f"{list(truth.shape)} {eager.dtype}"
        return f"is {list(got.shape)} {got.dtype}, wanted {wanted}", {}
    if truth.isnan().any():
        return "the reference itself holds NaN: no verdict is possible", {}
    value = got.double()
    infinite = truth.isinf()
    if not torch.equal(value[infinite], truth[infinite]):
        return "differs from the reference where that is infinite", {}
    value, exact = value[~infinite], truth[~infinite]
    wrong = int((~value.isfinite()).sum())
    if wrong:
        return f"{wrong} of {exact.numel()} values are NaN or infinite, the reference's are not", {}
    yardstick = eager.double()[~infinite]
    if not yardstick.isfinite().all():
        return "the yardstick is NaN or infinite where the reference is not: no verdict is possible", {}
    return _against_limits(value, yardstick, exact, torch.finfo(got.dtype).eps)


def _against_limits(
    value: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, eps: float
) -> tuple[str, dict[str, float]]:
    if exact.numel() == 0:
        return "", {}
    figures = {
        "max_error": _max(value - exact),
        "max_limit": 2 * _max(eager - exact) + 4 * eps * _max(exact),
        "rms_error": _rms(value - exact),
        "rms_limit": 1.5 * _rms(eager - exact) + eps * _rms(exact),
    }
    for kind in ("max", "rms"):
        if not figures[f"{kind}_error"] <= figures[f"{kind}_limit"]:
            return f"{kind} error {figures[f'{kind}_error']:.3g} over {figures[f'{kind}_limit']:.3g}", figures
    return "", figures


def _max(values: torch.Tensor) -> float:
    return float(values.abs().max())


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def _tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
