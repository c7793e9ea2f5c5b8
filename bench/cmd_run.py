"""`bench run` and `bench peaks`: what a sweep is asked for, and what it tells at its end."""

from __future__ import annotations

import json
import math
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench import selection as options
from bench.case import Case
from bench.compile_cache import ensure_writable
from bench.device import choose_device
from bench.environment import environment
from bench.lock import device_lock
from bench.method import CACHES, INPUTS, TIMERS, Method
from bench.peaks import roof_cases
from bench.plan import Budget, left_out_lines, seconds_of
from bench.record import Record, Status, write_atomically
from bench.run import Session
from bench.selection import chosen_cases, exit_codes, stderr
from bench.stopping import StopRule, median_interval
from bench.sweep import sweep
from bench.worker import Ended, isolated

TIMEOUT_S = 300.0
REPORTS = Path("reports")
DEFAULT = Method()
LEFT_OUT = "left_out.txt"
"""Ids of the cases that did not fit into the budget, one a line, beside the records."""
BAD = (Status.INCORRECT, Status.FAILED, Status.CRASHED, Status.TIMEOUT, Status.OUT_OF_MEMORY)
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Directory for records.jsonl; reports/run-TIME when not given.")
]
SecondsOption = Annotated[
    float, typer.Option("--case-seconds", help="Longest measuring of a case, in seconds.", min=0.001)
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", help="Longest that a case may take in all, in seconds.", min=0.001)
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on in -o DIR: leave out what it has of this source and machine.")
]
ShardOption = Annotated[str, typer.Option("--shard", help="I/N: part I of N of the cases; `bench merge` joins them.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait for another run on this device to end.")]
CacheOption = Annotated[
    str, typer.Option("--cache", help=f"{' or '.join(CACHES)}: streamed inputs rotate, or one set is read over again.")
]
SustainedOption = Annotated[bool, typer.Option("--sustained", help="Three seconds of load before each measuring.")]
TimerOption = Annotated[
    str, typer.Option("--timer", help=f"{', '.join(TIMERS)}; auto is a graph, else events. On a GPU only.")
]
InputsOption = Annotated[
    str, typer.Option("--inputs", help=f"{' or '.join(INPUTS)}: what is timed; the check has normal ones.")
]
NvtxOption = Annotated[bool, typer.Option("--nvtx", help="An NVTX range around the timed part of each case.")]
BudgetOption = Annotated[
    str, typer.Option("--budget", help="Time for it all, such as 480s or 8m: the most telling cases first, by group.")
]
SeedOption = Annotated[int, typer.Option(help="Seed of the inputs.")]


