"""Interpreted launches of a few programs of a large grid, and kernels with a planted bug.

A problem of gigabytes or of millions of programs is proved by the programs that reach furthest, at their true
addresses; memory that nobody touches costs nothing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from triton.runtime import interpreter


@contextmanager
def only_programs(*chosen: int) -> Iterator[list[tuple[int, ...]]]:
    """Of every interpreted launch inside, runs these programs of grid axis x, in order; negative ones from its end.

    Yields:
        The grids that were asked for.
    """
    grids: list[tuple[int, ...]] = []
    turns: list[int] = []
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    run, restore = executor.__call__, executor._restore_args_dev
    dim, turn = builder.set_grid_dim, builder.set_grid_idx

    def run_some(self: Any, *arguments: Any, **named: Any) -> None:
        grids.append(self.grid)
        turns[:] = sorted({program % self.grid[0] for program in chosen})
        self.grid = (len(turns),)
        run(self, *arguments, **named)

    executor.__call__ = run_some
    builder.set_grid_dim = lambda self, *some: dim(self, *(*grids[-1], 1, 1)[:3])
    builder.set_grid_idx = lambda self, x, y, z: turn(self, turns[x], y, z)
    # It copies each storage onto itself, which would touch all of it.
    executor._restore_args_dev = lambda *arguments: None
    try:
        yield grids
    finally:
        executor.__call__, executor._restore_args_dev = run, restore
        builder.set_grid_dim, builder.set_grid_idx = dim, turn


def variant(folder: Path, module: ModuleType, *changes: tuple[str, str]) -> ModuleType:
    """The module with parts of its text replaced, each of which must be there, as a new module in a file of `folder`.

    Raises:
        ValueError: a text that is not there.
    """
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    for old, new in changes:
        if old not in source:
            raise ValueError(f"{module.__name__} holds no {old!r}: the planted bug needs a new place")
        source = source.replace(old, new)
    name = f"{module.__name__.rpartition('.')[2]}_variant_{abs(hash(changes)):x}"
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made
