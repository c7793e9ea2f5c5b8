"""analysis.sass and analysis.sass_loops: text into instructions, and instructions into innermost loops."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from analysis.sass import Instruction, parse
from analysis.sass_loops import innermost_loops

LISTINGS = Path(__file__).parent / "data" / "sass"
NVDISASM = """
//--------------------- .text._reduce_kernel      --------------------------
\t.section\t.text._reduce_kernel,"ax",@progbits
_reduce_kernel:
.text._reduce_kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;                                /* 0x00000a00ff017b82 */
                                                                                         /* 0x000e300000000800 */
.L_x_1:
        /*0010*/               @P3 FADD R4, R4, R5 ;                                     /* 0x0000000504047221 */
                                                                                         /* 0x001fc80000000000 */
        /*0020*/             @!PT  BRA `(.L_x_1) ;                                       /* 0xfffffffc00fc7947 */
                                                                                         /* 0x000fea000383ffff */
        /*0030*/                   EXIT ;                                                /* 0x000000000000794d */
                                                                                         /* 0x000fea0003800000 */
"""
"""Real lines of nvdisasm -c -hex, put together."""
CUOBJDUMP = """
\tcode for sm_90a
\t\tFunction : _reduce_kernel
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                                /* 0x00000a00ff017b82 */
                                                                                         /* 0x000e300000000800 */
        /*0010*/               @P3 FADD R4, R4, R5 ;                                     /* 0x0000000504047221 */
                                                                                         /* 0x001fc80000000000 */
        /*0020*/             @!PT  BRA 0x10 ;                                            /* 0xfffffffc00fc7947 */
                                                                                         /* 0x000fea000383ffff */
        /*0030*/                   EXIT ;                                                /* 0x000000000000794d */
                                                                                         /* 0x000fea0003800000 */
"""


def loops_in(*lines: str) -> list[tuple[str, str]]:
    """(instructions of every trip, those of some) of each innermost loop of code written a line an instruction."""
    text = ".text.f:\n" + "\n".join(line if line.endswith(":") else f"{line} ;" for line in lines)
    [function] = parse(text)
    return [(told(loop.every), told(loop.sometimes)) for loop in innermost_loops(function)]


def told(code: tuple[Instruction, ...]) -> str:
    return " ".join(instruction.opcode for instruction in code)


@pytest.mark.parametrize("text", [NVDISASM, CUOBJDUMP], ids=["nvdisasm", "cuobjdump"])
def test_text_is_read_into_instructions(text: str) -> None:
    """Stalls by hand: the bits above 41 of 0x000e30.., 0x001fc8.., 0x000fea.. are 0x718, 0xfe4, 0x7f5: 8, 4, 5."""
    [function] = parse(text)
    assert function.name == "_reduce_kernel"
    assert [(i.guard, i.opcode, i.stall) for i in function.instructions] == [
        ("", "LDC", 8),
        ("P3", "FADD", 4),
        ("!PT", "BRA", 5),
        ("", "EXIT", 5),
    ]
    assert function.instructions[1].operands == "R4, R4, R5"
    [target] = function.instructions[2].targets
    assert function.labels[target] == 1 and function.instructions[2].goes_on


def test_what_is_no_sass_is_refused() -> None:
    with pytest.raises(ValueError, match="no SASS function"):
        parse("int main() { return 0; }")


def test_a_function_ends_where_the_next_begins() -> None:
    first, second = parse(NVDISASM + NVDISASM.replace("_reduce_kernel", "_other"))
    assert (first.name, second.name, len(second.instructions)) == ("_reduce_kernel", "_other", 4)


def test_a_loop_is_what_lies_between_a_label_and_the_branch_back() -> None:
    assert loops_in("LDC", ".L_1:", "FADD", "FMUL", "@P0 BRA `(.L_1)", "EXIT") == [("FADD FMUL BRA", "")]


def test_only_the_innermost_of_nested_loops_is_told() -> None:
    nested = (".L_1:", "FADD", ".L_2:", "FMUL", "@P0 BRA `(.L_2)", "FFMA", "@P1 BRA `(.L_1)", "EXIT")
    assert loops_in(*nested) == [("FMUL BRA", "")]


def test_two_loops_in_a_row_are_two() -> None:
    row = (".L_1:", "FADD", "@P0 BRA `(.L_1)", ".L_2:", "FMUL", "@P0 BRA `(.L_2)", "EXIT")
    assert loops_in(*row) == [("FADD BRA", ""), ("FMUL BRA", "")]


