"""`bench profile`: the command lines that put one case under Nsight Compute, Nsight Systems and Proton.

They are printed, not run: which profiler is here, and who may use it (counters often need root), only the user knows.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench import selection as options
from bench.case import Case
from bench.lookup import case_named
from bench.op_file import load_ops
from bench.profiled import MARK
from bench.run import TUNED
from bench.selection import exit_codes
from kernels.work import ELEMENT_BITS

SCRIPT = "bench/profiled.py"
NAME_LENGTH = 100
WHAT = {
    "ncu": "counters and SASS of one launch, caches flushed and clocks at base (Nsight Compute; may need root)",
    "nsys": "a timeline of launches and gaps (Nsight Systems)",
    "proton": "a table of kernels with the rates that they declare (in Triton; pip install llnl-hatchet to read it)",
    "proton_view": "reads what Proton wrote",
}


def profile(
    case: Annotated[str, typer.Argument(help="A case id as `bench list` prints it, or a part that only one has.")],
    launches: Annotated[int, typer.Option(help="Launches for nsys and Proton; ncu gets one.", min=1)] = 20,
    op_file: options.OpFileOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Print the command lines that profile one case, to run from the checkout.

    Exit code 0; 2: no such case, or several.
    """
    with exit_codes():
        chosen = case_named(case, load_ops(op_file or ()))
    lines = {tool: shlex.join(command) for tool, command in commands(chosen, launches, op_file or ()).items()}
    if as_json:
        typer.echo(json.dumps({"case_id": chosen.id, "commands": lines}, ensure_ascii=False))
        return
    for tool, line in lines.items():
        typer.echo(f"# {tool}: {WHAT[tool]}\n{line}\n")


def commands(case: Case, launches: int, op_files: Sequence[Path]) -> dict[str, list[str]]:
    """Tool -> command: each runs `bench.profiled` in one process, since Proton does not follow a child."""
    out = re.sub(r"[^A-Za-z0-9_.=-]+", "-", case.id)[:NAME_LENGTH]
    module = [sys.executable, "-m", "bench.profiled"]
    what = [case.id, *(part for file in op_files for part in ("--op-file", str(file.resolve())))]
    several = [*what, "--launches", str(launches)]
    ncu = ["ncu", "--set", "full", "--import-source", "yes", "--nvtx", "--nvtx-include", f"{MARK}/"]
    nsys = ["nsys", "profile", "--trace", "cuda,nvtx", "--capture-range", "cudaProfilerApi"]
    proton = [sys.executable, "-m", "triton.profiler.proton", "--name", out, "--hook", "triton"]
    rates = f"tflop{ELEMENT_BITS[case.workload.dtype]}/s,gbyte/s" if case.provider == TUNED else "avg_time/us"
    return {
        "ncu": [*ncu, "--force-overwrite", "--export", out, *module, *what, "--launches", "1"],
        "nsys": [
            *nsys, "--capture-range-end", "stop", "--force-overwrite", "true", "--output", out, *module, *several,
        ],
        "proton": [*proton, SCRIPT, *several],
        "proton_view": ["proton-viewer", "--metrics", rates, "--include", f".*{MARK}.*", f"{out}.hatchet"],
    }  # fmt: skip
