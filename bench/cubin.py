"""What a compiled kernel's cubin holds, by the CUDA tools of Triton's wheel: registers, stack, instructions."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from triton import knobs


def count_instructions(sass: str, opcode: str) -> int:
    """How often an opcode stands in a disassembly, with any suffix: LDL counts LDL.64."""
    return len(re.findall(rf"\*/\s+(?:@!?U?P\w+\s+)?{opcode}\b", sass))


@lru_cache(maxsize=256)
def disassembly(cubin: bytes) -> str:
    """SASS of the kernel."""
    return _output("nvdisasm", cubin, "-c")


@lru_cache(maxsize=256)
def resources(cubin: bytes) -> dict[str, int]:
    """REG, STACK, SHARED, ... of the cubin's one kernel."""
    return {name: int(n) for name, n in re.findall(r"\b([A-Z]+):(\d+)", _output("cuobjdump", cubin, "-res-usage"))}


def _output(tool: str, cubin: bytes, option: str) -> str:
    handle, path = tempfile.mkstemp(suffix=".cubin")
    with os.fdopen(handle, "wb") as file:
        file.write(cubin)
    try:
        command = [getattr(knobs.nvidia, tool).path, option, path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        Path(path).unlink()
