"""The ops of the suite: an explicit list. Importing it imports torch."""

from __future__ import annotations

from importlib import import_module

from kernels import roofs
from kernels.spec import Op

MODULES = (
    "matmul",
    "matmul_decode",
    "attention_prefill",
    "attention_decode",
)
"""Files of this package with an `OP`: a new op is one line here."""

OPS: tuple[Op, ...] = tuple(import_module(f"kernels.{module}").OP for module in MODULES)
ROOF_OPS: tuple[Op, ...] = (roofs.PEAK_MATMUL, roofs.PEAK_READ, roofs.PEAK_COPY, roofs.EMPTY_LAUNCH)


def op_named(name: str) -> Op:
    """The op. Raises ValueError with the known names."""
    for op in OPS:
        if op.name == name:
            return op
    raise ValueError(f"unknown op {name!r}; known: {', '.join(op.name for op in OPS)}")
