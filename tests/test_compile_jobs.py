"""bench.compile_jobs and `bench compile`: what is compiled, that a launch would use it, and what is recorded."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from stub_cuda import run_in_stub
from toy_ops import OVER_SHARED, SPILLING, TOY, describe
from typer.testing import CliRunner, Result

from analysis.sass import parse
from bench import cmd_compile
from bench.__main__ import app
from bench.case import Case
from bench.cmd_compile import CRASHED, outcomes
from bench.compile import compile_case
from bench.compile_jobs import Job, Outcome, buckets, engaged, jobs, outcome_of
from bench.compiled import RECORDS, read_compiled, read_listing
from bench.cubin import listing
from kernels.registry import OPS, op_named

SCALE = Path(__file__).parent / "data" / "scale.py"
TOY_CASE = Case(TOY, "triton", describe(1008, 528, 1024))


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("compile", *arguments))


def first_jobs(arch: int = 90) -> list[Job]:
    """Of each op the default configuration of its first bucket, and one that is not the default."""
    found = []
    for op in OPS:
        of_op = jobs([op], [arch])
        found += [of_op[0], next(job for job in of_op if not job.default)]
    return found


def test_every_op_bucket_and_configuration_is_a_job_once() -> None:
    of_op = jobs([op_named("matmul_decode")], [90, 100])
    asked = [(job.arch, job.workload.key, job.config) for job in of_op]
    assert len(set(asked)) == len(asked)
    for op in OPS:
        for workload in buckets(op):
            configs = op.configs(workload, 90)
            found = [job for job in jobs([op], [90]) if job.workload == workload]
            assert [job.config for job in found] == list(configs)
            assert [job.default for job in found] == [True] + [False] * (len(configs) - 1)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_buckets_are_of_every_dtype_and_can_be_run(op: Any) -> None:
    first = op.check_workloads[0]
    axes = {axis: first.axes.get(axis, 0) for axis in op.axes}
    runs = {dtype for dtype in op.dtypes if not op.unsupported(op.describe_axes(axes, dtype, ("a test",)), "triton")}
    assert {workload.dtype for workload in buckets(op)} == runs and runs >= {"bfloat16", "float16"}
    assert not any(op.unsupported(workload, "triton") for workload in buckets(op))


def cubins_of(job: Job) -> list[str]:
    compiled = compile_case(Case(op_named(job.op), "triton", job.workload), 90, job.config)
    return [kernel.cubin_sha256 for kernel in compiled]


def test_the_compiled_kernel_is_the_one_that_a_launch_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own driver, launcher and cache on the stub libcuda load a cubin of the same hash for every launch.

    Each has a new process and cache, so that neither finds the other's, nor one from before a callee moved by a line.
    """
    chosen = first_jobs()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "launched"))
    launched = run_in_stub("stub_cuda.child:cubins_here", [(j.op, "triton", j.workload, j.config) for j in chosen])
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "compiled"))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as elsewhere:
        compiled = list(elsewhere.map(cubins_of, chosen))
    assert launched == compiled
    assert len({sha for shas in compiled for sha in shas}) >= len(chosen)


def recorded(case: Case, config: Any, arch: int = 90) -> Outcome:
    return outcome_of(case, arch, config, default=True)


def test_a_record_says_what_was_asked_and_what_came_of_it() -> None:
    [(record, text)] = recorded(TOY_CASE, SPILLING)
    [kernel] = compile_case(TOY_CASE, 90, SPILLING)
    assert record.case["id"] == TOY_CASE.id and record.config["block_n"] == 256
    assert (record.kernel, record.arch, record.grid) == ("_toy_matmul_kernel", 90, (8, 3, 1))
    assert record.registers == 255 and record.spill_loads == kernel.spill_loads > 100 < record.spill_stores
    assert record.engaged == {"num_stages": True}
    [loop] = record.loops
    assert loop["flops"] == 2 * 128 * 256 * 64
    assert [(load["argument"], load["bytes"], load["slots"]) for load in loop["loads"]] == [
        ("a", 128 * 64 * 2, 3),
        ("b", 256 * 64 * 2, 3),
    ]
    assert [load["role"] for load in loop["loads"]] == [TOY.roles["a"], TOY.roles["b"]]
    full, kept = parse(kernel.sass)[0], parse(text)[0]
    assert [(i.opcode, i.guard, i.stall) for i in kept.instructions] == [
        (i.opcode, i.guard, i.stall) for i in full.instructions
    ]
    assert [i.targets for i in kept.instructions if i.base == "BRA"] and kept.count("STL") == record.spill_stores


def test_a_listing_keeps_what_is_read_and_drops_the_rest() -> None:
    sass = (
        ".text.f:\n        /*0000*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;   /* 0x0000000402047981 */\n"
        "                                                                                /* 0x002ea8000c1e1d00 */\n"
        ".L_x_1:\n        /*0010*/         HGMMA.64x64x16.F32 R24, gdesc[UR4], R24 ; /* 0x0060000004187df0 */\n"
        "                                                                                /* 0x000fe200087018ff */\n"
    )
    assert listing(sass).splitlines() == [
        ".text.f:",
        "@!P0 LDG.E.128 ;",
        "/* 0x002ea80000000000 */",
        ".L_x_1:",
        "HGMMA.64x64x16.F32 R24, gdesc[UR4], R24 ;",
        "/* 0x000fe20000000000 */",
    ]


