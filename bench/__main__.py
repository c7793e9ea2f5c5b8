"""`python -m bench`: the command line. One file a command."""

from __future__ import annotations

import typer

from bench.cmd_ab import ab
from bench.cmd_check import check
from bench.cmd_compile import compile_kernels
from bench.cmd_gpu import gpu
from bench.cmd_list import list_cases
from bench.cmd_merge import merge
from bench.cmd_noise import noise
from bench.cmd_profile import profile
from bench.cmd_run import measure_peaks, run
from bench.cmd_tune import tune

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
app.command("ab")(ab)
app.command("noise")(noise)
app.command("tune")(tune)
app.command("profile")(profile)
app.command("gpu")(gpu)
app.command("compile")(compile_kernels)

if __name__ == "__main__":
    app(prog_name="python -m bench")
