"""What `bench gpu` compiles ahead is what a launch on the GPU finds in Triton's cache; a failure there ends nothing."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from stub_cuda import run_in_stub

from bench import gpu_compile
from bench.compile import LIMITS, Limits
from bench.gpu_compile import Job, compile_group, groups
from bench.gpu_plan import sentinels, standard_cases
from kernels.registry import OPS, op_named

ROOT = Path(__file__).resolve().parents[1]
ARCH, SHARED_BYTES, SMS = 90, 232_448, 132
"""The stub's device."""
SENTINELS = len({case.op.name for case in standard_cases()})
"""One of each op that suite standard has."""
COMPILE = """
import pickle, sys
from bench.gpu_compile import compile_group
print(compile_group(*pickle.load(sys.stdin.buffer)))
"""


def jobs_of_every_op() -> list[Job]:
    """A sentinel of each op in the configuration that a run takes, and a small workload in the wrapper's own choice."""
    standard = sentinels(standard_cases(), SENTINELS)
    jobs: list[Job] = [(c.op.name, c.workload, c.op.configs(c.workload, ARCH)[0]) for c in standard]
    return jobs + [(op.name, op.check_workloads[0], None) for op in OPS]


def compiled_by(launches: tuple[str, list[Job]]) -> list[list[bool]]:
    """In the stub's child: for each launch, whether each kernel was found in the cache at that path."""
    from triton import knobs

    knobs.cache.dir, jobs = launches
    found: list[list[bool]] = []
    knobs.compilation.listener = lambda *, src, metadata, metadata_group, times, cache_hit: found[-1].append(cache_hit)
    for op, workload, config in jobs:
        found.append([])
        given: dict[str, Any] = {} if config is None else {"config": config}
        op_named(op).providers["triton"](**op_named(op).make_inputs(workload, "meta", 0), **given)
    return found


def test_a_launch_on_the_gpu_finds_what_was_compiled_ahead(tmp_path: Path) -> None:
    """Triton's own CUDA driver, on the stub's H100, compiles nothing more: every kernel it asks for is a cache hit."""
    jobs = jobs_of_every_op()
    assert {op for op, _, _ in jobs} == {op.name for op in OPS}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        cwd=ROOT,
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},
        input=pickle.dumps((ARCH, jobs)),
        capture_output=True,
        check=True,
    )
    assert b"'failed': []" in done.stdout
    found = run_in_stub("test_gpu_compile:compiled_by", (str(tmp_path), jobs))
    assert all(any(hits) for hits in found[:SENTINELS])
    assert [hit for hits in found for hit in hits if not hit] == []


def test_everything_that_later_steps_launch_is_compiled_and_the_defaults_come_first() -> None:
    jobs = groups(ARCH)
    standard = [c for c in standard_cases() if c.provider == "triton" and not c.op.unsupported(c.workload, "triton")]
    defaults = {(c.op.name, c.workload.key, c.op.configs(c.workload, ARCH)[0]) for c in standard}
    checks = {(op.name, w.key, None) for op in OPS for w in op.check_workloads if not op.unsupported(w, "triton")}
    listed = [(op, workload.key, config) for group in jobs for op, workload, config in group]
    assert defaults | checks <= set(listed)
    assert len(listed) == len(set(listed))
    assert max(map(len, jobs)) <= gpu_compile.TOGETHER
    rank = {(c.op.name, c.workload.key, k): n for c in standard for n, k in enumerate(c.op.configs(c.workload, ARCH))}
    assert max(rank.values()) > gpu_compile.CANDIDATES - 1
    assert max(rank.get(job, 0) for job in listed) == gpu_compile.CANDIDATES - 1
    needed = [any((op, w.key, k) in defaults | checks for op, w, k in group) for group in jobs]
    assert needed == sorted(needed, reverse=True)


def test_a_configuration_that_fails_is_told_and_the_next_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def compile_named(op: str, provider: str, workload: Any, arch: int, config: Any) -> list[Any]:
        asked.append(op)
        if op == "matmul":
            raise RuntimeError("no room\nmore lines")
        return []

    monkeypatch.setattr(gpu_compile, "compile_named", compile_named)
    jobs: list[Job] = [(op.name, op.check_workloads[0], None) for op in OPS]
    told = compile_group(ARCH, jobs)
    assert asked == [op.name for op in OPS]
    assert told["failed"] == [f"matmul/{jobs[0][1].key} : RuntimeError: no room"]


def test_the_gpu_at_hand_replaces_the_usual_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H100 PCIe has 114 SMs, and an arch without usual limits is compiled for too."""
    monkeypatch.setitem(LIMITS, 90, LIMITS[90])
    monkeypatch.setitem(LIMITS, 86, Limits(0, 0))
    gpu_compile.use_limits(90, SHARED_BYTES, 114)
    gpu_compile.use_limits(86, 101_376, 84)
    assert (LIMITS[90], LIMITS[86]) == (Limits(SHARED_BYTES, 114), Limits(101_376, 84))


def test_the_pool_has_a_process_for_each_core_that_this_one_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rented container has 16 cores of a host of 192, which `os.cpu_count` tells of."""
    asked: list[int] = []

    def pool(*, max_workers: int, **others: object) -> ThreadPoolExecutor:
        asked.append(max_workers)
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(gpu_compile, "ProcessPoolExecutor", pool)
    monkeypatch.setattr(gpu_compile, "groups", lambda arch: [])
    monkeypatch.setitem(LIMITS, ARCH, LIMITS[ARCH])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setattr(os, "cpu_count", lambda: 192)
    gpu_compile.main(ARCH, SHARED_BYTES, 132)
    assert asked == [16]
