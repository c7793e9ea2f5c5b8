"""`bench list`: the cases a selection means, without running any; needs no GPU."""

from __future__ import annotations

import json
from collections import Counter

import typer
from rich.console import Console
from rich.table import Table

from bench import selection as options
from bench.selection import chosen_cases, exit_codes


def list_cases(
    ops: options.OpsArgument = None,
    suite: options.SuiteOption = None,
    sets: options.SetOption = None,
    dtype: options.DtypeOption = None,
    model: options.ModelOption = None,
    tp: options.TpOption = 1,
    provider: options.ProviderOption = None,
    match: options.MatchOption = "",
    op_file: options.OpFileOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """List cases: all of suite full, or those that the options mean."""
    with exit_codes():
        cases = chosen_cases(
            ops,
            suite=suite,
            default_suite="full",
            sets=sets,
            dtypes=dtype,
            model=model,
            tp=tp,
            providers=provider,
            match=match,
            op_files=op_file,
        )
    if as_json:
        typer.echo(json.dumps([case.to_json() for case in cases], ensure_ascii=False))
        return
    table = Table("case", "phase", "technique", "source", box=None)
    for case in cases:
        table.add_row(case.id, case.workload.phase, case.workload.technique, "; ".join(case.workload.source))
    Console(highlight=False, width=None if Console().is_terminal else 240).print(table)
    counts = Counter(case.op.name for case in cases)
    typer.echo(f"{len(cases)} cases: " + ", ".join(f"{count} {op}" for op, count in counts.items()))
