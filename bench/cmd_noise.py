"""`bench noise`: how much two processes of this very code differ, case by case, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench import cmd_run
from bench import selection as options
from bench.ab import analysed, process_of
from bench.ab_tree import Side
from bench.cmd_ab import alone, interruptible, output_of, tell
from bench.environment import ROOT
from bench.selection import exit_codes

RUNS = "noise"


def noise(
    ctx: typer.Context,
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
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Directory; reports/noise-TIME else.")] = None,
    processes: Annotated[int, typer.Option(min=2, help="Processes; every two that follow one another pair up.")] = 16,
    case_seconds: cmd_run.SecondsOption = 0.5,
    seed: cmd_run.SeedOption = 0,
    timeout: cmd_run.TimeoutOption = cmd_run.TIMEOUT_S,
    wait: cmd_run.WaitOption = False,
    cache: cmd_run.CacheOption = "cold",
    sustained: cmd_run.SustainedOption = False,
    timer: cmd_run.TimerOption = "auto",
    inputs: cmd_run.InputsOption = "normal",
    as_json: options.JsonOption = False,
) -> None:
    """Measure the A/A floor of each case: this working tree against itself, in fresh processes.

    Prints 2 s / sqrt(pairs), below which a change is noise 19 times in 20; `--noise DIR` of `bench ab` and
    `analysis compare` takes it from there. Exit code 3: nothing timed twice, or no usable device; 2: usage;
    130: interrupted.
    """
    with exit_codes():
        directory = output_of(output, "noise", (RUNS,))
        with interruptible(directory), alone(ctx) as run:
            measure = process_of(run, tell)
            for number in range(1, processes + 1):
                measure(Side(RUNS, "this working tree", ROOT), directory / RUNS / f"process-{number:02d}", ())
        code, lines = analysed(["noise", str(directory / RUNS), *(["--json"] if as_json else [])], tell)
        typer.echo("\n".join(lines))
        if not as_json:
            tell(f"use it: --noise {directory / RUNS}")
    raise typer.Exit(code)
