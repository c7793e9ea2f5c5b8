"""Every Triton provider compiled for every arch, by its own launch: what must hold of the code under each Triton.

`make compile-matrix` runs this under the oldest and the newest supported Triton too.
"""

from __future__ import annotations

from typing import Any

import pytest

from bench.case import Case
from bench.compile import LIMITS, REGISTERS, Compiled, compile_case
from bench.cubin import count_instructions, in_loops
from bench.suites import suite_workloads
from kernels.registry import OPS

TRITON_OPS = [op for op in OPS if "triton" in op.providers]
PUT_ASIDE = 2
"""Values that may wait in local memory outside of loops: Triton 3.9's ptxas does that with one of matmul_decode."""
STANDARD = suite_workloads("standard")


def fits(compiled: Compiled) -> bool:
    """Whether a block of it can start: shared memory and, given in pieces of 8 a thread, registers."""
    registers = -(-compiled.registers // 8) * 8 * 32 * compiled.num_warps
    return compiled.shared_bytes <= LIMITS[compiled.arch].shared_bytes and registers <= REGISTERS


def keeps_its_registers(compiled: Compiled) -> bool:
    """Whether no loop of it touches local memory."""
    looping = in_loops(compiled.sass)
    if count_instructions(looping, "LDL") or count_instructions(looping, "STL"):
        return False
    return max(compiled.spill_loads, compiled.spill_stores) <= PUT_ASIDE


def typical() -> list[Case]:
    """Of each op the smallest and the largest workload of suite standard, by FLOPs."""
    ordered = {op.name: sorted(STANDARD.get(op.name, ()), key=lambda w, op=op: op.work(w).flops) for op in TRITON_OPS}
    return [Case(op, "triton", w) for op in TRITON_OPS for w in (ordered[op.name][:1] + ordered[op.name][-1:])]


def checked() -> list[Case]:
    """Of each op its own small and ragged workloads."""
    return [
        Case(op, "triton", workload)
        for op in TRITON_OPS
        for workload in op.check_workloads
        if not op.unsupported(workload, "triton")
    ]


def configured() -> list[tuple[Case, Any]]:
    """The typical cases with each of their launch configurations on sm_90."""
    return [(case, config) for case in typical() for config in case.op.configs(case.workload, 90)]


@pytest.mark.parametrize("arch", sorted(LIMITS))
@pytest.mark.parametrize("case", typical(), ids=lambda case: case.id)
def test_a_typical_case_compiles_for_each_arch(case: Case, arch: int) -> None:
    for compiled in compile_case(case, arch):
        assert fits(compiled), compiled
        assert arch != 90 or keeps_its_registers(compiled), compiled


@pytest.mark.parametrize("case", checked(), ids=lambda case: case.id)
def test_a_ragged_case_compiles(case: Case) -> None:
    assert all(fits(compiled) for arch in (80, 90) for compiled in compile_case(case, arch))


@pytest.mark.parametrize(
    ("case", "config"), configured(), ids=lambda value: value.id if isinstance(value, Case) else str(value)
)
def test_every_configuration_compiles_without_spills(case: Case, config: Any) -> None:
    for compiled in compile_case(case, 90, config):
        assert fits(compiled) and keeps_its_registers(compiled), compiled
