"""What the published attention and MLA columns mean.

Prefill is causal over a whole prompt and writes the cache; decode is one query over a paged cache whose length is
the new token and the `step` before it. Every launch has the same buffers, so all rows are `hot`: whether they fit
in L2 is left to the class of a point. The rows that are not what their dtype says are labelled here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.reference_columns import FP8, Kind, completed, storage_columns
from analysis.reference_tables import Table
from kernels.work import Work, attention_work, keys_read, mla_decode_work, unmasked_pairs

KINDS: Mapping[tuple[str, str], Kind] = {
    ("bfloat16", "bfloat16"): Kind("bfloat16", "bfloat16"),
    ("bfloat16", "fp8"): Kind("bfloat16", FP8),
    ("fp8", "fp8"): Kind(FP8, FP8),
}
MISLABELLED = Kind(FP8, FP8, declared=f"bfloat16.kv_{FP8}")
"""TensorRT-LLM's prefill declared bfloat16 over an fp8 cache: on Hopper it runs the fp8 kernel."""
MISLABELLED_DETAIL = "published as bfloat16 over an fp8 cache, but the kernel computes in fp8: not comparable"
MLA_HEAD, MLA_VALUE = 192, 128
"""Width of a query-key head and of a value head of MLA prefill."""
ABSORBED_DETAIL = (
    "counted as 192/128 heads, as published; the rate fits the absorbed form (576/512, 3.4 times the arithmetic), "
    "which the collector of that time ran"
)


def attention_columns(table: Table, l2_bytes: int) -> pd.DataFrame:
    """The table as columns of `analysis.frame`."""
    pairs = table.rows.groupby(["attn_dtype", "kv_cache_dtype"], sort=False)
    return completed(table, [_attention_part(table, (str(q), str(kv)), rows) for (q, kv), rows in pairs])


def _attention_part(table: Table, dtypes: tuple[str, str], rows: pd.DataFrame) -> pd.DataFrame:
    prefill, window = table.name == "attention_prefill", rows["window_size"]
    mislabelled = prefill and table.framework == "trtllm" and dtypes == ("bfloat16", "fp8")
    kind = MISLABELLED if mislabelled else KINDS[dtypes]
    axes = _axes(rows, narrow_values=table.framework == "sglang")
    published = f"kv_{dtypes[1]}" if not prefill else dtypes[0] if dtypes[0] == dtypes[1] else ""
    quantised = "fp8" if kind.dtype == FP8 else "quantised_kv" if kind.cached == FP8 else ""
    labels = {
        "op": table.name,
        "phase": "prefill" if prefill else "decode",
        "technique": np.where(window > 0, "window", quantised or ("dense" if prefill else "kv_cache")),
        "published_dtype": np.where(window > 0, "", published),
        "kv_dtype": FP8 if kind.cached == FP8 != kind.dtype else "",
        "scale": "",
        "cache": "hot",
        "launch": "graph",
        "includes": "; ".join(_includes(table.framework, prefill, kind)),
        "data": "distribution=randn" + ("; cached=unfilled" if table.framework == "trtllm" and not prefill else ""),
        "flags": "",
        "detail": MISLABELLED_DETAIL if mislabelled else "",
    }
    causal = {"causal": 1} if prefill else {}
    work = storage_columns(kind, _attention_work(rows, axes, kind))
    return pd.DataFrame({**labels, **work, **axes, **causal}, index=rows.index)


def _axes(rows: pd.DataFrame, *, narrow_values: bool) -> dict[str, Any]:
    """Sizes; the published length is `isl` new tokens on top of `step` cached ones, and all are attended to."""
    window, head_dim = rows["window_size"].astype("Int64"), rows["head_dim"].astype("Int64")
    return {
        "batch": rows["batch_size"],
        "q_len": rows["isl"],
        "kv_len": rows["isl"] + rows["step"],
        "q_heads": rows["num_heads"],
        "kv_heads": rows["num_key_value_heads"],
        "head_dim": rows["head_dim"],
        # A head of 192 is SGLang's of MiMo-V2, whose values are 128 wide.
        "v_head_dim": (head_dim - head_dim + MLA_VALUE).where((head_dim == MLA_HEAD) & narrow_values),
        "window": window.where(window > 0),
    }


