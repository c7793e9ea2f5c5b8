"""A user's own ops: a Python file with an `OP` or `OPS`, checked before anything runs."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

from kernels.registry import OPS, ROOF_OPS
from kernels.spec import Op, Workload

EXAMPLE = "tests/data/scale.py is a small example"
NAME = re.compile(r"[A-Za-z]\w*")


def load_ops(files: Sequence[Path]) -> tuple[Op, ...]:
    """The ops of these files, in order.

    Raises:
        ValueError: a file that does not import, defines no op, or one whose parts are wrong or whose name is taken.
    """
    taken = {op.name: "is the suite's own" for op in (*OPS, *ROOF_OPS)}
    ops: list[Op] = []
    for file in files:
        for op in _ops_of(_imported(file), file):
            problem = _problem(op) or (op.name in taken and f"the name {op.name!r} {taken[op.name]}: choose another")
            if problem:
                raise ValueError(f"--op-file {file}: {problem}")
            taken[op.name] = f"is taken by {file}"
            ops.append(op)
    return tuple(ops)


def _imported(file: Path) -> ModuleType:
    """The file as a module of a name that nobody else has."""
    path = file.resolve()
    if not path.is_file():
        raise ValueError(f"--op-file {file}: no such file; wanted a Python file with an OP ({EXAMPLE})")
    name = f"_op_file_{re.sub(r'[^A-Za-z0-9]', '_', str(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--op-file {file}: not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is imported
    try:
        with redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ValueError(f"--op-file {file}: does not import: {type(error).__name__}: {error}") from error
    return module


def _ops_of(module: ModuleType, file: Path) -> tuple[Op, ...]:
    found = getattr(module, "OPS", None) or getattr(module, "OP", None)
    if found is None:
        raise ValueError(f"--op-file {file}: defines neither OP nor OPS; wanted a kernels.spec.Op ({EXAMPLE})")
    ops = tuple(found) if isinstance(found, (list, tuple)) else (found,)
    for op in ops:
        if not isinstance(op, Op):
            raise ValueError(f"--op-file {file}: wanted a kernels.spec.Op, got a {type(op).__name__} ({EXAMPLE})")
    return ops


def _problem(op: Op) -> str:
    """What is wrong with an op that could be built all the same; '' when nothing is."""
    if not isinstance(op.name, str) or not NAME.fullmatch(op.name):
        return f"the name {op.name!r} cannot stand in a case id: wanted letters, digits and _"
    if not op.providers:
        return f"op {op.name} has no providers: name at least one callable"
    for part in ("make_inputs", "reference", "eager", "work", "describe_axes"):
        if not callable(getattr(op, part)):
            return f"op {op.name}: {part} is {getattr(op, part)!r}; wanted a function"
    for name, provider in op.providers.items():
        if not NAME.fullmatch(name) or not callable(provider):
            return f"op {op.name}: provider {name!r} is {provider!r}; wanted a name like 'triton' and a function"
    wrong = next((w for w in op.check_workloads if not isinstance(w, Workload)), None)
    return f"op {op.name}: check_workloads has {wrong!r}; wanted kernels.spec.Workload" if wrong is not None else ""
