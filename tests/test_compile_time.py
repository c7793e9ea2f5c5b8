"""Compilation apart from the first call, through Triton's own compiler and its listener."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch
from small_cases import matmul_case, session
from toy_ops import _toy_matmul_kernel, describe, make_inputs, toy_matmul
from triton import knobs

from bench.compile import compile_driver
from bench.compile_time import compile_time
from bench.record import Status
from bench.run import run_case


def test_a_compiled_kernel_takes_its_time_and_a_cached_one_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T21: what a first call holds that no later one does. The driver here keeps kernels by a listener of its own,
    which must still be told."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    seconds: list[list[float]] = []
    start = time.perf_counter()
    with compile_driver(90):
        for _ in range(2):
            _toy_matmul_kernel.device_caches.clear()  # as in a process that has launched it never
            with compile_time() as compiled_s:
                toy_matmul(**make_inputs(describe(64, 64, 64), "meta", 0))
            seconds.append(compiled_s)
    [[fresh], [cached]] = seconds
    assert 0.01 < fresh < time.perf_counter() - start
    assert cached == 0.0


def test_the_listener_is_given_back_after_an_error() -> None:
    before = knobs.compilation.listener
    with pytest.raises(KeyError), compile_time():
        assert knobs.compilation.listener is not before
        raise KeyError
    assert knobs.compilation.listener is before


def test_without_triton_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with compile_time() as seconds:
        torch.ones(3).sum()
    assert seconds == []


def test_the_record_has_the_compilation_as_a_part_of_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def provider(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        if knobs.compilation.listener:
            for hit, times in ((False, Times(250_000)), (True, Times(9)), (False, Times(500_000))):
                knobs.compilation.listener(src=None, metadata={}, metadata_group={}, times=times, cache_hit=hit)
        return a @ b

    record = run_case(matmul_case(provider), session())
    assert (record.status, record.phases_s["compile"]) == (Status.OK, 0.75)
    assert "compile" not in run_case(matmul_case(), session()).phases_s


class Times(knobs.CompileTimes):  # type: ignore[misc]
    """So many microseconds of compiling."""

    def __init__(self, us: int) -> None:
        super().__init__(ir_initialization=us - 5, lowering_stages=[("ttir", 2), ("ptx", 2)], store_results=1)
