"""Ceilings of compiled kernels for measured cases: matched by op, storage, head width, configuration and arch.

A ceiling says what the instruction mix of the kernel allows (`analysis.pipes`), never how fast it is. Where they stand
in the picture is left to `analysis.compile_ticks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.compiled import Kernel, stored_as
from analysis.families import storage_of
from analysis.frame import config_key

CEILINGS = ("compile_overlapped", "compile_serial")
"""Columns: the share of the tensor peak with all pipes at once, and with tensor cores and another in turn."""


def with_compile_ceilings(frame: pd.DataFrame, kernels: Sequence[Kernel], archs: Mapping[str, int]) -> pd.DataFrame:
    """Adds CEILINGS to classified points; NaN where no compiled kernel is of their op, dtype, width and configuration.

    Args:
        frame: as `analysis.roofline.points` gives it.
        kernels: as `analysis.compiled.load_kernels` gives them.
        archs: device -> compute capability, 90 for sm_90.
    """
    known: dict[tuple[Any, ...], tuple[float | None, float | None]] = {}
    for kernel in kernels:
        if kernel.record.launch == 0 and kernel.record.config:
            known.setdefault(_key_of(kernel), kernel.ceilings)
    columns = ("op", "provider", "storage", "head_dim", "config", "device")
    told = frame.assign(storage=storage_of(frame))
    rows = zip(*(told[column].tolist() for column in columns), strict=True)
    found = [
        known.get(
            (op, provider, storage, None if pd.isna(width) else int(width), config, archs.get(device)), (None, None)
        )
        for op, provider, storage, width, config, device in rows
    ]
    return frame.assign(
        **{
            name: pd.Series([pair[i] for pair in found], index=frame.index, dtype="float64")
            for i, name in enumerate(CEILINGS)
        }
    )


def _key_of(kernel: Kernel) -> tuple[Any, ...]:
    case = kernel.record.case
    width = case["axes"].get("head_dim")
    storage, config = stored_as(kernel.record), config_key(kernel.record.config)
    return case["op"], case["provider"], storage, width, config, kernel.record.arch