def test_a_block_that_a_trip_may_skip_is_apart() -> None:
    """The epilogue of a flattened persistent loop: the branch over it is every trip's, what it skips is not."""
    code = (".L_1:", "HGMMA", "@P1 BRA `(.L_2)", "STG", ".L_2:", "FADD", "@P0 BRA `(.L_1)", "EXIT")
    assert loops_in(*code) == [("HGMMA BRA FADD BRA", "STG")]


def test_two_ways_back_make_one_loop() -> None:
    """`continue`: what only the longer way passes is not every trip's."""
    code = (".L_1:", "HGMMA", "@P1 BRA `(.L_1)", "FADD", "@P0 BRA `(.L_1)", "EXIT")
    assert loops_in(*code) == [("HGMMA BRA", "FADD BRA")]


def test_a_spin_on_a_barrier_neither_is_a_loop_nor_hides_one() -> None:
    """As ptxas lays out a wait: one try in the loop, the retries behind the code."""
    code = (
        ".L_1:", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "@!P1 BRA `(.L_3)", ".L_2:", "HGMMA", "@P0 BRA `(.L_1)", "EXIT",
        ".L_3:", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "@!P1 BRA `(.L_3)", "BRA `(.L_2)",
    )  # fmt: skip
    assert loops_in(*code) == [
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT BRA HGMMA BRA", "SYNCS.PHASECHK.TRANS64.TRYWAIT BRA BRA")
    ]


def test_a_spin_inside_a_loop_leaves_it_innermost() -> None:
    code = (".L_1:", "FADD", ".L_2:", "SYNCS.TRYWAIT", "@!P1 BRA `(.L_2)", "HGMMA", "@P0 BRA `(.L_1)", "EXIT")
    assert loops_in(*code) == [("FADD HGMMA BRA", "SYNCS.TRYWAIT BRA")]


def test_a_loop_that_works_between_its_waits_is_no_spin() -> None:
    assert loops_in(".L_1:", "SYNCS.TRYWAIT", "UTMALDG.2D", "@P0 BRA `(.L_1)", "EXIT") == [
        ("SYNCS.TRYWAIT UTMALDG.2D BRA", "")
    ]


def test_unreachable_code_has_no_loops() -> None:
    """Every cubin ends in a branch to itself that nothing reaches."""
    assert loops_in("EXIT", ".L_1:", "BRA `(.L_1)") == []


@pytest.mark.parametrize("branch", ["BRA.U !UP0, `(.L_1)", "BRA.DIV UR4, `(.L_1)", "@P0 BRA `(.L_1)"])
def test_a_conditional_branch_goes_on_too(branch: str) -> None:
    [(every, sometimes)] = loops_in(".L_0:", ".L_1:", "FADD", branch, "FMUL", "@P1 BRA `(.L_0)", "EXIT")
    assert every.startswith("FADD BRA") and sometimes == "FMUL BRA"


def test_a_branch_that_is_always_taken_does_not_go_on() -> None:
    assert loops_in("@PT BRA `(.L_2)", ".L_1:", "FADD", "@P0 BRA `(.L_1)", ".L_2:", "EXIT") == []


def test_an_indirect_branch_reaches_what_it_lists() -> None:
    code = ('BRX R4 -0x20 (*"BRANCH_TARGETS .L_1,.L_2"*)', ".L_1:", "EXIT", ".L_2:", "FADD", "@P0 BRA `(.L_2)", "EXIT")
    assert loops_in(*code) == [("FADD BRA", "")]


def test_the_loops_of_a_real_attention_kernel() -> None:
    """The unmasked loop over keys, then the masked one: 487 and 791 instructions, counted in nvdisasm's text."""
    [function] = parse(gzip.decompress((LISTINGS / "attention_prefill_d128.sass.gz").read_bytes()).decode())
    plain, masked = innermost_loops(function)
    assert (len(plain.every), len(masked.every)) == (487, 791)
    for loop in (plain, masked):
        assert sum(i.base == "HGMMA" for i in loop.every) == 16 and sum(i.base == "MUFU" for i in loop.every) == 66
    assert plain.stall_cycles == sum(i.stall for i in plain.every) == 1187


def test_the_loops_of_a_real_specialised_kernel() -> None:
    """Two consumers of 58 instructions, and a producer whose waits are all spins."""
    [function] = parse(gzip.decompress((LISTINGS / "matmul_specialised.sass.gz").read_bytes()).decode())
    loops = innermost_loops(function)
    assert [len(loop.every) for loop in loops] == [58, 58, 68]
    assert [sum(i.base == "HGMMA" for i in loop.every) for loop in loops] == [4, 4, 0]
    assert [sum(i.base == "UTMALDG" for i in loop.every) for loop in loops] == [0, 0, 3]
