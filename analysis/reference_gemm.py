"""What the published gemm columns mean: a linear layer's forward, X [M, K] times W [N, K] transposed, bfloat16 out.

The fp8 operators take bfloat16 activations and quantise them inside the measured time, so those count at 2 bytes.
Weights rotate over a few copies: only where these together fill L2 did they come from DRAM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.reference_columns import FP8, Kind, completed, storage_columns
from analysis.reference_tables import Table
from kernels.work import DECODE_ROWS, Size, matmul_work, storage_bytes

KINDS: Mapping[str, Kind] = {
    "bfloat16": Kind("bfloat16", "bfloat16"),
    "fp8": Kind(FP8, FP8),
    "fp8_block": Kind(FP8, FP8),
}
BATCH_ROWS = 256
"""Up to this many rows a published gemm is called decode, as the standard shapes do: one row a sequence."""
BLOCK = 128
"""Edge of the square of weights that shares a scale in fp8_block."""
GEMM_OPS = ("matmul", "matmul_decode")


def gemm_columns(table: Table, l2_bytes: int) -> pd.DataFrame:
    """The table as columns of `analysis.frame`; rows of a dtype whose meaning is not documented are left out."""
    by_dtype = table.rows.groupby("gemm_dtype", sort=False)
    parts = [_part(table.framework, str(name), rows, l2_bytes) for name, rows in by_dtype if name in KINDS]
    return completed(table, parts)


def copies_of_weights(framework: str, scale: str, weight_bytes: Any, l2_bytes: int) -> Any:
    """Copies that the weights rotate over while they are timed; elementwise."""
    if framework == "trtllm":
        return np.minimum(5, -(-l2_bytes // weight_bytes))
    return 1 if (framework, scale) == ("vllm", "block128") else 6


def launches_per_sample(frame: pd.DataFrame, l2_bytes: int) -> pd.Series[int]:
    """Launches that one published value of any op is the mean of: graph replays times copies in the graph.

    One where neither is documented.
    """
    gemm = frame["op"].isin(GEMM_OPS)
    replays = np.where(~gemm & (frame["provider"] == "sglang"), 20, 6)
    copies = pd.Series(1, index=frame.index)
    for (framework, scale, dtype), rows in frame[gemm].groupby(["provider", "scale", "dtype"]):
        weight_bytes = storage_bytes(rows["N"] * rows["K"], str(dtype)).astype("int64")
        copies[rows.index] = copies_of_weights(str(framework), str(scale), weight_bytes, l2_bytes)
    return (copies * replays).where(frame["cache"] != "", 1)


def _part(framework: str, name: str, rows: pd.DataFrame, l2_bytes: int) -> pd.DataFrame:
    kind, scale = KINDS[name], _scale(framework, name)
    m, n, k = rows["m"], rows["n"], rows["k"]
    # Weight scales, 4 bytes each; with one a token for the activations, the weights have one an output channel.
    scales: Size = {"": 0, "tensor": 1, "token": n, "block128": -(-n // BLOCK) * -(-k // BLOCK)}[scale]
    work = matmul_work(m, n, k, dtype="bfloat16", weight_dtype=kind.cached, extra_bytes=4 * scales)
    weight_bytes = storage_bytes(n * k, kind.cached)
    # At L2 exactly the activations on top push every copy out before its turn comes again.
    cold = copies_of_weights(framework, scale, weight_bytes, l2_bytes) * weight_bytes >= l2_bytes
    labels = {
        "op": np.where(m > DECODE_ROWS, "matmul", "matmul_decode"),
        "phase": np.where(m > BATCH_ROWS, "prefill", "decode"),
        "technique": "dense" if kind.dtype == "bfloat16" else "fp8",
        "published_dtype": name,
        "kv_dtype": "",
        "scale": scale,
        "cache": np.where(cold, "cold", "hot"),
        "launch": "eager" if (framework, name) == ("vllm", "fp8_block") else "graph",
        "includes": "" if name == "bfloat16" else "activation quantisation bf16 to fp8",
        "data": "distribution=" + _distribution(framework, name),
        "flags": "",
        "detail": "",
    }
    return pd.DataFrame({**labels, **storage_columns(kind, work), "M": m, "N": n, "K": k}, index=rows.index)


def _scale(framework: str, name: str) -> str:
    if name == "fp8":
        return "tensor" if framework == "trtllm" else "token"
    return "block128" if name == "fp8_block" else ""


def _distribution(framework: str, name: str) -> str:
    if framework == "vllm":
        return "uninitialised weights" if name == "bfloat16" else "constant weights"
    return "randn activations and uniform weights" if framework == "sglang" and name != "bfloat16" else "randn"
