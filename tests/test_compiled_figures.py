"""analysis.compiled: the row of a kernel, worked by hand from real listings and from made ones."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from compiled_kernels import DECODE, PREFILL, SPECIALISED, kernel, load, looping, record

from analysis.compiled import COLUMNS, config_text, csv_text, hot_code, row_of
from bench.record import RecordError


def test_the_row_of_attention_prefill() -> None:
    """487 instructions x 8 warps over 8.39 MFLOP and 64 KB; two slots of K and V, one of each read by wgmma."""
    row = row_of(kernel(PREFILL))
    assert row["tensor_instruction"] == "HGMMA.64x128x16*8 HGMMA.64x128x16.rA*8"
    assert (row["loads"], row["load_bytes"]) == ("tma", 32_768)
    assert (row["tensor_cycles"], row["mufu_cycles"], row["binding_pipe"]) == (2048, 1056, "tensor")
    assert (row["loop_instructions"], row["loop_flops"]) == (487, 8_388_608)
    assert row["instructions_per_kflop"] == round(487 * 8 / 8388.608, 3)
    assert row["instructions_per_kb"] == round(487 * 8 / 64, 3)
    assert (row["ceiling_overlapped"], row["ceiling_serial"]) == (1, round(2048 / 3104, 3))
    assert (row["ctas_per_sm"], row["ctas_limiter"], row["bytes_in_flight_per_sm"]) == (1, "shared", 65_536)
    assert (row["wgmma_serialised"], row["cta_barriers_per_iteration"]) == ("no", 3)


def test_the_row_of_a_decode_matmul_counts_weights_alone() -> None:
    """93 x 4 warps over 16 KB of W; 4 slots of 16 KB in each of 256 blocks on 132 SMs."""
    row = row_of(kernel(DECODE))
    assert row["instructions_per_kb"] == round(93 * 4 / 16, 3) and row["loop_flops"] == 262_144
    assert row["bytes_in_flight_per_sm"] == round(4 * 16_384 * 256 / 132)
    assert (row["loads"], row["load_bytes"], row["ctas_per_sm"]) == ("cp.async", 16, 2)
    assert row["tensor_cycles"] == 64 and row["binding_pipe"] == "issue"
    many = row_of(kernel(DECODE, grid=(10_000, 1, 1)))
    assert many["bytes_in_flight_per_sm"] == 2 * 4 * 16_384, "no more than the blocks that an SM holds"


def test_both_operands_count_in_prefill() -> None:
    case = dict(DECODE.case) | {"phase": "prefill"}
    assert kernel(DECODE, case=case).trip_bytes == 16_384 + 4096


def test_specialised_warps_are_one_block() -> None:
    """Two consumers of 4 warps, 58 instructions each, and a producer that alone loads: 2 + 2 slots in flight of 3."""
    made = kernel(SPECIALISED)
    row = row_of(made)
    assert (made.warps, row["warps"], row["loop_instructions"]) == (8, 12, 58)
    assert row["loop_flops"] == 2 * 128 * 128 * 64 and row["tensor_cycles"] == 512
    assert row["issue_cycles"] == 58 * 8 / 4
    assert row["loads"] == "tma" and row["load_bytes"] == round((8192 + 16_384 + 8192) / 3, 3)
    assert row["bytes_in_flight_per_sm"] == 2 * 32_768


def test_the_hot_loop_is_the_shorter_of_two_that_multiply_as_much() -> None:
    assert kernel(PREFILL).mix.instructions == 487


def test_without_products_the_hot_loop_is_the_one_that_loads_most() -> None:
    text = looping("LDG.E", "FADD") + looping("LDG.E.128", "LDG.E.128").replace(".text._k:\n", "").replace(
        "_x_1", "_x_2"
    )
    text = text.replace("EXIT ;\n", "", 1)
    made = kernel(record("o", "decode", {"N": 1}, kernel="_k", num_warps=4), text)
    assert made.mix.loads == {"ldg": (16, 16)}


@pytest.mark.parametrize(("copies", "factor"), [(1, 1), (4, 4)])
def test_a_loop_that_ptxas_unrolled_makes_several_trips(copies: int, factor: int) -> None:
    """Triton's trip loads 128 lanes x 16 bytes; four loads of that are four trips."""
    loops = ({"warps": 4, "flops": 0, "loads": [load("w", "ldg", 2048, 0, "streamed")]},)
    which = record("o", "decode", {"N": 1}, kernel="_k", num_warps=4, loops=loops, registers=32)
    made = kernel(which, looping(*["LDG.E.128", "FADD"] * copies))
    assert made.unrolled == factor and made.trip_bytes == 2048 * factor
    assert row_of(made)["instructions_per_kb"] == round((2 * copies + 1) * 4 / (2 * factor), 3)


