"""Triton's cache of compiled kernels: not writable, behind a link, shared by processes, shared by architectures."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from bench.compile import Compiled, compile_named
from bench.compile_cache import VARIABLE, ensure_writable
from kernels import matmul_decode

WORKLOAD = matmul_decode.OP.check_workloads[0]


def test_e01_a_cache_that_cannot_be_written_is_replaced_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file where the directory should be stands for another user's: no user can make anything in it."""
    (tmp_path / "taken").touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "taken"))
    told: list[str] = []
    ensure_writable(told.append)
    other = os.environ[VARIABLE]
    assert other != str(tmp_path / "taken") and Path(other).is_dir()
    [line] = told
    assert str(tmp_path / "taken") in line and other in line and VARIABLE in line
    ensure_writable(told.append)
    assert (os.environ[VARIABLE], len(told)) == (other, 1)


def test_without_a_home_directory_there_is_a_cache_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "~nobody-of-that-name/cache")
    told: list[str] = []
    ensure_writable(told.append)
    assert Path(os.environ[VARIABLE]).is_dir() and len(told) == 1


def compiled_in(cache: str, arch: int) -> Compiled:
    """What a process compiles, or finds, with a cache there."""
    os.environ[VARIABLE] = cache
    return compile_named("matmul_decode", "triton", WORKLOAD, arch)[0]


def test_e03_e07_one_cache_behind_a_link_serves_two_processes_and_two_architectures(tmp_path: Path) -> None:
    """Two processes compile one kernel at once; then each architecture finds its own, none the other's."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    cache = str(tmp_path / "link")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        first, same = [pool.submit(compiled_in, cache, 90) for _ in range(2)]
        assert first.result().cubin == same.result().cubin
        other, again = [pool.submit(compiled_in, cache, arch) for arch in (80, 90)]
        assert (other.result().arch, ".target sm_80" in other.result().ptx) == (80, True)
        assert again.result().cubin == first.result().cubin != other.result().cubin
    assert any((tmp_path / "real").iterdir())
