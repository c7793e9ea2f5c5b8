"""`python -m bench`: the command line. One file a command."""

from __future__ import annotations

import typer

from bench.cmd_check import check
from bench.cmd_compile import compile_kernels
from bench.cmd_list import list_cases
from bench.cmd_merge import merge
from bench.cmd_run import measure_peaks, run

app = typer.Typer(
    help="Run kernels of LLM inference and measure them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("list")(list_cases)
app.command("run")(run)
app.command("check")(check)
app.command("peaks")(measure_peaks)
app.command("merge")(merge)
app.command("compile")(compile_kernels)

if __name__ == "__main__":
    app(prog_name="python -m bench")
