"""`bench ab`: this working tree against a revision of it, on one device, with an exit code that a CI can trust."""

from __future__ import annotations

import importlib.util
import multiprocessing
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import cmd_run
from bench import selection as options
from bench.ab import RERUN, SIDES, Asked, analysed, judge_of, process_of, sides_in, stage_one, stage_two
from bench.ab_tree import trees
from bench.compile_cache import ensure_writable
from bench.device import choose_device
from bench.ending import end_on_signals
from bench.environment import ROOT, environment
from bench.lock import device_lock
from bench.record import Environment
from bench.selection import chosen_cases, exit_codes, stderr
from bench.sweep import INTERRUPTED

THRESHOLD = 0.01
"""Alternating pairs resolve less than `analysis compare` may believe of runs of different days."""
PAIRS = 8
LEAST_RERUNS = 3
"""Pairs from which an interval decides."""
RUN_OPTIONS: Mapping[str, str] = {
    "suite": "--suite", "sets": "--set", "dtype": "--dtype", "model": "--model", "tp": "--tp", "provider": "--provider",
    "case_seconds": "--case-seconds", "seed": "--seed", "timeout": "--timeout", "cache": "--cache",
    "sustained": "--sustained", "timer": "--timer", "inputs": "--inputs",
}  # fmt: skip
RULES: Mapping[str, str] = {
    "threshold_for": "--threshold-for", "min_abs_us": "--min-abs-us", "noise": "--noise", "allow": "--allow",
    "strict": "--strict",
}  # fmt: skip
OUTPUTS: Mapping[str, str] = {"junit": "--junit", "markdown": "--markdown", "rows": "--rows", "as_json": "--json"}
BaselineOption = Annotated[str, typer.Option("--baseline", help="Commit, tag or branch to compare this tree with.")]
PairsOption = Annotated[int, typer.Option("--pairs", min=1, help="Pairs of runs; the order is ABBA.")]
tell = partial(stderr.print, markup=False)


