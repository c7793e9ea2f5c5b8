"""The stub driver: it refuses what an H100's driver would, says so, and lets right launches through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stub_cuda import TRITONS, ChildError, problems, run_cases, run_in_stub
from toy_ops import TOY, describe

from bench.case import Case

pytestmark = pytest.mark.xdist_group("stub_cuda")  # so that one worker's children serve the whole module

RIGHT = {
    "right": 1, "right_block": 1, "hundred_gb": 1, "with_allocator": 1, "warmed_in_capture": 1,
    "bare_map": 0, "right_bare_launch": 1, "shared_asked_for": 1,
}  # fmt: skip
"""Name -> launches that the driver must see."""
CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 1, 701, 900
BROKEN = {
    "narrow_box": ("invalid argument", "tensor map inner box of 8 bytes is not a multiple of 16"),
    "misaligned_base": ("invalid argument", "tensor map base is not 16-byte aligned"),
    "misaligned_stride": ("invalid argument", "tensor map stride of 130 bytes is not a multiple of 16"),
    "stride_over_2_40": ("invalid argument", f"tensor map stride of {2**41} bytes is not under 2^40"),
    "long_box": (f"CUDA error {CUDA_ERROR_INVALID_VALUE}", "tensor map box side of 512 is not in 1..256"),
    "over_swizzle": (
        f"CUDA error {CUDA_ERROR_INVALID_VALUE}",
        "tensor map inner box of 256 bytes is wider than the swizzle span",
    ),
    "dimension_over_2_32": (f"CUDA error {CUDA_ERROR_INVALID_VALUE}", f"of {2**32 + 1} is not in 1..2^32"),
    "empty_dimension": (f"CUDA error {CUDA_ERROR_INVALID_VALUE}", "tensor map dimension of 0 is not in 1..2^32"),
    "no_allocator": ("no allocator was set", ""),
    "grid_y_70000": ("invalid argument", "grid of 1 x 70000 x 1, at most 2147483647 x 65535 x 65535"),
    "grid_product_2_31": ("", "of launches ['_zero_kernel'] the driver saw 0: a grid of 0 or over 2^31"),
    "grid_product_wraps": ("invalid argument", f"grid of {65_538 * 65_535} programs"),
    "grid_empty": ("", "the driver saw 0: a grid of 0 or over 2^31"),
    "over_shared": ("shared memory, Required: 262144, Hardware limit: 232448", ""),
    "shared_not_asked_for": (f"CUDA error {CUDA_ERROR_INVALID_VALUE}", "shared memory of 60000 bytes, 49152 were"),
    "shared_over_most": (f"CUDA error {CUDA_ERROR_INVALID_VALUE}", "shared memory of 232449 bytes, at most 232448"),
    "block_of_2048": (f"CUDA error {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES}", "block of 2048 threads, at most 1024"),
    "too_many_registers": (f"CUDA error {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES}", "255 registers x 1024 threads"),
    "unwarmed_in_capture": ("when stream is capturing", "module load while capturing"),
    "allocation_in_capture": (f"CUDA error {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED}", "allocation of 1024 bytes while"),
}
"""Name -> (in the error, in one of the rules)."""


@pytest.fixture(scope="module", params=TRITONS)
def triton_path(request: pytest.FixtureRequest) -> Path | None:
    return TRITONS[request.param]


@pytest.fixture(scope="module")
def seen(triton_path: Path | None) -> dict[str, Any]:
    """All of them from one child a Triton."""
    observed: dict[str, Any] = run_in_stub("stub_cuda.violations:everything", triton_path=triton_path)
    return observed


def test_every_launch_of_the_module_is_judged_here(seen: dict[str, Any]) -> None:
    assert set(seen) == set(RIGHT) | set(BROKEN)


def test_right_launches_go_through(seen: dict[str, Any]) -> None:
    for name, launches in RIGHT.items():
        assert seen[name]["error"] in ("", "CUDA error 0"), name
        assert seen[name]["rules"] == [] and len(seen[name]["launches"]) == launches, name


def test_each_violation_is_refused_and_named(seen: dict[str, Any]) -> None:
    for name, (error, rule) in BROKEN.items():
        assert error in seen[name]["error"] and bool(error) == bool(seen[name]["error"]), (name, seen[name])
        if rule:
            assert any(rule in told for told in seen[name]["rules"]), (name, seen[name])
        else:
            assert seen[name]["rules"] == [], name


def test_the_log_tells_the_launch(seen: dict[str, Any]) -> None:
    [launch] = seen["right"]["launches"]
    assert launch["kernel"] == "_copy_kernel" and launch["grid"] == [4, 1, 1] and launch["block"] == 128
    assert launch["pdl"] is False and launch["attributes"] == 0
    source, target = seen["right_block"]["maps"]
    assert source == target and source["dims"] == [64, 64] and source["strides"] == [128] and source["box"] == [64, 64]


def test_registers_are_read_from_the_cubin(seen: dict[str, Any]) -> None:
    [launch] = seen["right_bare_launch"]["launches"]
    assert launch["registers"] == launch["cuobjdump_registers"] == 255


def test_cases_of_any_size_launch_twice_and_load_once(triton_path: Path | None) -> None:
    sizes = ((64, 4096), (128, 4096), (1_000_000, 65_536))
    cases = [Case(TOY, "triton", describe(m, 4096, k)) for m, k in sizes]
    forgotten = Case(TOY, "nothing", cases[0].workload)
    results = run_cases([*cases, forgotten], triton_path)
    assert problems(results) == [f"{forgotten.id}: launched nothing"]
    assert [result["case_id"] for result in results] == [case.id for case in (*cases, forgotten)]
    assert [result["loads_first"] for result in results] == [1, 0, 0, 0], "one specialisation serves all three"
    grids = [launch["grid"] for result in results for launch in result["launches"]]
    assert grids == [[1, 64, 1], [2, 64, 1], [15_625, 64, 1]]


def test_problems_are_told_one_a_line() -> None:
    wrong = {"case_id": "x", "error": "E", "rules": ["r", "r"], "launches": [], "loads_second": 2}
    told = ["x: E", "x: r", "x: launched nothing", "x: a second launch loads 2 modules"]
    assert problems([wrong]) == told
    assert problems([wrong | {"error": "", "rules": [], "launches": [{}], "loads_second": 0}]) == []


def test_a_triton_that_is_not_there_is_told_of_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match=r"no Triton in \S+/3\.6\.0: make \.triton/3\.6\.0"):
        run_in_stub("stub_cuda.violations:everything", triton_path=tmp_path / "3.6.0")


def test_a_child_that_fails_is_told_of() -> None:
    with pytest.raises(ChildError, match=r"exit code 1(.|\n)*no_such_function"):
        run_in_stub("stub_cuda.violations:no_such_function")
