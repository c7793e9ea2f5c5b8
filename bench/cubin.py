"""What a compiled kernel's cubin holds, by the CUDA tools of Triton's wheel: registers, stack, instructions."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from triton import knobs

LABEL = re.compile(r"[.$\w]+:")
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;")
CONTROL = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/\s*$")
CONTROL_BIT = 41
"""Of the second 64 bits of an instruction: stall count and above, which `analysis.sass` decodes."""
OPERANDS_MATTER = re.compile(r"BR|J|CALL|RET|EXIT|WARP|DEPBAR|BAR|SYNCS|\w*MMA")


def count_instructions(sass: str, opcode: str) -> int:
    """How often an opcode stands in a disassembly, with any suffix: LDL counts LDL.64."""
    return len(re.findall(rf"\*/\s+(?:@!?U?P\w+\s+)?{opcode}\b", sass))


@lru_cache(maxsize=256)
def disassembly(cubin: bytes) -> str:
    """SASS of the kernel, with the encodings."""
    return _output("nvdisasm", cubin, "-c", "-hex")


def listing(sass: str) -> str:
    """A disassembly without what the analysis does not read, a tenth of it when compressed.

    Labels, instructions and control bits stay in nvdisasm's form; addresses, first halves of encodings, and the
    operands of instructions that neither branch, wait nor use tensor cores go.
    """
    lines = []
    for line in sass.splitlines():
        if label := LABEL.match(line):
            lines.append(label[0])
        elif instruction := INSTRUCTION.match(line):
            guard, opcode, operands = instruction.groups()
            kept = f" {operands}" if operands and OPERANDS_MATTER.match(opcode) else ""
            lines.append(f"{guard or ''}{opcode}{kept} ;")
        elif control := CONTROL.match(line):
            lines.append(f"/* 0x{int(control[1], 16) >> CONTROL_BIT << CONTROL_BIT:016x} */")
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=256)
def resources(cubin: bytes) -> dict[str, int]:
    """REG, STACK, SHARED, ... of the cubin's one kernel."""
    return {name: int(n) for name, n in re.findall(r"\b([A-Z]+):(\d+)", _output("cuobjdump", cubin, "-res-usage"))}


def _output(tool: str, cubin: bytes, *options: str) -> str:
    handle, path = tempfile.mkstemp(suffix=".cubin")
    with os.fdopen(handle, "wb") as file:
        file.write(cubin)
    try:
        command = [getattr(knobs.nvidia, tool).path, *options, path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        Path(path).unlink()