def _attention_work(rows: pd.DataFrame, axes: Mapping[str, Any], kind: Kind) -> Work:
    q_len, kv_len, window = axes["q_len"], axes["kv_len"], rows["window_size"]
    return attention_work(
        batch=axes["batch"],
        q_heads=axes["q_heads"],
        kv_heads=axes["kv_heads"],
        q_len=q_len,
        pairs=axes["batch"] * unmasked_pairs(q_len, kv_len, causal=True, window=window),
        kv_tokens=axes["batch"] * keys_read(q_len, kv_len, window=window),
        head_dim=axes["head_dim"],
        v_head_dim=axes["v_head_dim"].fillna(axes["head_dim"]).astype("int64"),
        dtype="bfloat16",
        kv_dtype=kind.cached,
    )


def _includes(framework: str, prefill: bool, kind: Kind) -> list[str]:
    if framework != "trtllm":
        return ["KV-cache write"]
    split = ["QKV split"] if prefill else []
    quantised = ["Q, K and V quantisation bf16 to fp8"] if kind.dtype == FP8 else []
    return ["KV-cache write", "RoPE", *split, *quantised]


def mla_columns(table: Table, l2_bytes: int) -> pd.DataFrame:
    """The table as columns of `analysis.frame`: the attention kernel alone."""
    by_cache = table.rows.groupby("kv_cache_dtype", sort=False)
    return completed(table, [_mla_part(table, str(kv), rows) for kv, rows in by_cache])


def _mla_part(table: Table, kv: str, rows: pd.DataFrame) -> pd.DataFrame:
    prefill = table.name == "mla_prefill"
    absorbed = prefill and table.framework == "sglang"
    labels = {
        "op": table.name,
        "phase": "prefill" if prefill else "decode",
        "technique": "mla",
        "published_dtype": f"kv_{kv}",
        "kv_dtype": FP8 if kv == "fp8" else "",
        "scale": "",
        "cache": "hot",
        "launch": "graph",
        "includes": "",
        "data": "distribution=randn",
        "flags": "suspect" if absorbed else "",
        "detail": ABSORBED_DETAIL if absorbed else "",
    }
    heads, length = rows["num_heads"], rows["isl"] + rows["step"]
    axes: dict[str, Any] = {"batch": rows["batch_size"], "q_len": rows["isl"], "kv_len": length, "q_heads": heads}
    kind = Kind("bfloat16", FP8 if kv == "fp8" else "bfloat16")
    if prefill:
        axes |= {"kv_heads": heads, "head_dim": MLA_HEAD, "v_head_dim": MLA_VALUE, "causal": 1}
    work = _mla_prefill_work(axes) if prefill else _mla_decode_work(axes, kind)
    return pd.DataFrame({**labels, **storage_columns(kind, work), **axes}, index=rows.index)


def _mla_prefill_work(axes: Mapping[str, Any]) -> Work:
    """Keys and values are expanded in bfloat16: an fp8 cache is only written."""
    return attention_work(
        batch=axes["batch"],
        q_heads=axes["q_heads"],
        kv_heads=axes["kv_heads"],
        q_len=axes["q_len"],
        pairs=axes["batch"] * unmasked_pairs(axes["q_len"], axes["kv_len"], causal=True),
        kv_tokens=axes["batch"] * axes["kv_len"],
        head_dim=axes["head_dim"],
        v_head_dim=axes["v_head_dim"],
        dtype="bfloat16",
    )


def _mla_decode_work(axes: Mapping[str, Any], kind: Kind) -> Work:
    return mla_decode_work(
        batch=axes["batch"],
        q_heads=axes["q_heads"],
        q_len=axes["q_len"],
        kv_tokens=axes["batch"] * axes["kv_len"],
        pairs=axes["batch"] * unmasked_pairs(axes["q_len"], axes["kv_len"], causal=True),
        dtype="bfloat16",
        kv_dtype=kind.cached,
    )
