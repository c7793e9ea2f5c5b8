"""`python -m bench compile`: what the compiler makes of every kernel, for any NVIDIA arch, without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer

from bench import selection as options
from bench.compile import LIMITS
from bench.compile_cache import ensure_writable
from bench.compile_jobs import PROVIDER, Job, Outcome, case_of, failed, jobs, own_ops, run_job
from bench.compiled import RECORDS, CompileRecord, CompileWriter
from bench.environment import environment
from bench.selection import chosen_ops, exit_codes, stderr

FAILED, NOTHING = 4, 3
"""Exit codes: some case did not compile; none did."""
CRASHED = "the compiler crashed, and its process with it"


def compile_kernels(
    ops: options.OpsArgument = None,
    *,
    arch: Annotated[str, typer.Option(help=f"Compute capabilities, of {', '.join(map(str, LIMITS))}.")] = "90",
    op_file: options.OpFileOption = None,
    output: Annotated[Path, typer.Option("--output", "-o", help=f"Directory for {RECORDS} and listings; a new one.")],
) -> None:
    """Compile every op x shape bucket x configuration, and record what became of it.

    `python -m analysis compile DIR` tells what it means. Exit code 4: a case did not compile; 3: none did.
    """
    with exit_codes():
        archs = _archs(arch)
        files = tuple(op_file or ())
        wanted = jobs(chosen_ops(ops, own_ops(files)), archs, files)
        if not wanted:
            raise ValueError(f"none of these ops has a provider {PROVIDER}: nothing to compile")
        ensure_writable(partial(stderr.print, markup=False))
        records: list[CompileRecord] = []
        with CompileWriter(output, environment("cpu")) as writer:
            for outcome in outcomes(wanted):
                for record, listing in outcome:
                    writer.append(record, listing)
                    records.append(record)
    bad = [record for record in records if record.error]
    for record in bad:
        stderr.print(f"{record.case['id']} {dict(record.config)} sm_{record.arch}: {record.error}", markup=False)
    spilled = sum(record.spill_stores > 0 for record in records)
    kernels = len({record.cubin_sha256 for record in records if not record.error})
    typer.echo(f"{len(wanted)} cases, {kernels} kernels, {spilled} spill, {len(bad)} do not compile: {output}")
    if bad:
        raise typer.Exit(NOTHING if len(bad) == len(records) else FAILED)


def outcomes(wanted: Sequence[Job]) -> Iterator[Outcome]:
    """What each job came to, in order; one that kills its process comes after the others and costs none of them."""
    files = next((job.op_files for job in wanted if job.op_files), ())
    unfinished = []
    with _pool(min(len(os.sched_getaffinity(0)), len(wanted)), files) as pool:
        for job, running in [(job, pool.submit(run_job, job)) for job in wanted]:
            try:
                yield running.result()
            except BrokenProcessPool:
                unfinished.append(job)
    for job in unfinished:
        with _pool(1, files) as alone:
            try:
                yield alone.submit(run_job, job).result()
            except BrokenProcessPool:
                yield failed(case_of(job), job.arch, job.config, default=job.default, why=CRASHED)


def _pool(workers: int, files: tuple[Path, ...]) -> ProcessPoolExecutor:
    """Fresh processes: Triton and LLVM do not outlive a fork."""
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=own_ops, initargs=(files,))


def _archs(text: str) -> list[int]:
    known = ", ".join(map(str, LIMITS))
    found = [part.strip() for part in text.split(",")]
    if any(not part.isdecimal() or int(part) not in LIMITS for part in found):
        raise ValueError(f"--arch {text!r}: wanted compute capabilities of {known}, such as 90,100")
    return list(dict.fromkeys(map(int, found)))
