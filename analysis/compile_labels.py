"""Short names of compiled kernels: sizes and launch parameters, only those in which an op's kernels differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.compiled import Kernel, stored_as

SHORT = {"num_warps": "w", "num_stages": "s"}


def short_labels(kernels: Sequence[Kernel]) -> list[str]:
    """A name for each kernel, `head_dim=128 128x128 w8 s2 device`; empty where nothing differs."""
    of_op: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        of_op.setdefault(kernel.record.case["op"], []).append(kernel)
    varying = {
        op: (
            _varying([kernel.record.case["axes"] for kernel in same]),
            _varying([kernel.record.config for kernel in same]),
        )
        for op, same in of_op.items()
    }
    return [_label(kernel, *varying[kernel.record.case["op"]]) for kernel in kernels]


def _varying(settings: Sequence[Mapping[str, Any]]) -> set[str]:
    names = {name for setting in settings for name in setting}
    return {name for name in names if len({setting.get(name) for setting in settings}) > 1}


def _label(kernel: Kernel, axes: set[str], parameters: set[str]) -> str:
    case, config = kernel.record.case, kernel.record.config
    parts = [f"{axis}={size}" for axis, size in case["axes"].items() if axis in axes]
    stored = stored_as(kernel.record)
    parts += [stored.partition(".")[2]] if stored != case["dtype"] else []
    blocks = [str(value) for name, value in config.items() if name.startswith("block") and value]
    parts += ["x".join(blocks)] if blocks and any(name.startswith("block") for name in parameters) else []
    for name, value in config.items():
        if name in parameters and value and not name.startswith("block"):
            parts.append(_parameter(name, value))
    return " ".join(parts)


def _parameter(name: str, value: Any) -> str:
    if value is True:
        return name
    if isinstance(value, str):
        return value
    return f"{SHORT[name]}{value}" if name in SHORT else f"{name}={value}"
