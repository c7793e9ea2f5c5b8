"""What Triton's own form of a kernel tells that SASS does not: which argument each load of a loop reads, and buffers.

SASS of a copy by the tensor memory accelerator names neither its bytes nor its source, and none of its loads says
whether it brings weights or activations. TTGIR does. It is read line by line: an operation's first pointer operand is
followed back to the kernel's argument, and a loop's own operations lie between its braces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ARGUMENT = re.compile(r"%([\w.]+): (!tt\.(?:ptr|tensordesc)<)")
NAMED = re.compile(r'%([\w.]+): [^%]*?loc\("(\w+)"')
RESULT = re.compile(r"\s*(%[\w.]+)(?::\d+)?(?:, %[\w.]+)* = ")
VALUE = re.compile(r"%[\w.]+")
ITER_ARGUMENT = re.compile(r"(%[\w.]+) = (%[\w.]+)")
SHAPED = re.compile(r"<((?:\d+x)+)(?:!tt\.ptr<)?([a-zA-Z]\w*)")
BLOCK_ARGUMENT = re.compile(r"(%[\w.]+): ")
LOADS = {
    "ttng.async_tma_copy_global_to_local": "tma",
    "ttng.async_tma_gather": "tma",
    "ttg.async_copy_global_to_local": "cp.async",
    "tt.load": "ldg",
}
DOTS = ("tt.dot ", "tt.dot_scaled ", "ttng.warp_group_dot ", "ttng.tc_gen5_mma ", "ttng.tc_gen5_mma_scaled ")
LOOPS = ("scf.for", "scf.while")
WARPS = re.compile(r'"ttg\.num-warps" = (\d+)')
PARTITION = re.compile(r"partition\d+\(.*\) num_warps\((\d+)\) ")


@dataclass(slots=True)
class _Loop:
    warps: int
    innermost: bool = True
    flops: int = 0
    loads: list[dict[str, Any]] = field(default_factory=list)


def deepest_buffer(loops: list[dict[str, Any]]) -> int:
    """Most slots that a load of a loop is buffered in."""
    return max((load["slots"] for loop in loops for load in loop["loads"]), default=0)


def loops_of(ttgir: str, roles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Of each innermost loop that loads or multiplies, what a block does in one trip.

    Args:
        ttgir: the module's text.
        roles: of a kernel's arguments, by the name of the op's input.

    Returns:
        For each loop `warps` that run it, `flops`, and `loads`: see `bench.compiled.CompileRecord`.
    """
    reader = _Reader()
    for line in ttgir.splitlines():
        reader.take(line)
    loops = [loop for loop in reader.loops if loop.innermost and (loop.flops or loop.loads)]
    return [
        {
            "warps": loop.warps,
            "flops": loop.flops,
            "loads": [load | {"role": roles.get(load["argument"], "")} for load in loop.loads],
        }
        for loop in loops
    ]


class _Reader:
    """Follows pointers and braces through the text."""

    def __init__(self) -> None:
        self.loops: list[_Loop] = []
        self._open: list[_Loop | None] = []
        self._warps: list[int] = [0]
        self._roots: dict[str, str] = {}
        self._buffers: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._captured: list[str] = []

    def take(self, line: str) -> None:
        """One line."""
        code = re.sub(r"\s+loc\([^()]*\)$", "", line).strip()
        if code.startswith("tt.func"):
            names = dict(NAMED.findall(line))
            self._roots = {f"%{a}": names.get(a, a) for a, _ in ARGUMENT.findall(line)}
        elif code.startswith("ttg.warp_specialize("):
            self._captured = VALUE.findall(code.split(")")[0])
        elif PARTITION.match(code):
            for inner, outer in zip(BLOCK_ARGUMENT.findall(code), self._captured, strict=False):
                self._inherit(inner, outer)
        else:
            self._operation(code)
        if code.startswith("}"):
            self._open.pop()
            self._warps.pop()
        if code.endswith("{"):
            self._enter(code)

    def _enter(self, code: str) -> None:
        told = WARPS.search(code) or PARTITION.match(code)
        self._warps.append(int(told[1]) if told else self._warps[-1])
        if not any(f"{loop} " in code for loop in LOOPS):
            self._open.append(None)
            return
        for outer in self._open:
            if outer:
                outer.innermost = False
        loop = _Loop(self._warps[-1])
        self._open.append(loop)
        self.loops.append(loop)

    def _operation(self, code: str) -> None:
        defined = RESULT.match(code)
        body = code[defined.end() :] if defined else code
        name = body.split(" ", 1)[0].split("(")[0]
        operands = VALUE.findall(body)
        if "iter_args(" in body:
            for inner, outer in ITER_ARGUMENT.findall(body.split("iter_args(", 1)[1]):
                self._inherit(inner, outer)
        elif name == "ttng.tensormap_create":
            self._inherit(operands[0], operands[1])
        elif defined and name == "ttg.local_alloc" and not operands:
            self._buffers[defined[1]] = _shapes(body)[0][0][0]
        elif defined and name == "ttg.memdesc_index":
            self._slots[defined[1]] = self._buffers.get(operands[0], 1)
        elif defined and operands:
            self._inherit(defined[1], operands[0])
        loop = next((loop for loop in reversed(self._open) if loop), None)
        if loop is None:
            return
        if name in LOADS:
            self._load(loop, LOADS[name], body, operands)
        elif body.startswith(DOTS):
            (m, k), (_, n) = (shape[-2:] for shape, _ in _shapes(body)[:2])
            loop.flops += 2 * m * k * n

    def _inherit(self, value: str, source: str) -> None:
        if source in self._roots:
            self._roots[value] = self._roots[source]
        if source in self._buffers:
            self._buffers[value] = self._buffers[source]

    def _load(self, loop: _Loop, kind: str, body: str, operands: list[str]) -> None:
        found = _shapes(body.rpartition(" -> ")[2]) if kind != "ldg" else _shapes(body)
        if not found:  # a scalar
            return
        shape, bits = found[0]
        views = [value for value in operands[1:] if value in self._slots or value in self._buffers]
        into = 0 if kind == "ldg" else self._slots.get(views[0], 1) if views else 1
        argument = self._roots.get(operands[0], "")
        nbytes = math.prod(shape) * bits // 8
        loop.loads.append({"argument": argument, "kind": kind, "bytes": nbytes, "slots": into})


def _shapes(text: str) -> list[tuple[tuple[int, ...], int]]:
    return [(tuple(map(int, sizes[:-1].split("x"))), _bits(element)) for sizes, element in SHAPED.findall(text)]


def _bits(element: str) -> int:
    """Of an element's type as MLIR writes it: bf16, f8E4M3FN, i64."""
    found = re.search(r"[a-zA-Z]+?(\d+)", element)
    return int(found[1]) if found else 8
