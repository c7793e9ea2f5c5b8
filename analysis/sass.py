"""SASS as text, into functions and instructions: listings of nvdisasm, of cuobjdump, and those `bench compile` keeps.

Leaves loops to `analysis.sass_loops` and what an instruction costs to `analysis.pipes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

FUNCTION = re.compile(r"^\s*(?:\.text\.([\w$.]+):|Function : (\S+))\s*$")
LABEL = re.compile(r"^(\.L[\w.$]*|[\w$][\w.$]*):\s*$")
INSTRUCTION = re.compile(
    r"^\s*(?:/\*([0-9a-f]{4,})\*/\s+)?(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)"
    r"(?:\s+([^;]*?))?\s*;\s*(?:/\* 0x[0-9a-f]{16} \*/)?\s*$"
)
CONTROL = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/\s*$")
TARGET = re.compile(r"\.L[\w.$]*|\b0x[0-9a-f]+\b")
STALL_BIT, STALL_BITS = 41, 4
"""Where the stall count lies in an instruction's second 64 bits.

From Volta on, bits 105 to 125 of the 128 are the scheduler's: stall 4, yield 1, write and read barrier 3 each, wait
mask 6, reuse 4 (Jia and others, "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018, section
2.1).
"""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: with its suffixes, `HGMMA.64x256x16.F32.BF16`.
        guard: predicate that lets it happen, `!P0`; '' for always.
        operands: as written; '' where the listing left them out.
        stall: cycles until the same warp may issue its next instruction, at least.
    """

    opcode: str
    guard: str = ""
    operands: str = ""
    stall: int = 0

    @property
    def base(self) -> str:
        """The opcode without its suffixes."""
        return self.opcode.partition(".")[0]

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What follows the opcode's dots."""
        return tuple(self.opcode.split(".")[1:])

    @property
    def targets(self) -> tuple[str, ...]:
        """Labels or addresses that it may jump to; an indirect branch lists several."""
        return tuple(TARGET.findall(self.operands)) if self.base in BRANCHES else ()

    @property
    def goes_on(self) -> bool:
        """Whether the next instruction may follow it."""
        if self.base in ENDS:
            return bool(self.guard)
        return self.base not in BRANCHES or bool(self.guard) or "," in self.operands.partition("(*")[0]


BRANCHES = ("BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU")
ENDS = ("EXIT", "RET", "KILL", "BPT")


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel's code: its instructions in order, and where its labels (or addresses) point."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]

    def count(self, *bases: str) -> int:
        """How many instructions have one of these opcodes."""
        return sum(instruction.base in bases for instruction in self.instructions)


def parse(text: str) -> tuple[Function, ...]:
    """The functions of a disassembly, in order.

    Args:
        text: of `nvdisasm -c -hex` or `cuobjdump -sass`; without encodings every stall is 0.

    Raises:
        ValueError: no function with an instruction in it.
    """
    functions: list[tuple[str, list[Instruction], dict[str, int]]] = []
    for line in text.splitlines():
        if start := FUNCTION.match(line):
            functions.append((start[1] or start[2], [], {}))
        elif functions:
            _take(line, *functions[-1][1:])
    found = tuple(Function(name, tuple(code), labels) for name, code, labels in functions if code)
    if not found:
        raise ValueError("no SASS function there; wanted the text of `nvdisasm -c -hex` or `cuobjdump -sass`")
    return found


def _take(line: str, code: list[Instruction], labels: dict[str, int]) -> None:
    if label := LABEL.match(line):
        labels[label[1]] = len(code)
    elif found := INSTRUCTION.match(line):
        address, guard, opcode, operands = found.groups()
        if address:
            labels[f"0x{int(address, 16):x}"] = len(code)
        code.append(Instruction(opcode, "" if guard == "PT" else guard or "", operands or ""))
    elif code and (control := CONTROL.match(line)):
        last = code[-1]
        stall = (int(control[1], 16) >> STALL_BIT) & ((1 << STALL_BITS) - 1)
        code[-1] = Instruction(last.opcode, last.guard, last.operands, stall)
