"""`bench tune`: measures launch configurations on this device and prints the lines to paste into the kernels' files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench import selection as options
from bench.case import Case
from bench.cmd_run import REPORTS, OutputOption, SeedOption, TimeoutOption, WaitOption, exit_code, finite, new_session
from bench.compile import LIMITS
from bench.environment import ROOT
from bench.lock import device_lock
from bench.progress import progress
from bench.record import Record, RecordWriter, write_atomically
from bench.run import TUNED, Session, not_to_run
from bench.selection import chosen_cases, exit_codes, stderr
from bench.sweep import INTERRUPTED
from bench.trial import Trial, arch_of, compiled
from bench.tune import Bucket, Choice, buckets, literals, tune_bucket, unready
from bench.worker import isolated

COMPILE_SHARE = 0.4
"""Of the budget, after which no further configuration is compiled."""
CONFIG_TIMEOUT_S = 60.0
CASE_SECONDS = 0.2
PASTE = "tuned.txt"


def tune(
    ops: options.OpsArgument = None,
    suite: options.SuiteOption = None,
    sets: options.SetOption = None,
    dtype: options.DtypeOption = None,
    match: options.MatchOption = "",
    device: options.DeviceOption = None,
    output: OutputOption = None,
    budget: Annotated[float, typer.Option(help="Seconds in all; no bucket is begun after them.", min=0.001)] = 90.0,
    seed: SeedOption = 0,
    op_file: options.OpFileOption = None,
    timeout: TimeoutOption = CONFIG_TIMEOUT_S,
    wait: WaitOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Choose launch configurations for suite standard, or the cases that the options mean; prints Python to paste.

    Exit code 0: done; 4: some configuration failed, the others count; 3: nothing to tune, none ran, or no usable
    device; 2: usage; 130: interrupted.
    """
    with exit_codes():
        cases = chosen_cases(
            ops,
            suite=suite,
            default_suite="standard",
            sets=sets,
            dtypes=dtype,
            model=None,
            tp=1,
            providers=(TUNED,),
            match=match,
            op_files=op_file,
        )
        finite("--budget", budget)
        finite("--timeout", timeout)
        session = new_session(device, CASE_SECONDS, seed)
        chosen = _tunable(cases, session)
        tell = partial(stderr.print, markup=False)
        directory = output or REPORTS / f"tune-{session.run}"
        with device_lock(session.environment, wait=wait, tell=tell):
            plan = Plan(session, budget, timeout, tuple(op_file or ()), tell, time.monotonic())
            found = _tune_all(chosen, plan, directory / "records.jsonl")
    _tell(found, session, directory, as_json=as_json)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a tuning goes about its buckets; its time runs from `start_s` of the monotonic clock."""

    session: Session
    budget_s: float
    timeout_s: float
    op_files: tuple[Path, ...]
    tell: Callable[[str], None]
    start_s: float

    def in_time(self, share: float = 1.0) -> bool:
        """Whether this share of the budget is still to come."""
        return time.monotonic() - self.start_s < share * self.budget_s


@dataclass(slots=True)
class Found:
    """What a tuning has so far."""

    choices: list[Choice] = field(default_factory=list)
    left: list[Bucket] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    interrupted: bool = False


def _tunable(cases: Sequence[Case], session: Session) -> list[Bucket]:
    """The buckets with a choice on this device. Raises typer.Exit(3) when there is none."""
    refused = {case.id: not_to_run(case, session.device) for case in cases}
    chosen = buckets([case for case in cases if not refused[case.id]], arch_of(session.environment))
    if not chosen:
        reasons = dict.fromkeys(how[1] for how in refused.values() if how)
        why = "; ".join(reasons) or "each op has one launch configuration or none"
        stderr.print(f"nothing to tune on {session.environment.device_name or session.device}: {why}", markup=False)
        raise typer.Exit(3)
    return chosen


def _tune_all(chosen: Sequence[Bucket], plan: Plan, path: Path) -> Found:
    """Compiles everything, then measures bucket by bucket until the time is over; interrupted, what it has by then."""
    found = Found(left=list(chosen))
    session = plan.session
    try:
        trials = _compiled(chosen, plan)
        with (
            RecordWriter(path, session.run, session.environment) as writer,
            isolated(session, plan.timeout_s, plan.op_files, plan.tell) as runner,
            progress(len(chosen)) as name,
        ):

            def keep(record: Record) -> None:
                writer.append(record)
                found.records.append(record)

            for bucket in chosen:
                if plan.in_time() and not unready(trials[bucket.name]):
                    name(bucket.name)
                    found.choices.append(tune_bucket(bucket, trials[bucket.name], session, runner, keep))
                    found.left.remove(bucket)
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def _compiled(chosen: Sequence[Bucket], plan: Plan) -> dict[str, list[Trial]]:
    """How each bucket's configurations compile, by its name."""
    cases = [case for bucket in chosen for case in bucket.cases]
    arch = arch_of(plan.session.environment)
    if arch and arch not in LIMITS:
        plan.tell(f"nothing is known of what a block of sm_{arch} holds: spills are not looked for before measuring")
    jobs = len(os.sched_getaffinity(0))
    trials = iter(
        compiled(
            cases,
            plan.session,
            plan.op_files,
            plan.tell,
            jobs=jobs,
            timeout_s=plan.timeout_s,
            in_time=lambda: plan.in_time(COMPILE_SHARE),
        )
    )
    return {bucket.name: list(islice(trials, len(bucket.configs))) for bucket in chosen}


def _tell(found: Found, session: Session, directory: Path, *, as_json: bool) -> None:
    """Prints what was chosen and ends with the documented exit code."""
    environment = session.environment
    made = literals(found.choices, environment.device_name or session.device, environment.triton or "no triton")
    texts = {_told_path(file): text for file, text in made}
    write_atomically(directory / PASTE, "\n".join(f"# {file}\n{text}\n" for file, text in texts.items()))
    code = INTERRUPTED if found.interrupted else exit_code(found.records)
    if as_json:
        typer.echo(json.dumps(_document(found, directory, texts, code), ensure_ascii=False))
    else:
        _print(found, directory, texts)
    raise typer.Exit(code)


def _told_path(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else file


def _document(found: Found, directory: Path, texts: dict[str, str], code: int) -> dict[str, Any]:
    return {
        "records": str(directory / "records.jsonl"),
        "buckets": [
            {
                "op": choice.bucket.op.name,
                "bucket": choice.bucket.key,
                "case_id": choice.bucket.case.id,
                "config": None if choice.config is None else repr(choice.config),
                "why": choice.why,
                "default_us": choice.default_us,
                "best_us": choice.best_us,
            }
            for choice in found.choices
        ],
        "not_tuned": [bucket.name for bucket in found.left],
        "literals": texts,
        "exit": code,
    }


def _print(found: Found, directory: Path, texts: dict[str, str]) -> None:
    table = Table("op", "bucket", "default us", "best us", "chosen", box=None)
    for choice in found.choices:
        times = ("" if us is None else f"{us:.4g}" for us in (choice.default_us, choice.best_us))
        chosen = f"{choice.config or 'default'}: {choice.why}"
        table.add_row(choice.bucket.op.name, str(choice.bucket.key), *times, chosen)
    Console(highlight=False, width=None if Console().is_terminal else 240).print(table)
    for file, text in texts.items():
        typer.echo(f"\n# merge into {file}:\n{text}")
    for bucket in found.left:
        typer.echo(f"not tuned, the time was over: {bucket.name}")
    typer.echo(
        f"{len(found.choices)} tuned, {len(found.left)} left; {directory / 'records.jsonl'}, {directory / PASTE}"
    )
