"""The ops of the suite: an explicit list. Importing it imports torch."""

from __future__ import annotations

from kernels import attention_decode, attention_prefill, matmul, matmul_decode, roofs
from kernels.spec import Op

OPS: tuple[Op, ...] = (matmul.OP, matmul_decode.OP, attention_prefill.OP, attention_decode.OP)
ROOF_OPS: tuple[Op, ...] = (roofs.PEAK_MATMUL, roofs.PEAK_READ, roofs.PEAK_COPY, roofs.EMPTY_LAUNCH)


def op_named(name: str) -> Op:
    """The op. Raises ValueError with the known names."""
    for op in OPS:
        if op.name == name:
            return op
    raise ValueError(f"unknown op {name!r}; known: {', '.join(op.name for op in OPS)}")
