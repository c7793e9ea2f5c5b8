"""Compiles the kernels that `bench gpu` will launch, in a pool of processes and without the GPU.

`python -m bench.gpu_compile ARCH SHARED_BYTES SMS` launches the Triton cases under the driver of `bench.compile`, which
leaves in Triton's cache what a launch on the GPU then finds: same source, signature, options and target. One JSON line
tells how each group of cases ended, so that a pool that is cut off in the middle has told what is done.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from bench.case import Case
from bench.compile import LIMITS, Limits, compile_driver, compile_named
from bench.gpu_plan import standard_cases
from kernels.quantisation import least_arch
from kernels.registry import OPS
from kernels.spec import Workload

CANDIDATES = 4
"""Configurations of a workload that tuning may try: the first ones."""
TOGETHER = 12
"""Cases of one configuration that one process launches in turn: most of them find the first one's kernel compiled."""

Job = tuple[str, Workload, Any]
"""Op, workload, configuration (None: the wrapper's own choice)."""


def groups(arch: int) -> list[list[Job]]:
    """What to compile, the jobs of a group one after another: kernels that later steps need first."""
    ops = [op for op in OPS if "triton" in op.providers]
    small = [Case(op, "triton", workload) for op in ops for workload in op.check_workloads]
    small = [case for case in small if arch >= least_arch(case.workload)]
    cases = [case for case in standard_cases() if case.provider == "triton"]
    jobs: dict[tuple[object, ...], list[Job]] = {}
    for rank in range(CANDIDATES):
        for case in small if rank == 0 else []:
            _add(jobs, rank, case, None)
        for case in cases:
            configs = case.op.configs(case.workload, arch)
            if rank < len(configs):
                _add(jobs, rank, case, configs[rank])
    return [part for group in jobs.values() for part in _parts(group)]


def _add(jobs: dict[tuple[object, ...], list[Job]], rank: int, case: Case, config: Any) -> None:
    if not case.op.unsupported(case.workload, case.provider):
        group = (case.op.name, case.workload.dtype, config, rank > 0)
        jobs.setdefault(group, []).append((case.op.name, case.workload, config))


def _parts(group: Sequence[Job]) -> Iterator[list[Job]]:
    for start in range(0, len(group), TOGETHER):
        yield list(group[start : start + TOGETHER])


def compile_group(arch: int, jobs: Sequence[Job]) -> dict[str, Any]:
    """Compiles the jobs of a group in order; a failing one ends nothing."""
    start, kernels, failed = time.perf_counter(), set(), []
    for op, workload, config in jobs:
        try:
            kernels |= {(one.kernel, one.cubin_sha256) for one in compile_named(op, "triton", workload, arch, config)}
        except Exception as error:  # whatever a configuration dies of, the others are still worth having
            failed.append(f"{op}/{workload.key} {config or ''}: {type(error).__name__}: {error}".split("\n")[0])
    seconds = time.perf_counter() - start
    return {"op": jobs[0][0], "cases": len(jobs), "kernels": len(kernels), "failed": failed, "seconds": seconds}


def use_limits(arch: int, shared_bytes: int, sms: int) -> None:
    """This GPU's limits in place of the arch's usual ones: what a wrapper chooses by is then what it will see."""
    LIMITS[arch] = Limits(shared_bytes, sms)


def main(arch: int, shared_bytes: int, sms: int) -> None:
    """Compiles everything with one process a core and prints a line a group."""
    use_limits(arch, shared_bytes, sms)
    with compile_driver(arch):  # wrappers ask the active driver for SMs: the real one would take the GPU
        jobs = groups(arch)
    with ProcessPoolExecutor(
        max_workers=len(os.sched_getaffinity(0)),
        mp_context=get_context("spawn"),
        initializer=use_limits,
        initargs=(arch, shared_bytes, sms),
    ) as pool:
        for done in as_completed([pool.submit(compile_group, arch, group) for group in jobs]):
            print(json.dumps(done.result()), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
