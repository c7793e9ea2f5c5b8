"""The command `python -m analysis`: what records mean. One file a command; nothing heavy is imported at start."""

from __future__ import annotations

import io
import os
import sys

import typer

from analysis.cmd_audit import audit
from analysis.cmd_compare import compare
from analysis.cmd_compile import compile_report
from analysis.cmd_noise import noise
from analysis.cmd_reference import reference
from analysis.cmd_report import report
from analysis.cmd_roofline import roofline
from analysis.cmd_serve import serve
from analysis.cmd_serving_report import serving_report
from analysis.cmd_serving_tables import serving_tables
from analysis.cmd_simulate import simulate
from analysis.cmd_techniques import techniques
from analysis.cmd_validate import validate

app = typer.Typer(
    help="What measured records mean: rooflines and tables. Needs neither a GPU nor torch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def main() -> None:
    """What measured records mean: rooflines and tables. Needs neither a GPU nor torch."""


app.command()(roofline)
app.command()(report)
app.command()(reference)
app.command()(compare)
app.command()(noise)
app.command()(techniques)
app.command()(audit)
app.command()(serve)
app.command()(simulate)
app.command()(validate)
app.command("compile")(compile_report)
app.command("serving-report")(serving_report)
app.command("serving-tables")(serving_tables)


def run() -> None:
    """Starts the command with an output that takes any character and no display."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that the terminal's encoding lacks must not end a report that is already written.
            stream.reconfigure(errors="replace")
    # matplotlib reads this on import and refuses names it does not know; figures here need no backend at all.
    os.environ["MPLBACKEND"] = "agg"
    app(prog_name="python -m analysis")


if __name__ == "__main__":
    run()
