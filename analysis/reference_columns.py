"""Columns that every published table shares, and the words for how a published dtype computes and stores.

A latency is milliseconds, the mean over a few CUDA-graph replays of a whole operator, not of a bare kernel: what is
inside beside the op stands in `includes`, what the inputs were in `data`, and whether they came from DRAM in
`cache`. Leaves the ops to `analysis.reference_gemm` and `analysis.reference_attention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.reference_tables import Table
from kernels.work import AXES, COUNTING_VERSION, Work

FP8 = "float8_e4m3fn"


@dataclass(frozen=True, slots=True)
class Kind:
    """How one published dtype computes and stores.

    Attributes:
        dtype: compute dtype, whose roof applies.
        cached: storage of weights, or of keys and values. Activations, queries and outputs are bfloat16 in all.
        declared: dtype part of the case id where it is not the compute dtype.
    """

    dtype: str
    cached: str
    declared: str = ""


def storage_columns(kind: Kind, work: Work) -> dict[str, Any]:
    """The columns of dtype and work."""
    return {
        "dtype": kind.dtype,
        "declared": kind.declared,
        "flops": np.asarray(work.flops, dtype="float64"),
        "bytes": np.asarray(work.bytes, dtype="float64"),
    }


def completed(table: Table, parts: list[pd.DataFrame]) -> pd.DataFrame:
    """The parts of a table in its order, with the columns that are alike for all and the axes that do not apply."""
    frame = pd.concat(parts).sort_index()
    rows = table.rows.loc[frame.index]
    time_us = rows["latency"] * 1e3
    frame = frame.assign(
        provider=table.framework,
        status="OK",
        time_us=time_us,
        low_us=time_us,
        high_us=time_us,
        samples=1,
        drift=float("nan"),
        overhead_bytes=0.0,
        counting=COUNTING_VERSION,
        timer="published",
        regime="burst",
        inputs="",
        weight_dtype="",
        stop_reason="",
        kernel="kernel_source=" + rows["kernel_source"],
    )
    frame = frame.reindex(columns=[*frame, *(axis for axis in AXES if axis not in frame)])
    return frame.astype(dict.fromkeys(AXES, "Int64"))
