"""Files of a user's own op y = x for tests, among them `moody`, whose one axis says what its provider does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def op_source(
    name: str,
    code: str,
    providers: Mapping[str, str],
    sizes: tuple[int, ...],
    facts: str = "lambda provider, inputs: {}",
) -> str:
    """The file of an op whose providers, name -> function, stand in `code`."""
    functions = ", ".join(f'"{provider}": {function}' for provider, function in providers.items())
    return f'''"""{name}: y = x."""

import ctypes
import os
import time
from pathlib import Path

from kernels.inputs import Sampler, torch_dtype
from kernels.spec import Op, Workload
from kernels.work import Work

{code}

def describe_axes(axes, dtype, source):
    return Workload(axes=axes, dtype=dtype, phase="mixed", technique="glue", source=source)


OP = Op(
    name="{name}",
    summary="y = x",
    axes={{"N": None}},
    dtypes=("float32",),
    make_inputs=lambda w, device, seed: {{"x": Sampler(device, seed).normal((w.axes["N"],), torch_dtype(w.dtype))}},
    reference=lambda x: x.double(),
    eager=lambda x: x.clone(),
    providers={{{functions}}},
    work=lambda w: Work(flops=0, bytes=8 * w.axes["N"]),
    describe_axes=describe_axes,
    check_workloads=tuple(describe_axes({{"N": n}}, "float32", ("check",)) for n in {sizes}),
    roles={{}},
    facts={facts},
)
'''


MOODS = """
MOODS = {
    2: lambda: time.sleep(600),
    3: os.abort,
    4: lambda: os._exit(7),
    5: lambda: ctypes.string_at(0),
    6: lambda: (_ for _ in ()).throw(RuntimeError("CUDA error: an illegal memory access was encountered")),
    7: lambda: os.kill(os.getpid(), 9),
    8: lambda: (_ for _ in ()).throw(RuntimeError("a plain failure, \\udcff")),
}


def moody(x):
    with Path(__file__).with_suffix(".calls").open("a") as file:
        file.write(f"{x.numel()} {os.getpid()}\\n")
    print("called with", x.numel())
    MOODS.get(x.numel(), lambda: None)()
    return x.clone()
"""
SIMPLE = 100
HANG, ABORT, EXIT, SEGFAULT, STICKY, KILL, PLAIN, REFUSED = range(2, 10)
"""REFUSED ends well, and its record says that a capture was broken off."""
MOODY = op_source(
    "moody", MOODS, {"mine": "moody"}, (SIMPLE, SIMPLE + 1),
    'lambda provider, inputs: {"graph_refused": "why"} if inputs["x"].numel() == 9 else {}',
)  # fmt: skip
"""y = x, unless N says otherwise; notes (N, process) of each call in the file beside it."""


def moody_file(directory: Path) -> Path:
    """Writes it."""
    file = directory / "moody.py"
    file.write_text(MOODY, encoding="utf-8")
    return file


def calls(file: Path) -> list[tuple[int, int]]:
    """(N, process) of every call so far."""
    noted = file.with_suffix(".calls")
    lines = noted.read_text(encoding="utf-8").splitlines() if noted.exists() else []
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines]
