"""Every Triton provider compiled for every arch, by its own launch: what must hold of the code under each Triton.

`make test` compiles for sm_90; `make compile-matrix` for every arch, under the oldest and the newest Triton too.
"""

from __future__ import annotations

from typing import Any

import pytest
import triton

from bench import compile_jobs
from bench.case import Case
from bench.compile import LIMITS, REGISTERS, Compiled, compile_case
from bench.suites import suite_workloads
from kernels.quantisation import least_arch
from kernels.registry import OPS, op_named
from kernels.spec import UnsupportedError

TRITON_OPS = [op for op in OPS if "triton" in op.providers]
ARCHS = (pytest.param(80, marks=pytest.mark.matrix), 90, pytest.param(100, marks=pytest.mark.matrix))
PUT_ASIDE = {"3.6": 8, "3.9": 2}.get(triton.__version__[:3], 0)
"""Values that may wait in local memory: under Triton 3.6 those that paged decode without splits stores before its walk
over keys and loads after it, under 3.9 those of one matmul_decode."""
TYPICAL = suite_workloads("techniques") | suite_workloads("standard")


def fits(compiled: Compiled) -> bool:
    """Whether a block of it can start: shared memory and, given in pieces of 8 a thread, registers."""
    registers = -(-compiled.registers // 8) * 8 * 32 * compiled.num_warps
    return compiled.shared_bytes <= LIMITS[compiled.arch].shared_bytes and registers <= REGISTERS


def keeps_its_registers(compiled: Compiled) -> bool:
    """Whether it touches no local memory, or under some Tritons hardly any."""
    few = max(compiled.spill_loads, compiled.spill_stores) <= PUT_ASIDE
    return few and (compiled.stack_bytes == 0 or PUT_ASIDE > 0)


def typical() -> list[Case]:
    """Of each op the smallest and the largest workload, by FLOPs, of suite standard or else techniques."""
    ordered = {op.name: sorted(TYPICAL.get(op.name, ()), key=lambda w, op=op: op.work(w).flops) for op in TRITON_OPS}
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
    """Typical cases, and rows of odd length, with each of their launch configurations on sm_90."""
    cases = [*typical(), asked("matmul_decode", "bfloat16", M=64, N=8190, K=8190)]
    return [(case, config) for case in cases for config in case.op.configs(case.workload, 90)]


def asked(op: str, dtype: str, **axes: int) -> Case:
    """A case of the Triton provider at the sizes given, the op's defaults for the rest."""
    found = op_named(op)
    sizes = {axis: size for axis, size in found.axes.items() if size is not None} | axes
    return Case(found, "triton", found.describe_axes(sizes, dtype, ("of a shape bucket",)))


def buckets() -> list[Case]:
    """What chooses among default configurations; float16 compiles as bfloat16 does. At the end the most packed rows."""
    cases = [Case(op, "triton", w) for op in TRITON_OPS for w in compile_jobs.buckets(op) if w.dtype != "float16"]
    for dtype in ("bfloat16", "float32"):
        for width in (64, 128, 256):
            cases.append(asked("attention_decode", dtype, kv_len=8192, head_dim=width, q_len=16, kv_heads=2))
    expanded = {"q_heads": 128, "kv_heads": 128, "head_dim": 192, "v_head_dim": 128}  # MLA's prefill
    return [*cases, asked("attention_prefill", "bfloat16", q_len=4096, **expanded)]


def compiled_for(case: Case, arch: int) -> list[Compiled]:
    """The kernels of a case; none where the launch says that GPUs of that arch cannot take it."""
    if arch >= least_arch(case.workload):
        return compile_case(case, arch)
    with pytest.raises(UnsupportedError, match=f"sm_{arch} converts no float8_e4m3fn, as sm_89 and newer do"):
        compile_case(case, arch)
    return []


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", buckets(), ids=lambda case: case.id)
def test_a_default_configuration_fits_and_spills_nothing(case: Case, arch: int) -> None:
    """Local memory counted as LDL and STL in SASS and as STACK: cuobjdump's LOCAL:0 proves nothing."""
    for compiled in compiled_for(case, arch):
        assert fits(compiled), compiled
        assert keeps_its_registers(compiled), compiled


@pytest.mark.matrix
@pytest.mark.parametrize("case", typical(), ids=lambda case: case.id)
def test_a_typical_case_fits_an_l40s(case: Case) -> None:
    assert all(fits(compiled) for compiled in compile_case(case, 89))


@pytest.mark.parametrize("op", ("matmul", "attention_prefill"))
def test_prefill_on_sm_90_is_wgmma_fed_by_tma(op: str) -> None:
    sizes = {"matmul": {"M": 8192, "N": 8192, "K": 8192}, "attention_prefill": {"q_len": 4096}}[op]
    (compiled,) = compile_case(asked(op, "bfloat16", **sizes), 90)
    assert "wgmma.mma_async" in compiled.ptx and "cp.async.bulk.tensor" in compiled.ptx


@pytest.mark.parametrize("arch", ARCHS[:2])
@pytest.mark.parametrize("case", checked(), ids=lambda case: case.id)
def test_a_ragged_case_compiles(case: Case, arch: int) -> None:
    assert all(fits(compiled) for compiled in compiled_for(case, arch))


@pytest.mark.parametrize(
    ("case", "config"), configured(), ids=lambda value: value.id if isinstance(value, Case) else str(value)
)
def test_every_configuration_compiles_without_spills(case: Case, config: Any) -> None:
    for compiled in compile_case(case, 90, config):
        assert fits(compiled), compiled
        assert keeps_its_registers(compiled), compiled
