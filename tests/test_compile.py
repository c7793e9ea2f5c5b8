"""bench.compile: what a launch compiles to for each arch, told without a GPU, and nothing left behind."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
import triton
from toy_ops import OVER_SHARED, SPILLING, TOY, Config, describe, toy_matmul
from triton import knobs
from triton.runtime import _allocation, driver

from bench.case import Case
from bench.compile import LIMITS, CompileError, compile_case, compile_driver, compile_named
from bench.cubin import count_instructions
from kernels import matmul

CASE = Case(TOY, "triton", describe(1008, 528, 1024))


@pytest.mark.parametrize("arch", sorted(LIMITS))
def test_a_launch_is_compiled_for_an_arch(arch: int) -> None:
    [compiled] = compile_case(CASE, arch)
    assert (compiled.case_id, compiled.kernel, compiled.arch) == (CASE.id, "_toy_matmul_kernel", arch)
    assert f".target sm_{arch}" in compiled.ptx and compiled.cubin.startswith(b"\x7fELF")
    assert compiled.grid == (16, 9, 1) and compiled.num_warps == 4
    assert 16 < compiled.registers <= 255 and compiled.spill_loads == compiled.spill_stores == 0
    assert 0 < compiled.shared_bytes <= LIMITS[arch].shared_bytes
    assert (compiled.triton, len(compiled.cubin_sha256)) == (triton.__version__, 64) and compiled.ptxas[0].isdigit()
    tensor_core = {80: "HMMA", 89: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}[arch]
    assert count_instructions(compiled.sass, tensor_core) > 0


def test_the_second_time_the_kernel_is_the_same_and_still_reported() -> None:
    [first], [second] = compile_case(CASE, 90), compile_case(CASE, 90)
    assert first.cubin_sha256 == second.cubin_sha256 and first.grid == second.grid
    [other] = compile_case(Case(TOY, "triton", describe(64, 64, 1024)), 90)
    assert other.cubin == first.cubin and other.grid == (1, 1, 1)


def test_specialisation_is_that_of_the_launch() -> None:
    """Rows 16-byte aligned are copied asynchronously; rows that are not, as of K = 1023, one element at a time."""
    [aligned], [ragged] = compile_case(CASE, 90), compile_case(Case(TOY, "triton", describe(1008, 528, 1023)), 90)
    assert count_instructions(aligned.sass, "LDGSTS") > 0 == count_instructions(ragged.sass, "LDGSTS")


def test_spills_are_counted_in_the_code() -> None:
    [spilled] = compile_case(CASE, 90, SPILLING)
    assert spilled.registers == 255
    assert spilled.spill_loads > 100 < spilled.spill_stores and spilled.stack_bytes > 500
    [kept] = compile_case(CASE, 90, Config(block_m=128, block_n=128, block_k=64, num_warps=8))
    assert kept.spill_loads == kept.spill_stores == kept.stack_bytes == 0


def test_counting_takes_predicates_and_suffixes_but_no_operands() -> None:
    sass = """
        /*0010*/                   LDL.64 R2, [R1] ;
        /*0020*/              @!P0 LDL R4, [R1+0x8] ;
        /*0030*/             @UP1  STL [R1], R2 ;
        /*0040*/                   MOV R1, LDL ;
        /*0050*/                   LDLX R1, R2 ;
    """
    assert (count_instructions(sass, "LDL"), count_instructions(sass, "STL")) == (2, 1)


@pytest.mark.parametrize(("arch", "most"), [(80, 166_912), (89, 101_376), (90, 232_448), (100, 232_448)])
def test_more_shared_memory_than_a_block_has_is_an_error_every_time(arch: int, most: int) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match=rf"{CASE.id} on sm_{arch}: .*shared memory.*limit: {most}"):
            compile_case(CASE, arch, OVER_SHARED)


def test_a_tile_that_fits_one_arch_may_not_fit_another() -> None:
    deep = Config(block_m=128, block_n=128, block_k=64, num_stages=6)
    assert compile_case(CASE, 90, deep)[0].shared_bytes > LIMITS[89].shared_bytes
    with pytest.raises(CompileError, match="sm_89"):
        compile_case(CASE, 89, deep)


def test_what_does_not_compile_names_the_case() -> None:
    with pytest.raises(CompileError, match="toy_matmul/triton"):
        compile_case(CASE, 90, Config(block_k=2, block_m=48))


@pytest.mark.parametrize("provider", ["nothing", "torch"])
def test_a_case_that_launches_nothing_is_an_error(provider: str) -> None:
    with pytest.raises(ValueError, match="launches no Triton kernel"):
        compile_case(Case(TOY, provider, CASE.workload), 90)


def test_an_unknown_arch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sm_75; known: 80, 89, 90, 100"):
        compile_case(CASE, 75)


def test_the_former_driver_allocator_and_listener_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size)

    triton.set_allocator(allocate)
    before = object()
    monkeypatch.setattr(driver, "_active", before)
    with pytest.raises(ZeroDivisionError), compile_driver(90) as compiler:
        triton.set_allocator(lambda *arguments: None)
        assert driver.active is compiler
        assert driver.active.utils.get_device_properties(0)["multiprocessor_count"] == 132
        raise ZeroDivisionError
    assert driver._active is before and _allocation._allocator.get() is allocate
    assert knobs.compilation.listener is None


def test_interpreted_kernels_are_refused() -> None:
    with (
        knobs.runtime.scope(),
        pytest.raises(ValueError, match="TRITON_INTERPRET"),
    ):
        knobs.runtime.interpret = True
        compile_case(CASE, 90)


def test_a_process_pool_compiles() -> None:
    workload = matmul.OP.check_workloads[0]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        [compiled] = pool.submit(compile_named, "matmul", "triton", workload, 90).result()
    [here] = compile_named("matmul", "triton", workload, 90)
    assert compiled.cubin == here.cubin and compiled.registers == here.registers and compiled.kernel in compiled.ptx


def test_the_wrapper_itself_ran() -> None:
    """On meta tensors, so an output comes back and nothing was computed."""
    with compile_driver(90) as compiler:
        out = toy_matmul(**TOY.make_inputs(CASE.workload, "meta", 0))
    assert out.is_meta and out.shape == (1008, 528)
    assert [grid for _, grid in compiler.launches] == [(16, 9, 1)]
