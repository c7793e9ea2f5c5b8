"""Which cases a command means: its options, stated once for `list` and `run`, and what they select."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.case import Case, merged, select
from bench.device import DeviceError
from bench.op_file import load_ops
from bench.suites import SUITES, model_workloads, question_workloads, suite_workloads
from kernels.registry import OPS, op_named
from kernels.spec import Op, Workload, stored_as

stderr = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

OpFileOption = Annotated[
    list[Path] | None,
    typer.Option("--op-file", help="Python file with an OP of your own, alone unless other ops are named; repeat."),
]
OpsArgument = Annotated[list[str] | None, typer.Argument(help="Ops; all when none is named.", show_default=False)]
SuiteOption = Annotated[str | None, typer.Option(help=f"Named set of cases: {', '.join(SUITES)}.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="AXIS=SIZE[,SIZE...]; repeat per axis. For exactly one op.")
]
DtypeOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Compute dtype, such as bf16, or as case ids spell storage too: bf16.kv_fp8.head, fp8.block128; repeat or "
        "separate by commas."
    ),
]
ModelOption = Annotated[str | None, typer.Option(help="The layers of a model, such as llama-3.1-70b.")]
TpOption = Annotated[int, typer.Option(help="Tensor parallel size, with --model.", min=1)]
ProviderOption = Annotated[list[str] | None, typer.Option(help="Only these providers; repeat or separate by commas.")]
MatchOption = Annotated[str, typer.Option(help="Only cases whose id this regular expression finds.")]
DeviceOption = Annotated[str | None, typer.Option(help="cuda or cpu; the GPU when there is one.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")]


@contextmanager
def exit_codes() -> Iterator[None]:
    """Usage errors end with exit code 2 and an unusable device with 3, each told in one message.

    An output that cannot be written is a usage error too.
    """
    try:
        yield
    except (DeviceError, ValueError, OSError) as error:
        stderr.print("[red]error:[/red]", end=" ")
        stderr.print(str(error), markup=False)
        raise typer.Exit(3 if isinstance(error, DeviceError) else 2) from error


def chosen_cases(
    ops: Sequence[str] | None,
    *,
    suite: str | None,
    default_suite: str,
    sets: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    model: str | None,
    tp: int,
    providers: Sequence[str] | None,
    match: str,
    op_files: Sequence[Path] | None = None,
) -> list[Case]:
    """The cases that the options mean; an op of a user's own file has no suite but its check workloads.

    Raises:
        ValueError: an unknown name or a combination that means nothing; says what is known.
    """
    own = load_ops(op_files or ())
    chosen = chosen_ops(ops, own)
    wanted = tuple(_full_name(name) for name in _split(dtypes))
    if sum((suite is not None, bool(sets), model is not None)) > 1:
        raise ValueError("--suite, --set and --model each say which sizes: give one of them")
    if tp != 1 and model is None:
        raise ValueError("--tp says how a model is split: give --model too")
    if sets:
        by_op = _question(chosen, sets, wanted)
    elif model is not None:
        by_op = model_workloads(model, tp, wanted or ("bfloat16",))
    else:
        of_suite = suite_workloads(default_suite if suite is None else suite)
        if suite is None:
            of_suite |= {op.name: merged(op.check_workloads) for op in own}
        by_op = _of_dtypes({op.name: of_suite.get(op.name, []) for op in chosen}, wanted)
    for op in own:
        if op in chosen and not by_op.get(op.name):
            raise ValueError(f"no sizes for op {op.name} there: give --set, or leave it to the op's check workloads")
    cases = [
        Case(op, provider, workload)
        for op in chosen
        for workload in by_op.get(op.name, ())
        for provider in op.providers
    ]
    return select(cases, providers=tuple(_split(providers)), match=match)


def chosen_ops(names: Sequence[str] | None, own: Sequence[Op]) -> list[Op]:
    """The named ops; when none is named those of a user's own files, else all. Raises ValueError."""
    return [op_named(name, own) for name in dict.fromkeys(names)] if names else list(own or OPS)


def shard_of(cases: Sequence[Case], shard: str) -> list[Case]:
    """The cases of shard "i/n": which one a case falls into is its id's alone, whatever else is selected.

    Raises:
        ValueError: another text, or i outside 1 to n.
    """
    numbers = re.fullmatch(r"(\d+)/(\d+)", shard)
    index, count = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not 1 <= index <= count:
        raise ValueError(f"--shard {shard!r}: wanted I/N with I from 1 to N, such as 2/8")
    return [case for case in cases if int(hashlib.sha256(case.id.encode()).hexdigest(), 16) % count == index - 1]


def _question(chosen: Sequence[Op], sets: Sequence[str], dtypes: Sequence[str]) -> dict[str, list[Workload]]:
    if len(chosen) != 1:
        raise ValueError(f"--set asks about one op: name it first, one of {', '.join(op.name for op in OPS)}")
    sizes: dict[str, tuple[int, ...]] = {}
    for axis, several in map(_axis_sizes, sets):
        if axis in sizes:
            raise ValueError(f"--set {axis} is given twice: give all its sizes at once, such as {axis}=1,16")
        sizes[axis] = several
    workloads = question_workloads(chosen[0], sizes, dtypes or ("bfloat16",), ("asked for on the command line",))
    return {chosen[0].name: list(workloads)}


def _axis_sizes(text: str) -> tuple[str, tuple[int, ...]]:
    axis, _, sizes = text.partition("=")
    try:
        return axis.strip(), tuple(int(size) for size in sizes.split(","))
    except ValueError as error:
        raise ValueError(f"--set {text!r}: wanted AXIS=SIZE[,SIZE...] with whole numbers, such as M=1,16") from error


def _of_dtypes(by_op: Mapping[str, Sequence[Workload]], dtypes: Sequence[str]) -> dict[str, list[Workload]]:
    there = {name: None for workloads in by_op.values() for w in workloads for name in (w.dtype, w.stored)}
    for dtype in dtypes:
        if dtype not in there:
            raise ValueError(f"no case of these ops in this suite has dtype {dtype}; they have: {', '.join(there)}")
    return {
        op: [w for w in workloads if not dtypes or {w.dtype, w.stored} & set(dtypes)] for op, workloads in by_op.items()
    }


def _full_name(dtype: str) -> str:
    return Workload(axes={}, phase="mixed", **stored_as(dtype)).stored


def _split(values: Sequence[str] | None) -> list[str]:
    return [part.strip() for value in values or () for part in value.split(",")]
