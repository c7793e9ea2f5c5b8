"""`bench check`: outputs against the float64 reference, and nothing timed; on the GPU, or interpreted on a CPU.

Each case is checked in a worker process that it may crash; interpreted ones all in the one that has the interpreter on.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench import interpret
from bench import selection as options
from bench.case import Case, select
from bench.cmd_run import TIMEOUT_S, SeedOption, TimeoutOption, exit_code, finite, new_session
from bench.isolated_check import Checked, Checker, check_one, isolated_checks
from bench.op_file import load_ops
from bench.progress import progress
from bench.record import Status
from bench.selection import chosen_cases, chosen_ops, exit_codes, stderr
from bench.suites import suite_workloads

START_UNTIL_S = 150
"""Seconds after which an interpreted check starts no further case: the whole ends within `interpret.LIMIT_S`."""


def check(
    ops: options.OpsArgument = None,
    suite: options.SuiteOption = None,
    sets: options.SetOption = None,
    dtype: options.DtypeOption = None,
    model: options.ModelOption = None,
    tp: options.TpOption = 1,
    provider: options.ProviderOption = None,
    match: options.MatchOption = "",
    device: options.DeviceOption = None,
    interpreted: Annotated[
        bool,
        typer.Option("--interpret", help="Small cases by Triton's interpreter: needs no GPU, ends within 3 minutes."),
    ] = False,
    seed: SeedOption = 0,
    op_file: options.OpFileOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: options.JsonOption = False,
) -> None:
    """Check outputs against the float64 reference: suite quick, or the cases that the options mean.

    Exit code 0: all OK, SKIPPED or UNSUPPORTED; 4: some failed; 3: none OK, or no usable device; 2: usage.
    """
    with exit_codes():
        if interpreted:
            named = _of_suite(ops, suite)
            _interpret(named, op_file or (), match, seed, as_json, sizes=(sets, dtype, model, provider, device))
        cases = chosen_cases(
            ops,
            suite=suite,
            default_suite="quick",
            sets=sets,
            dtypes=dtype,
            model=model,
            tp=tp,
            providers=provider,
            match=match,
            op_files=op_file,
        )
        finite("--timeout", timeout)
        session = new_session(device, 0.0, seed)
        tell = partial(stderr.print, markup=False)
        with isolated_checks(session, timeout, tuple(op_file or ()), tell) as checker:
            _check_all(cases, session.device, checker, as_json=as_json)


def _of_suite(names: Sequence[str] | None, suite: str | None) -> Sequence[str] | None:
    """Of the ops named, or of all, those that the suite has cases of; as they are without a suite."""
    if suite is None:
        return names
    there = suite_workloads(suite)
    chosen = [name for name in names or there if name in there]
    if not chosen:
        raise ValueError(f"suite {suite} has no case of {', '.join(names or ())}")
    return chosen


def _interpret(
    ops: Sequence[str] | None,
    op_files: Sequence[Path],
    match: str,
    seed: int,
    as_json: bool,
    *,
    sizes: Sequence[object] = (),
) -> None:
    """Checks the ops' own small cases in a process with the interpreter on, and exits as that does."""
    if any(sizes):
        raise ValueError(
            "--interpret checks the ops' own small cases: it takes ops, --suite for those it has, --op-file, "
            "--match and --seed"
        )
    chosen = chosen_ops(ops, load_ops(op_files))
    cases = interpret.interpreted_cases(chosen)
    if not cases:
        raise ValueError(f"no Triton kernel to interpret in {', '.join(op.name for op in chosen)}")
    cases = select(cases, match=match)
    if interpret.is_on():
        end = time.monotonic() + START_UNTIL_S

        def in_time(case: Case) -> Checked:
            late = Checked(case.id, Status.SKIPPED, f"not begun within {START_UNTIL_S} s")
            return check_one(case, "cpu", seed) if time.monotonic() < end else late

        _check_all(cases, "cpu", in_time, as_json=as_json)
    stderr.print(
        f"Triton's interpreter, on the CPU: {len(cases)} small cases in float16 and float32, at most 3 minutes. "
        "It shows that the algorithm is right, not that the compiled kernel is."
    )
    arguments = ["check", *(ops or ()), "--interpret", "--match", match, "--seed", str(seed)]
    arguments += [part for file in op_files for part in ("--op-file", str(file))]
    code = interpret.rerun([*arguments, *(["--json"] if as_json else [])])
    if code is None:
        stderr.print(f"[red]error:[/red] not done after {interpret.LIMIT_S} s: name one op, or a --match")
    raise typer.Exit(4 if code is None else code)


def _check_all(cases: Sequence[Case], device: str, checker: Checker, *, as_json: bool) -> None:
    """Checks the cases in order, tells how each ended, and exits with the documented code."""
    results = []
    with progress(len(cases)) as name:
        for case in cases:
            name(case.id)
            results.append(checker(case))
    code = exit_code(results)
    if as_json:
        counts = Counter(str(result.status) for result in results)
        document = {"device": device, "interpreted": interpret.is_on(), "counts": counts, "exit": code}
        typer.echo(json.dumps(document | {"cases": [asdict(result) for result in results]}, ensure_ascii=False))
    else:
        _print(results)
    raise typer.Exit(code)


def _print(results: Sequence[Checked]) -> None:
    table = Table("case", "status", "max error", "limit", "RMS error", "limit", box=None)
    names = ("out_max_error", "out_max_limit", "out_rms_error", "out_rms_limit")
    for result in results:
        shown = (f"{result.error[name]:.3g}" if name in result.error else "" for name in names)
        table.add_row(result.case_id, str(result.status), *shown)
    Console(highlight=False, width=None if Console().is_terminal else 200).print(table)
    for (status, detail), count in Counter((r.status, r.detail) for r in results if r.detail).items():
        typer.echo(f"{count} {status}: {detail}")
    typer.echo(", ".join(f"{count} {status}" for status, count in Counter(str(r.status) for r in results).items()))
