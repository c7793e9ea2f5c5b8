"""Every Triton provider by the interpreter: right, free of races, and the same whatever order its programs run in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from races import detect_races, grid_order
from toy_ops import TOY

from bench.case import Case
from bench.check import check_case, poisoned
from bench.interpret import PROVIDER, interpreted_cases
from kernels.registry import OPS
from kernels.spec import Inputs

CASES = interpreted_cases([*OPS, TOY])


def run(case: Case, inputs: Inputs, **chosen: Any) -> tuple[torch.Tensor, ...]:
    """The provider's outputs, in poisoned memory."""
    with poisoned():
        outputs = case.op.providers[case.provider](**inputs, **chosen)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def bits(outputs: tuple[torch.Tensor, ...]) -> list[bytes]:
    """The outputs' memory: equal bits, where NaN would differ from itself."""
    return [output.contiguous().view(torch.uint8).numpy().tobytes() for output in outputs]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_right_without_races_in_any_order(case: Case) -> None:
    inputs = case.op.make_inputs(case.workload, "cpu", 0)
    kept: list[tuple[torch.Tensor, ...]] = []

    def provider(**given: Any) -> Any:
        kept.append(run(case, given))
        return kept[0] if len(kept[0]) > 1 else kept[0][0]

    with detect_races() as races:
        verdict = check_case(case.op, provider, inputs)
    assert not verdict.problem, verdict
    assert races == []
    for order, seed in (("reversed", 0), ("shuffled", 1)):
        with grid_order(order, seed):
            assert bits(run(case, inputs)) == bits(kept[0]), order


def configured() -> list[tuple[Case, Any]]:
    """The first case of each op with each of its launch configurations."""
    first = {case.op.name: case for case in reversed(CASES)}
    return [(case, config) for case in first.values() for config in case.op.configs(case.workload, 90)]


@pytest.mark.parametrize(
    ("case", "config"), configured(), ids=lambda value: value.id if isinstance(value, Case) else str(value)
)
def test_every_configuration_is_right(case: Case, config: Any) -> None:
    def provider(**given: Any) -> Any:
        return case.op.providers[PROVIDER](**given, config=config)

    with detect_races() as races:
        verdict = check_case(case.op, provider, case.op.make_inputs(case.workload, "cpu", 1))
    assert not verdict.problem, verdict
    assert races == []
