"""Every launch of the suites' Triton cases, at full size, through Triton's own driver against the stub libcuda.

The oldest Triton launches suite standard, since what differs there is how a launch is made, and not its sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from stub_cuda import TRITONS, problems, run_cases

from bench.case import Case
from bench.compile import compile_driver
from bench.suites import suite_cases
from kernels import matmul_configs
from kernels.registry import OPS
from kernels.spec import Op

ARCH = 90
SUITES = {"installed": "full", "3.6.0": "standard"}
TRITON_OPS = [op for op in OPS if "triton" in op.providers]
PARTS = 2
"""Of the ops, so that two processes can compile."""


def triton_cases(ops: Sequence[Op], suite: str) -> list[Case]:
    """Of a suite, and the ops' own small and ragged ones."""
    small = [Case(op, "triton", workload) for op in ops for workload in op.check_workloads]
    cases = [case for case in suite_cases(suite, ops) if case.provider == "triton"] + small
    return [case for case in cases if not case.op.unsupported(case.workload, "triton")]


def every_configuration(cases: Sequence[Case]) -> list[Case]:
    """Each configuration that is not the default of some case, at the first case of its op and dtype that has it."""
    found: dict[tuple[str, str, object], Case] = {}
    for case in cases:
        for config in case.op.configs(case.workload, ARCH)[1:]:
            found.setdefault((case.op.name, case.workload.dtype, config), replace(case, config=config))
    return list(found.values())


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("triton", SUITES)
def test_every_launch_is_one_that_the_driver_takes(triton: str, part: int) -> None:
    with compile_driver(ARCH):  # some configurations are chosen by the number of SMs
        others = every_configuration(cases := triton_cases(ops := TRITON_OPS[part::PARTS], SUITES[triton]))
    if triton == "installed":
        assert {case.op.name for case in others} == {op.name for op in ops}
    else:  # which offers others in their place: see kernels.matmul_configs.HALVES
        others = [case for case in others if case.config not in matmul_configs.SPECIALISED]
    assert problems(run_cases([*cases, *others], TRITONS[triton])) == []
