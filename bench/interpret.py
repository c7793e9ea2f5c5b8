"""Which cases Triton's interpreter can check on a CPU, and a process in which it is on.

TRITON_INTERPRET counts when a kernel is decorated, so it has to be set before kernels are imported: another process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from bench.case import Case, merged
from kernels.spec import Op, Workload

PROVIDER = "triton"
VARIABLE = "TRITON_INTERPRET"
LIMIT_S = 180
INTERPRETED_DTYPES = {
    "bfloat16": ("float16", "float32"),
    "float16": ("float16", "float32"),
    "tfloat32": ("float32",),
}
"""What is checked for a dtype. The interpreter multiplies bfloat16 bit patterns as integers and truncates when it
rounds to it, and computes TF32 in float32; float16 and float32 it computes as a GPU would, up to the order of sums."""


def is_on() -> bool:
    """Whether kernels of this process are interpreted."""
    return os.environ.get(VARIABLE) == "1"


def interpreted_workloads(op: Op) -> list[Workload]:
    """The op's check workloads in the dtypes that the interpreter gets right, one of a key."""
    return merged(
        replace(workload, dtype=dtype)
        for workload in op.check_workloads
        for dtype in INTERPRETED_DTYPES.get(workload.dtype, (workload.dtype,))
        if dtype in op.dtypes and not op.unsupported(replace(workload, dtype=dtype), PROVIDER)
    )


def interpreted_cases(ops: Iterable[Op]) -> list[Case]:
    """The Triton provider at those workloads, the ops taking turns so that each is met early."""
    by_op = [[Case(op, PROVIDER, w) for w in interpreted_workloads(op)] for op in ops if PROVIDER in op.providers]
    return [case for case in chain.from_iterable(zip_longest(*by_op)) if case is not None]


def rerun(arguments: Sequence[str]) -> int | None:
    """Exit code of `python -m bench ARGUMENTS` with the interpreter on; None when it did not end within `LIMIT_S`."""
    command = [sys.executable, "-m", "bench", *arguments]
    try:
        return subprocess.run(command, env=os.environ | {VARIABLE: "1"}, timeout=LIMIT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        return None