def ab(
    ctx: typer.Context,
    baseline: BaselineOption,
    ops: options.OpsArgument = None,
    suite: options.SuiteOption = None,
    sets: options.SetOption = None,
    dtype: options.DtypeOption = None,
    model: options.ModelOption = None,
    tp: options.TpOption = 1,
    provider: options.ProviderOption = None,
    match: options.MatchOption = "",
    op_file: options.OpFileOption = None,
    device: options.DeviceOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Directory; reports/ab-TIME else.")] = None,
    pairs: PairsOption = PAIRS,
    rerun_pairs: Annotated[int, typer.Option(min=LEAST_RERUNS, help="Fresh pairs of what is flagged.")] = PAIRS,
    time_identical: Annotated[bool, typer.Option("--time-identical", help="All pairs of the same code too.")] = False,
    case_seconds: cmd_run.SecondsOption = 0.5,
    seed: cmd_run.SeedOption = 0,
    timeout: cmd_run.TimeoutOption = cmd_run.TIMEOUT_S,
    wait: cmd_run.WaitOption = False,
    cache: cmd_run.CacheOption = "cold",
    sustained: cmd_run.SustainedOption = False,
    timer: cmd_run.TimerOption = "auto",
    inputs: cmd_run.InputsOption = "normal",
    threshold: Annotated[float, typer.Option(help="Fraction that a change must pass.")] = THRESHOLD,
    threshold_for: Annotated[list[str] | None, typer.Option(help="PATTERN=FRACTION for case ids.")] = None,
    min_abs_us: Annotated[float, typer.Option(help="A change of fewer microseconds is none.")] = 0.0,
    noise: Annotated[list[Path] | None, typer.Option(help="Of `bench noise`: the A/A floor of each case.")] = None,
    allow: Annotated[list[str] | None, typer.Option(help="A FIELD that may differ, as `analysis compare`.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="A missing case is exit code 3.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write Markdown for a pull request to this file.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Rows of the table on the terminal; 0 prints all.")] = 40,
    as_json: options.JsonOption = False,
) -> None:
    """Hold this working tree, with what is not committed, against a revision of it: is any case slower?

    Runs of both trees alternate in fresh processes; a case that they flag is run again in fresh pairs, and is SLOW or
    FAST only when those say so too. A case that launches the same binaries in both trees is SAME after one pair. Exit
    codes as of `analysis compare`: 0 none SLOW; 1 any SLOW; 4 any INVALID; 3 nothing compared or no usable device;
    2 usage, or a baseline that cannot run this; 130 interrupted.
    """
    with exit_codes():
        code = _ab(ctx)
    raise typer.Exit(code)


def _ab(ctx: typer.Context) -> int:
    asked = ctx.params
    directory = output_of(asked["output"], "ab", (*SIDES, RERUN))
    rules = ["--threshold", str(asked["threshold"]), *given(ctx, RULES)]
    with (
        interruptible(directory),
        trees(asked["baseline"], ROOT) as sides,
        alone(ctx) as run,
    ):
        for side in sides:
            tell(f"{side.name}: {side.told}")
        measure, judge = process_of(run, tell), judge_of(directory, rules)
        flagged = stage_one(measure, judge, sides, directory, asked["pairs"], time_identical=asked["time_identical"])
        if flagged:
            tell(f"{len(flagged)} cases are flagged: {asked['rerun_pairs']} fresh pairs of them decide")
            stage_two(measure, sides, directory, asked["rerun_pairs"], flagged)
    rerun = ["--rerun", str(directory / RERUN)] if flagged else []
    code, lines = analysed(["compare", *map(str, sides_in(directory)), *rules, *rerun, *given(ctx, OUTPUTS)], tell)
    typer.echo("\n".join(lines))
    return code


def given(ctx: typer.Context, flags: Mapping[str, str]) -> list[str]:
    """The options among these that were given, as a command line: an older `bench` may not know the others.

    Args:
        flags: name of the parameter -> its option.
    """
    told: list[str] = []
    for name, flag in flags.items():
        source = ctx.get_parameter_source(name)
        if source is None or source.name.startswith("DEFAULT"):
            continue
        value = ctx.params[name]
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is not False:
                told += [flag] if one is True else [flag, str(one.resolve() if isinstance(one, Path) else one)]
    return told


def output_of(output: Path | None, command: str, made: tuple[str, ...]) -> Path:
    """The directory for a command's runs, absolute.

    Raises:
        ValueError: it has some already, or there is no analysis to read them.
    """
    if missing := [name for name in ("pandas", "scipy") if importlib.util.find_spec(name) is None]:
        raise ValueError(f"bench {command} needs {' and '.join(missing)} for its verdict: pip install pandas scipy")
    directory = (output or cmd_run.REPORTS / f"{command}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}").resolve()
    if there := [name for name in made if (directory / name).exists()]:
        raise ValueError(f"{directory} has {', '.join(there)} of an earlier run: give another directory with -o")
    return directory


@contextmanager
def interruptible(directory: Path) -> Iterator[None]:
    """Ctrl-C, and a machine that is taken away, end with exit code 130 and where the records are."""
    end_on_signals()
    try:
        yield
    except KeyboardInterrupt:
        tell(f"interrupted: what was measured is safe in {directory}; `python -m analysis compare` reads it")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def alone(ctx: typer.Context) -> Iterator[Asked]:
    """The device to itself for all runs, and what they are asked for. Raises ValueError or DeviceError."""
    asked: Mapping[str, Any] = ctx.params
    op_files = tuple(path.resolve() for path in asked["op_file"] or ())
    chosen_cases(
        asked["ops"], suite=asked["suite"], default_suite="quick", sets=asked["sets"], dtypes=asked["dtype"],
        model=asked["model"], tp=asked["tp"], providers=asked["provider"], match=asked["match"], op_files=op_files,
    )  # fmt: skip
    device = choose_device(asked["device"])
    ensure_writable(tell)
    arguments = (*(asked["ops"] or ()), *given(ctx, RUN_OPTIONS), "--device", device)
    with (
        device_lock(_environment(device), wait=asked["wait"], tell=tell),
        tempfile.TemporaryDirectory(prefix="roofmark-locks-") as locks,
    ):
        yield Asked(arguments=arguments, match=asked["match"], op_files=op_files, checkout=ROOT, locks=Path(locks))


def _environment(device: str) -> Environment:
    """Asked of a GPU in a process that ends: one that stays there would make every run flag the device contended."""
    if device == "cpu":
        return environment(device)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(environment, device).result()