@pytest.mark.parametrize(("seen", "factor"), [(7, 1), (9, 2)])
def test_a_trip_that_loads_a_little_more_or_less_is_the_nearest_whole_number_of_trips(seen: int, factor: int) -> None:
    """Of 5 loads that Triton's trip has, 7 are 1.4 trips and 9 are 1.8: one and two."""
    loops = ({"warps": 4, "flops": 0, "loads": [load("w", "ldg", 5 * 2048, 0, "")]},)
    which = record("o", "decode", {"N": 1}, kernel="_k", num_warps=4, loops=loops)
    assert kernel(which, looping(*["LDG.E.128"] * seen)).unrolled == factor


def test_the_bytes_of_a_load_are_of_the_kind_that_brings_most() -> None:
    """Indices come 4 bytes at a time, keys 16."""
    which = record("o", "decode", {"N": 1}, kernel="_k", num_warps=4)
    made = kernel(which, looping("LDG.E", "LDG.E", "LDGSTS.E.BYPASS.128", "LDGSTS.E.BYPASS.128"))
    assert made.load_bytes == 16 and made.load_kinds == ["cp.async", "ldg"]


def test_lanes_that_load_the_same_twice_are_no_unrolling() -> None:
    """A vector of x that every warp reads: 16 KB of W and 4 x 1 KB where Triton counts 1."""
    loops = ({"warps": 4, "flops": 0, "loads": [load("x", "ldg", 1024, 0, ""), load("w", "ldg", 16_384, 0, "")]},)
    which = record("o", "decode", {"N": 1}, kernel="_k", num_warps=4, loops=loops)
    assert kernel(which, looping(*["LDG.E.128"] * 10)).unrolled == 1


def test_on_sm_100_the_work_is_told_by_triton() -> None:
    """UTCHMMA shows no shape: 128 x 256 x 64 is 4,194,304 FLOP, 512 cycles at 8,192."""
    loops = ({"warps": 4, "flops": 4_194_304, "loads": []},)
    which = record("matmul", "prefill", {"M": 1}, kernel="_k", num_warps=4, arch=100, loops=loops)
    row = row_of(kernel(which, looping("UTCHMMA gdesc[UR4]", "UTMALDG.2D")))
    assert (row["loop_flops"], row["tensor_cycles"], row["tensor_instruction"]) == (4_194_304, 512, "UTCHMMA*1")


def test_on_sm_100_an_elected_threads_products_are_every_trips() -> None:
    """One thread branches off to issue the product; other blocks that a trip may skip stay out."""
    loops = ({"warps": 4, "flops": 4_194_304, "loads": []},)
    which = record("matmul", "prefill", {"M": 1}, kernel="_k", num_warps=4, arch=100, loops=loops)
    text = looping("FADD", "@P1 BRA `(.L_x_2)", "UTCHMMA gdesc[UR4]", "STG.E.128")
    text = text.replace("STG.E.128 ;", "STG.E.128 ;\n.L_x_2:\nFMUL ;")
    made = kernel(which, text)
    assert made.mix.tensor == {"UTCHMMA": 1} and made.cycles.tensor == 512
    assert made.mix.instructions == len(("FADD", "BRA", "UTCHMMA", "FMUL", "BRA"))


def test_a_warp_that_only_issues_tcgen05_has_no_ceiling() -> None:
    """The softmax of a specialised attention on sm_100 is another partition's: the loop is not the block's work."""
    loops = ({"warps": 1, "flops": 4_194_304, "loads": []},)
    facts = {"kernel": "_k", "num_warps": 12, "arch": 100, "loops": loops}
    whole, part = (
        row_of(
            kernel(record("o", "prefill", {"M": 1}, **facts, engaged={"warp_specialize": is_on}), looping("UTCHMMA a"))
        )
        for is_on in (False, True)
    )
    names = ("ceiling_overlapped", "ceiling_serial", "instructions_per_kflop")
    assert all(whole[name] is not None and part[name] is None for name in names) and part["tensor_cycles"] == 512


def test_a_kernel_without_a_loop_has_no_loops_figures() -> None:
    row = row_of(kernel(record("o", "mixed", {"N": 1}, kernel="_k", num_warps=4), ".text._k:\nLDG.E.128 ;\nEXIT ;\n"))
    assert row["loop_instructions"] is None and row["ceiling_serial"] is None and row["instructions_per_kb"] is None


def test_a_listing_of_another_kernel_is_refused() -> None:
    with pytest.raises(RecordError, match="no function _other"):
        hot_code(looping("FADD"), replace(PREFILL, kernel="_other"))


def test_rows_are_told_apart_by_sizes_parameters_and_launch() -> None:
    assert config_text(DECODE) == "M=1,N=8192,K=8192: form=tile block_n=64 block_k=128"
    assert config_text(replace(DECODE, config={"pdl": True}, launch=1)).endswith(": pdl; _matmul_decode_kernel")


def test_the_csv_has_the_columns_in_order_and_one_order_of_rows() -> None:
    one, other = kernel(PREFILL), kernel(DECODE)
    text = csv_text([other, one])
    assert text == csv_text([one, other])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 2
    assert COLUMNS[:4] == ("op", "provider", "dtype", "config") and COLUMNS[-1] == "cubin_sha256" and len(COLUMNS) == 32
