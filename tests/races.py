"""Finds races between the programs of a launch under Triton's interpreter, and runs grids in other orders.

On a GPU programs of one launch run in any order and at once. Two that write one byte, or one that reads what another
writes, are a race, though the interpreter's fixed order hides it. Only atomics are exempt: a kernel whose last program
gathers what the others wrote, by a ticket, is reported too.

The interpreter sends every access, masked or not, by pointer or descriptor, through `create_masked_load` and
`create_masked_store` of its builder; those are wrapped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from triton.runtime import interpreter

Program = tuple[int, int, int]
Bytes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
ATOMICS = ("create_atomic_load", "create_atomic_store", "create_atomic_poll")
"""Of Triton 3.9 and later, which implements these by the plain accesses; read-modify-writes never get there."""


@dataclass(frozen=True, slots=True)
class Race:
    """Two programs of one launch that meet at `count` bytes."""

    kernel: str
    kind: str
    programs: tuple[Program, Program]
    count: int


@dataclass(slots=True)
class _Launch:
    """Bytes that each program read and wrote."""

    kernel: str
    read: dict[Program, list[Bytes]] = field(default_factory=dict)
    written: dict[Program, list[Bytes]] = field(default_factory=dict)

    def races(self) -> list[Race]:
        """Of the launch, one entry a pair of programs and kind."""
        programs = list(dict.fromkeys((*self.written, *self.read)))
        addresses, owners = _joined(self.written, programs)
        order = np.argsort(addresses, kind="stable")
        addresses, owners = addresses[order], owners[order]
        twice = np.flatnonzero(addresses[1:] == addresses[:-1])
        found = self._named("write and write", programs, owners[twice], owners[twice + 1])
        if len(addresses):
            read, readers = _joined(self.read, programs)
            at = np.minimum(np.searchsorted(addresses, read), len(addresses) - 1)
            met = (addresses[at] == read) & (owners[at] != readers)
            found += self._named("write and read", programs, owners[at[met]], readers[met])
        return found

    def _named(self, kind: str, programs: list[Program], first: Indices, second: Indices) -> list[Race]:
        pairs, counts = np.unique(np.stack([first, second], axis=1), axis=0, return_counts=True)
        return [
            Race(self.kernel, kind, (programs[i], programs[j]), int(count))
            for (i, j), count in zip(pairs, counts, strict=True)
        ]


def _joined(accesses: dict[Program, list[Bytes]], programs: list[Program]) -> tuple[Bytes, Indices]:
    """(bytes, which of `programs` each belongs to), each byte once a program."""
    unique = {program: np.unique(np.concatenate(parts)) for program, parts in accesses.items()}
    owners = [np.full(len(part), programs.index(program), dtype=np.int64) for program, part in unique.items()]
    if not owners:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    return np.concatenate(list(unique.values())), np.concatenate(owners)


class _Watch:
    """What the wrapped builder tells, from one launch to the next."""

    def __init__(self) -> None:
        self.launch: _Launch | None = None
        self.exempt = False

    def note(self, kind: str, pointers: Any, mask: Any) -> None:
        """Keeps the bytes of one access by the program that the builder is at."""
        if self.launch is None or self.exempt:
            return
        # Descriptors hand their mask over as a bare array; an array has a `data` too.
        inside = mask if isinstance(mask, np.ndarray) else np.asarray(mask.data)
        chosen = np.broadcast_to(np.asarray(pointers.data), inside.shape)[inside.astype(bool)].ravel()
        width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        whole = (chosen.astype(np.uint64)[:, None] + np.arange(width, dtype=np.uint64)[None, :]).ravel()
        program = tuple(interpreter.interpreter_builder.grid_idx)
        getattr(self.launch, kind).setdefault(program, []).append(whole)


@contextmanager
def detect_races() -> Iterator[list[Race]]:
    """Collects the races of every interpreted launch inside, judged at the end of each."""
    found: list[Race] = []
    watch, builder = _Watch(), interpreter.InterpreterBuilder
    with _wrapped() as wrap:

        def load(original: Callable[..., Any], self: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
            watch.note("read", pointers, mask)
            return original(self, pointers, mask, *rest, **named)

        def store(original: Callable[..., Any], self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            watch.note("written", pointers, mask)
            return original(self, pointers, value, mask, *rest)

        def atomic(original: Callable[..., Any], *arguments: Any) -> Any:
            watch.exempt = True
            try:
                return original(*arguments)
            finally:
                watch.exempt = False

        def run(original: Callable[..., Any], self: Any, *arguments: Any, **named: Any) -> Any:
            watch.launch = _Launch(self.fn.__name__)
            result = original(self, *arguments, **named)
            found.extend(watch.launch.races())
            return result

        wrap(builder, "create_masked_load", load)
        wrap(builder, "create_masked_store", store)
        wrap(interpreter.GridExecutor, "__call__", run)
        for name in ATOMICS:
            if hasattr(builder, name):
                wrap(builder, name, atomic)
        yield found


@contextmanager
def grid_order(order: str, seed: int = 0) -> Iterator[None]:
    """Runs the programs of every interpreted launch inside "reversed", or "shuffled" by a seed."""
    if order not in ("reversed", "shuffled"):
        raise ValueError(f"unknown order {order!r}; known: reversed, shuffled")
    turns: list[Program] = []

    def start(original: Callable[..., Any], self: Any, x: int, y: int, z: int) -> None:
        original(self, x, y, z)
        turns[:] = [(i, j, k) for i in range(x) for j in range(y) for k in range(z)]
        if order == "shuffled":
            random.Random(seed).shuffle(turns)

    def turn(original: Callable[..., Any], self: Any, x: int, y: int, z: int) -> None:
        original(self, *turns.pop())

    with _wrapped() as wrap:
        wrap(interpreter.InterpreterBuilder, "set_grid_dim", start)
        wrap(interpreter.InterpreterBuilder, "set_grid_idx", turn)
        yield


@contextmanager
def _wrapped() -> Iterator[Callable[[type, str, Callable[..., Any]], None]]:
    """Puts functions around methods, each given the original first, and takes them away after."""
    before: list[tuple[type, str, Any]] = []

    def wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        before.append((owner, name, original))
        setattr(owner, name, lambda *arguments, **named: around(original, *arguments, **named))

    try:
        yield wrap
    finally:
        for owner, name, original in reversed(before):
            setattr(owner, name, original)
