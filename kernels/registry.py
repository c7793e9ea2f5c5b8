"""The ops of the suite: an explicit list. Importing it imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from kernels import roofs
from kernels.spec import Op

MODULES = (
    "matmul",
    "matmul_decode",
    "matmul_weight_only",
    "quantise_fp8",
    "rms_norm",
    "add_rms_norm",
    "residual_add",
    "silu_mul",
    "gate_up_silu",
    "grouped_matmul",
    "attention_prefill",
    "attention_decode",
    "kv_append",
    "attention_paged_decode",
    "attention_paged_prefill",
    "attention_prefix_decode",
    "attention_varlen",
    "attention_mixed",
    "attention_mla_decode",
)
"""Files of this package with an `OP`: a new op is one line here."""

OPS: tuple[Op, ...] = tuple(import_module(f"kernels.{module}").OP for module in MODULES)
ROOF_OPS: tuple[Op, ...] = (roofs.PEAK_MATMUL, roofs.PEAK_READ, roofs.PEAK_COPY, roofs.EMPTY_LAUNCH)


def op_named(name: str, own: Sequence[Op] = ()) -> Op:
    """The op, of the suite's or of a user's own. Raises ValueError with the known names."""
    known = {op.name: op for op in (*OPS, *own)}
    if name not in known:
        raise ValueError(f"unknown op {name!r}; known: {', '.join(known)}")
    return known[name]
