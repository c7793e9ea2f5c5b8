"""Every launch of the suites' Triton cases, at full size, through Triton's own driver against the stub libcuda."""

from __future__ import annotations

from pathlib import Path

import pytest
from stub_cuda import TRITONS, problems, run_cases

from bench.case import Case
from bench.suites import suite_cases
from kernels.registry import OPS


def triton_cases(suite: str) -> list[Case]:
    """Of a suite, and the ops' own small and ragged ones."""
    ops = [op for op in OPS if "triton" in op.providers]
    small = [Case(op, "triton", workload) for op in ops for workload in op.check_workloads]
    cases = [case for case in suite_cases(suite, ops) if case.provider == "triton"] + small
    return [case for case in cases if not case.op.unsupported(case.workload, "triton")]


@pytest.mark.parametrize(("triton", "suite"), [("installed", "full"), ("3.6.0", "standard")])
def test_every_launch_is_one_that_the_driver_takes(triton: str, suite: str) -> None:
    path: Path | None = TRITONS[triton]
    if path is not None and not (path / "triton").is_dir():
        pytest.skip(f"no Triton in {path}: make .triton/{path.name}")
    assert problems(run_cases(triton_cases(suite), path)) == []
