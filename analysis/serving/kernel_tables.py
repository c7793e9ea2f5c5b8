"""The kernel latencies that the serving predictor ships: measured rows of a published package, made smaller.

Only rows that were measured are kept, on fewer token counts; nothing is interpolated here. Latencies are microseconds,
rounded to 4 significant digits. What a row means is in `analysis.reference_gemm` and `analysis.reference_attention`;
looking one up is left to `analysis.serving.published`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.reference_tables import DOCUMENTED, SYSTEMS, data_directory
from analysis.serving.attainable import Attainable, Experts, speed_of_light

FILE = Path(__file__).parents[1] / "data" / "serving_kernels.parquet"
AXES = ("x", "y", "z", "q_heads", "kv_heads", "experts", "active", "ep")
"""x, y, z of a gemm are M, N, K; x, y of a quantisation M, K, of an attention batch and length, of an all-reduce GPUs
and elements; x, y, z of experts are tokens, the hidden size, and the columns of an expert that one GPU holds."""
LAYER, SIZES = ("y", "z", "experts", "active", "ep"), ("hidden", "columns", "experts", "active", "ep")
"""Axes that tell experts apart, and what `Experts` calls them."""
COLUMNS = ("device", "framework", "table", "dtype", *AXES, "latency_us")
GEMM_DTYPES = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "fp8_block": "float8_e4m3fn.block128"}
EXPERT_DTYPES = GEMM_DTYPES | {"int4_wo": "int4"}
SHARDS = (1, 2, 4, 8)
"""The tensor- and expert-parallel sizes kept of experts: those of one node."""
TOKENS = (
    1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072,
    4096, 8192, 16384, 32768,
)  # fmt: skip
"""The token counts kept of a gemm."""
NARROWEST = 256
"""Narrower gemms than this are launch-bound whatever they do."""
HEAD_DIM = 128


def build() -> pd.DataFrame:
    """The table, sorted, one row a measurement. Raises PackageMissingError where the package is not installed."""
    parts = [part for device in SYSTEMS for part in _of_device(device)]
    frame = pd.concat(parts, ignore_index=True)
    frame["latency_us"] = _rounded(frame["latency_us"].to_numpy())
    key = [column for column in COLUMNS if column != "latency_us"]
    frame = frame.groupby(key, as_index=False, sort=True).min()
    return frame.astype({**dict.fromkeys(AXES, "int32"), "latency_us": "float32"})[list(COLUMNS)]


def write(path: Path = FILE) -> int:
    """Writes the table; returns its rows."""
    frame = build()
    texts = {name: frame[name].astype("category") for name in COLUMNS[:4]}
    frame.assign(**texts).to_parquet(path, compression="zstd", index=False)
    return len(frame)


def _rounded(values: np.ndarray) -> np.ndarray:
    digits = 3 - np.floor(np.log10(values))
    return np.asarray(np.round(values * 10**digits) / 10**digits)


def _of_device(device: str) -> Iterator[pd.DataFrame]:
    makers: tuple[Callable[[str, str], pd.DataFrame], ...] = (
        _gemm,
        _quantise,
        _prefill,
        _decode,
        _mla_decode,
        _all_reduce,
        _experts,
    )
    for framework in DOCUMENTED:
        for make in makers:
            part = make(device, framework)
            if len(part):
                yield part.assign(device=device, framework=framework).reindex(columns=list(COLUMNS), fill_value=0)


@cache
def _read(device: str, framework: str, family: str, name: str) -> pd.DataFrame:
    directory = data_directory() / SYSTEMS[device].directory / family / framework / DOCUMENTED[framework]
    path = directory / f"{name}_perf.parquet"
    return pd.read_parquet(path) if path.exists() else pd.DataFrame()


def _gemm(device: str, framework: str) -> pd.DataFrame:
    rows = _read(device, framework, "gemm", "gemm")
    eager = (framework == "vllm") & (rows["gemm_dtype"] == "fp8_block")  # timed with its launches: no kernel's time
    wide = (rows["n"] >= NARROWEST) & (rows["k"] >= NARROWEST) & rows["m"].isin(TOKENS)
    rows = rows[rows["gemm_dtype"].isin(GEMM_DTYPES) & wide & ~eager]
    time_us = rows["latency"] * 1e3 - np.where(
        rows["gemm_dtype"] == "fp8", _quantisation_us(device, framework, rows), 0
    )
    return pd.DataFrame(
        {
            "table": "gemm",
            "dtype": rows["gemm_dtype"].map(GEMM_DTYPES),
            "x": rows["m"],
            "y": rows["n"],
            "z": rows["k"],
            "latency_us": np.maximum(time_us, 1.0),
        }
    )


def _quantisation_us(device: str, framework: str, rows: pd.DataFrame) -> np.ndarray:
    """What an fp8 row holds beside the product: finding the scale of the activations, and quantising them.

    SGLang's own tables of both are of unfused PyTorch and say nothing: its rows stay whole.
    """
    total = np.zeros(len(rows))
    for name in () if framework == "sglang" else ("computescale", "scale_matrix"):
        table = _of_fp8(device, framework, name).groupby(["m", "k"])["latency"].min().unstack()
        table = table.reindex(sorted({*table.index, *rows["m"]})).interpolate(method="index").ffill().bfill()
        table = table.reindex(columns=sorted({*table.columns, *rows["k"]})).T.interpolate(method="index").T
        found = table.ffill(axis=1).bfill(axis=1).stack()
        total += found.reindex(pd.MultiIndex.from_frame(rows[["m", "k"]])).to_numpy() * 1e3
    return total


def _of_fp8(device: str, framework: str, name: str) -> pd.DataFrame:
    rows = _read(device, framework, "quantize", name)
    return rows[rows["quant_dtype"] == "fp8"]


def _quantise(device: str, framework: str) -> pd.DataFrame:
    """Static quantisation of [M, K] bfloat16 activations."""
    if framework == "sglang":
        return pd.DataFrame()
    rows = _of_fp8(device, framework, "scale_matrix")
    rows = rows[rows["m"].isin(TOKENS) & (rows["k"] >= NARROWEST) & (rows["latency"] > 0)]
    return pd.DataFrame(
        {
            "table": "quantise",
            "dtype": "float8_e4m3fn",
            "x": rows["m"],
            "y": rows["k"],
            "latency_us": rows["latency"] * 1e3,
        }
    )


def _attention(rows: pd.DataFrame, table: str, dtype: pd.Series, length: pd.Series) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "table": table,
            "dtype": dtype.map({"bfloat16": "bfloat16", "fp8": "float8_e4m3fn"}),
            "x": rows["batch_size"],
            "y": length,
            "q_heads": rows["num_heads"],
            "kv_heads": rows["num_key_value_heads"],
            "latency_us": rows["latency"] * 1e3,
        }
    )


def _whole(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[(rows["head_dim"] == HEAD_DIM) & (rows["window_size"] == 0)]


def _prefill(device: str, framework: str) -> pd.DataFrame:
    """Compute dtype and cache alike; bfloat16 over an fp8 cache runs an fp8 kernel in TensorRT-LLM and is left out."""
    rows = _whole(_read(device, framework, "attention", "context_attention"))
    rows = rows[(rows["attn_dtype"] == rows["kv_cache_dtype"]) & (rows["isl"] >= 16)]
    return _attention(rows, "attention_prefill", rows["attn_dtype"], rows["isl"])


def _decode(device: str, framework: str) -> pd.DataFrame:
    rows = _whole(_read(device, framework, "attention", "generation_attention"))
    rows = rows[rows["step"] >= 63]
    return _attention(rows, "attention_decode", rows["kv_cache_dtype"], rows["isl"] + rows["step"])


def _mla_decode(device: str, framework: str) -> pd.DataFrame:
    rows = _read(device, framework, "mla", "generation_mla")
    if not len(rows):
        return rows
    rows = rows[rows["step"] >= 63].assign(num_key_value_heads=1)
    return _attention(rows, "mla_decode", rows["kv_cache_dtype"], rows["isl"] + rows["step"])


def _all_reduce(device: str, framework: str) -> pd.DataFrame:
    rows = _read(device, framework, "comm", "custom_allreduce")
    rows = rows[~rows["kernel_source"].str.contains("eager")]
    return pd.DataFrame(
        {
            "table": "all_reduce",
            "dtype": "bfloat16",
            "x": rows["num_gpus"],
            "y": rows["message_size"],
            "latency_us": rows["latency"] * 1e3,
        }
    )


def _experts(device: str, framework: str) -> pd.DataFrame:
    """All routed experts of a layer in one: routing, both grouped matmuls and the activation between them.

    Only tokens spread evenly: min(experts, tokens x active) experts get one. Experts without a gate are left out.
    vLLM's fp8 ones are slower than its bfloat16 ones, and told so.
    """
    rows = _read(device, framework, "moe", "moe")
    sharded = rows["moe_tp_size"].isin(SHARDS) & rows["moe_ep_size"].isin(SHARDS)
    gated = ~rows["kernel_source"].str.contains("nongated|situ_as_silu")
    rows = rows[sharded & gated & rows["moe_dtype"].isin(EXPERT_DTYPES) & (rows["distribution"] == "balanced")]
    found = pd.DataFrame(
        {
            "table": "experts",
            "dtype": rows["moe_dtype"].map(EXPERT_DTYPES),
            "x": rows["num_tokens"],
            "y": rows["hidden_size"],
            "z": rows["inter_size"] // rows["moe_tp_size"],
            "experts": rows["num_experts"],
            "active": rows["topk"],
            "ep": rows["moe_ep_size"],
            "latency_us": rows["latency"] * 1e3,
        }
    )
    return found[~_impossible(found, speed_of_light(SYSTEMS[device].part))]


def _impossible(rows: pd.DataFrame, bound: Attainable) -> pd.Series[bool]:
    """All rows of experts of which one beats the datasheet: fewer experts ran there than their label tells.

    vLLM's and SGLang's of DeepSeek-V3 are up to 1.8 times too fast, as if half of the 256 got a token.
    """
    beats = pd.Series(False, index=rows.index)
    for (dtype, *sizes), part in rows.groupby(["dtype", *LAYER]):
        layer = Experts(**dict(zip(SIZES, (int(str(size)) for size in sizes), strict=True)))
        tokens = part["x"].to_numpy(dtype=float)
        least = bound.experts(tokens, layer, layer.spread(tokens), str(dtype))
        beats[part.index] = least > part["latency_us"].to_numpy(dtype=float)
    return rows.assign(beats=beats).groupby(["dtype", "y", "experts", "active"])["beats"].transform("any")