def run(
    ops: options.OpsArgument = None,
    suite: options.SuiteOption = None,
    sets: options.SetOption = None,
    dtype: options.DtypeOption = None,
    model: options.ModelOption = None,
    tp: options.TpOption = 1,
    provider: options.ProviderOption = None,
    match: options.MatchOption = "",
    device: options.DeviceOption = None,
    output: OutputOption = None,
    case_seconds: SecondsOption = 0.5,
    seed: SeedOption = 0,
    peaks: Annotated[bool, typer.Option(help="Measure this device's roofs first.")] = True,
    op_file: options.OpFileOption = None,
    resume: ResumeOption = False,
    shard: ShardOption = "1/1",
    budget: BudgetOption = "",
    timeout: TimeoutOption = TIMEOUT_S,
    wait: WaitOption = False,
    cache: CacheOption = "cold",
    sustained: SustainedOption = False,
    timer: TimerOption = "auto",
    inputs: InputsOption = "normal",
    nvtx: NvtxOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Measure cases, each in a process that may crash: suite quick, or those that the options mean.

    Exit code 0: all OK, SKIPPED or UNSUPPORTED; 4: some failed; 3: none OK, or no usable device; 2: usage;
    130: interrupted.
    """
    with exit_codes():
        cases = chosen_cases(
            ops, suite=suite, default_suite="quick", sets=sets, dtypes=dtype, model=model, tp=tp,
            providers=provider, match=match, op_files=op_file,
        )  # fmt: skip
        cases = _one_shard(cases, shard)
        method = Method(cache=cache, regime="sustained" if sustained else "burst", timer=timer, inputs=inputs)
        session = new_session(device, case_seconds, seed, method, nvtx=nvtx)
    roofs = roof_cases(session.device, session.cache_bytes) if peaks else []
    how = How(timeout_s=timeout, wait=wait, resume=resume, op_files=tuple(op_file or ()), budget=budget)
    _sweep_and_tell(cases, session, output, how, roofs=roofs, as_json=as_json)


def measure_peaks(
    device: options.DeviceOption = None,
    output: OutputOption = None,
    case_seconds: SecondsOption = 0.5,
    timeout: TimeoutOption = TIMEOUT_S,
    wait: WaitOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Measure this device's own roofs: best matmul per dtype, DRAM reads and copies, launch floor."""
    with exit_codes():
        session = new_session(device, case_seconds, 0)
    roofs = roof_cases(session.device, session.cache_bytes)
    _sweep_and_tell(roofs, session, output, How(timeout_s=timeout, wait=wait), as_json=as_json)


def new_session(
    device: str | None, case_seconds: float, seed: int, method: Method = DEFAULT, *, nvtx: bool = False
) -> Session:
    """A session on the chosen device. Raises DeviceError or ValueError for what cannot be used, or not there."""
    finite("--case-seconds", case_seconds)
    chosen = choose_device(device)
    if chosen == "cpu" and method.timer != "auto":
        raise ValueError(f"--timer {method.timer} needs a GPU: a CPU has one clock, which is --timer auto")
    ensure_writable(partial(stderr.print, markup=False))
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{chosen}-{secrets.token_hex(2)}"
    return Session(
        run=run_id,
        device=chosen,
        environment=environment(chosen),
        rule=StopRule(min_s=min(0.1, case_seconds), budget_s=case_seconds),
        method=method,
        seed=seed,
        nvtx=nvtx,
    )


def finite(option: str, seconds: float) -> None:
    """Raises ValueError for infinity, which the command line's own check of a range lets through."""
    if not math.isfinite(seconds):
        raise ValueError(f"{option} {seconds}: wanted a number of seconds")


def _one_shard(cases: Sequence[Case], shard: str) -> list[Case]:
    """Its cases. Raises typer.Exit(3) when it has none: nothing would be measured."""
    chosen = options.shard_of(cases, shard)
    if not chosen:
        stderr.print(f"shard {shard}: none of the {len(cases)} cases falls into it", markup=False)
        raise typer.Exit(3)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a sweep goes about its cases."""

    timeout_s: float
    wait: bool
    resume: bool = False
    op_files: tuple[Path, ...] = ()
    budget: str = ""


def _sweep_and_tell(
    cases: Sequence[Case], session: Session, output: Path | None, how: How, *, roofs: Sequence[Case] = (), as_json: bool
) -> None:
    """Runs the roofs and the cases in order in a worker, and ends with the documented exit code."""
    directory = output or REPORTS / f"run-{session.run}"
    path = directory / "records.jsonl"
    tell = partial(stderr.print, markup=False)
    with exit_codes():
        finite("--timeout", how.timeout_s)
        if how.resume and output is None:
            raise ValueError("--resume goes on in a directory: name it with -o DIR")
        limit = Budget(seconds_of(how.budget), session.device, session.rule, session.method) if how.budget else None
    with (
        exit_codes(),
        device_lock(session.environment, wait=how.wait, tell=tell),
        isolated(session, how.timeout_s, how.op_files, tell) as runner,
    ):
        records = sweep((*roofs, *cases), session, path, runner, resume=how.resume, budget=limit)
    ran = {record.case["id"] for record in records}
    left_out = [case for case in (*roofs, *cases) if case.id not in ran]
    code = exit_code(records, roofs=sum(case.id in ran for case in roofs))
    with exit_codes():
        _tell_left_out(left_out, directory)
    if as_json:
        document = _document(records, path, code) | {"left_out": [case.id for case in left_out]}
        typer.echo(json.dumps(document, ensure_ascii=False))
    else:
        _print(records, directory, path)
    raise typer.Exit(code)


def _tell_left_out(cases: Sequence[Case], directory: Path) -> None:
    """Tells how many of which group, and keeps their ids in a file, which is gone when nothing is left out."""
    file = directory / LEFT_OUT
    if not cases:
        file.unlink(missing_ok=True)
        return
    write_atomically(file, "".join(f"{case.id}\n" for case in cases))
    for line in left_out_lines(cases):
        stderr.print(line, markup=False)
    stderr.print(f"listed in {file}; go on with: -o {directory} --resume", markup=False)


def exit_code(records: Sequence[Ended], *, roofs: int = 0) -> int:
    """0 all OK, SKIPPED or UNSUPPORTED; 3 none OK; 4 any that failed.

    The first `roofs` records are measured beside what was asked for: one that failed counts, but a run has not
    measured anything because its roofs were.
    """
    if all(record.status is not Status.OK for record in records[roofs:]):
        return 3
    return 4 if any(record.status in BAD for record in records) else 0


def _document(records: Sequence[Record], path: Path, code: int) -> dict[str, object]:
    return {
        "records": str(path),
        "counts": _counts(records),
        "cases": [
            {
                "case_id": record.case["id"],
                "status": str(record.status),
                "detail": record.detail,
                "time_us": median_interval(record.times_us)[0] if record.times_us else None,
            }
            for record in records
        ],
        "exit": code,
    }


def _counts(records: Sequence[Record]) -> dict[str, int]:
    """How many ended how; OK is named even when there is none."""
    return {"OK": 0} | Counter(str(record.status) for record in records)


def _print(records: Sequence[Record], directory: Path, path: Path) -> None:
    table = Table("case", "median us", "95 % interval", "samples", "stopped by", "cache", "timer", box=None)
    for record in records:
        if record.status is not Status.OK:
            continue
        median, low, high = median_interval(record.times_us)
        shown = (f"{median:.4g}", f"{low:.4g} to {high:.4g}", str(len(record.times_us)))
        table.add_row(record.case["id"], *shown, record.stop_reason, record.cache, record.timer)
    Console(highlight=False, width=None if Console().is_terminal else 200).print(table)
    for (status, detail), count in Counter((r.status, r.detail) for r in records if r.status is not Status.OK).items():
        typer.echo(f"{count} {status}: {detail}")
    counts = ", ".join(f"{count} {status}" for status, count in _counts(records).items())
    typer.echo(f"{counts}; records: {path}")
    typer.echo(f"rates, classes and figure: python -m analysis roofline {directory}")