@pytest.mark.parametrize(
    ("config", "why"),
    [(OVER_SHARED, "shared memory"), (object(), "AttributeError: 'object' object has no attribute 'block_m'")],
    ids=["too large", "the wrapper raises"],
)
def test_what_does_not_compile_is_a_record_with_its_first_line(config: object, why: str) -> None:
    [(record, text)] = recorded(TOY_CASE, config)
    assert why in record.error and "\n" not in record.error and text == "" == record.kernel
    assert record.case["id"] == TOY_CASE.id


def test_options_are_engaged_or_not() -> None:
    """Specialised warps engage at 4 and are silently dropped at 8; the reduction of a split is launched early."""
    op = op_named("matmul")
    job = next(job for job in jobs([op], [90]) if job.config.warp_specialize)
    [(record, _)] = recorded(Case(op, "triton", job.workload), job.config)
    assert record.engaged == {"warp_specialize": True, "tma": True, "num_stages": True} and record.num_warps == 12
    decode = op_named("matmul_decode")
    job = next(job for job in jobs([decode], [90]) if job.config.pdl)
    outcome = recorded(Case(decode, "triton", job.workload), job.config)
    assert [record.engaged["pdl"] for record, _ in outcome] == [True, True]
    assert [record.launch for record, _ in outcome] == [0, 1]


@pytest.mark.parametrize(
    ("asks", "ptx", "expected"),
    [
        ("cachePolicy = #tt.cache_policy<cache_modifier = none, eviction_policy = evict_first", "mov;", False),
        ("evictionPolicy = evict_first", "ld.global.L1::evict_first.v4.b32", True),
        ("evictionPolicy = evict_first", "createpolicy.fractional.L2::evict_first.b64 %rd1, 1.0;", True),
        ("evictionPolicy = evict_first", "cp.async.cg.shared.global [%r1], [%rd1], 16;", False),
        ("evictionPolicy = evict_first", "ld.global.L1::evict_last.v4.b32", False),
        ("cacheModifier = cg", "ld.global.cg.v4.b32", True),
        ("cacheModifier = ca", "cp.async.ca.shared.global [%r1], [%rd1], 4;", True),
        ("cacheModifier = ca", "cp.async.cg.shared.global [%r1], [%rd1], 16; // .ca.", False),
        ("cacheModifier = cs", "st.global.cs.v4.b32", True),
    ],
)
def test_a_hint_is_engaged_when_the_code_has_it(asks: str, ptx: str, expected: bool) -> None:
    [kernel] = compile_case(TOY_CASE, 90)
    asking = replace(kernel, ttir=f"tt.load %x {asks} : tensor<8x!tt.ptr<f32>>", ptx=ptx, num_stages=1)
    assert engaged(asking, []) == {f"hint {asks.split()[-1]}": expected}


@pytest.mark.parametrize(("slots", "expected"), [(3, True), (2, True), (1, False), (0, False)])
def test_stages_are_engaged_when_buffers_are_as_deep(slots: int, expected: bool) -> None:
    """Of 3 stages two slots are enough: a copy that is waited for before the next is issued needs one less."""
    [kernel] = compile_case(TOY_CASE, 90)
    loops = [{"warps": 4, "flops": 1, "loads": [{"slots": slots}]}]
    asking = replace(kernel, num_stages=3)
    assert engaged(asking, loops) == {"num_stages": expected}
    assert engaged(replace(asking, num_stages=1), loops) == engaged(asking, []) == {}


def test_the_command_compiles_a_users_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    result = bench("--op-file", str(SCALE), "--arch", "80,90", "-o", str(tmp_path / "out"))
    assert result.exit_code == 0, result.stderr
    environment, records = read_compiled(tmp_path / "out")
    assert environment.triton and len(records) == 2 * 3 * 2
    assert {record.arch for record in records} == {80, 90}
    assert {record.kernel for record in records} == {"_scale_kernel"}
    for record in records:
        assert parse(read_listing(tmp_path / "out", record))[0].name == "_scale_kernel"
    again = bench("--op-file", str(SCALE), "-o", str(tmp_path / "out"))
    assert again.exit_code == 2 and "there already" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--arch", "75"), "80, 89, 90, 100"),
        (("--arch", "sm_90"), "wanted compute capabilities"),
        (("no_such_op",), "unknown op"),
    ],
)
def test_wrong_use_is_told(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    result = bench(*arguments, "-o", str(tmp_path / "out"))
    assert result.exit_code == 2 and told in result.stderr and not (tmp_path / "out" / RECORDS).exists()


@dataclass(frozen=True, slots=True)
class Deadly:
    """A configuration that ends the process that unpickles it, as a crash of the compiler does."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (7,)


def test_a_compiler_that_crashes_costs_only_its_own_case(monkeypatch: pytest.MonkeyPatch) -> None:
    [first, second, *_] = jobs([op_named("matmul_decode")], [90])
    deadly = Job(op=first.op, workload=first.workload, arch=90, config=Deadly(), default=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setattr(cmd_compile, "get_context", lambda how: get_context("fork"))  # nothing to import again
    found = list(outcomes([deadly, first, second]))
    assert [record.error for outcome in found for record, _ in outcome if record.error] == [CRASHED]
    assert sum(bool(record.kernel) for outcome in found for record, _ in outcome) >= 2


def test_a_case_that_does_not_compile_is_exit_code_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = recorded(TOY_CASE, None)
    bad = recorded(TOY_CASE, OVER_SHARED)
    for found, code in (([good], 0), ([good, bad], 4), ([bad], 3)):
        monkeypatch.setattr(cmd_compile, "outcomes", lambda wanted, found=found: iter(found))
        result = bench("matmul", "-o", str(tmp_path / str(code)))
        assert result.exit_code == code
        assert ("shared memory" in result.stderr) == (code > 0)
