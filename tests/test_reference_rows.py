"""Planted rows of the published tables: what each is taken for, how it is counted, and the classes no real row has.

Needs no package. Expected figures are worked out by hand.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from analysis import reference, reference_tables
from analysis.reference_gemm import copies_of_weights, launches_per_sample
from analysis.reference_tables import Table, fastest_of_repeats, version_key
from analysis.roofline import points

MIB = 1 << 20
H100_L2 = 50 * MIB


def planted(name: str, framework: str, version: str = "", **columns: Any) -> pd.DataFrame:
    """Our columns of a table of one row or more, on H100."""
    rows = pd.DataFrame({"kernel_source": "planted", **columns})
    version = version or reference_tables.DOCUMENTED[framework]
    table = Table(name, framework, version, rows, "NVIDIA H100 80GB HBM3", 0)
    return points(reference.table_rows(table, "h100"))[0]


def gemm(m: int, n: int, k: int, latency_ms: float, dtype: str = "bfloat16", **more: Any) -> dict[str, Any]:
    return {"m": [m], "n": [n], "k": [k], "latency": [latency_ms], "gemm_dtype": [dtype], **more}


def attention(**changes: Any) -> dict[str, Any]:
    row = {
        "batch_size": 1, "isl": 4096, "step": 0, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "window_size": 0, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "latency": 0.3,
    }  # fmt: skip
    return {name: [value] for name, value in (row | changes).items()}


def test_a_time_no_clock_allows_is_invalid() -> None:
    """2 x 4096^3 FLOP in 100 us are 1,374 TFLOP/s; 132 SMs x 4,096 FLOP x 1,980 MHz are 1,071."""
    (row,) = planted("gemm", "trtllm", **gemm(4096, 4096, 4096, 0.1)).to_dict("records")
    assert row["class"] == "invalid"
    assert row["reason"].startswith("1374 TFLOP/s is above 1071, all SMs at their maximum clock")


def test_bytes_faster_than_dram_are_invalid_unless_l2_may_hold_them() -> None:
    """2 x 8192 x 8192 B (134 MB) in 30 us are 4,475 GB/s; a sixteenth of it fits in L2."""
    (row,) = planted("gemm", "trtllm", **gemm(1, 8192, 8192, 0.03)).to_dict("records")
    assert row["class"] == "invalid"
    assert row["reason"].startswith("4475 GB/s is above the DRAM peak of 3350")
    assert planted("gemm", "trtllm", **gemm(1, 2048, 2048, 0.001))["class"].tolist() == ["cache-resident"]


@pytest.mark.parametrize(
    ("framework", "scale", "weight_mib", "copies"),
    [("trtllm", "", 8, 5), ("trtllm", "", 30, 2), ("trtllm", "", 60, 1), ("vllm", "", 60, 6), ("sglang", "", 1, 6),
     ("vllm", "block128", 8, 1), ("sglang", "block128", 8, 6)],
)  # fmt: skip
def test_copies_that_weights_rotate_over(framework: str, scale: str, weight_mib: int, copies: int) -> None:
    assert copies_of_weights(framework, scale, weight_mib * MIB, H100_L2) == copies


@pytest.mark.parametrize(
    ("framework", "n", "cache"),
    [("trtllm", 2560, "cold"), ("trtllm", 2048, "hot"), ("vllm", 2048, "hot"), ("vllm", 2560, "cold")],
)
def test_a_gemm_is_cold_where_its_copies_fill_l2(framework: str, n: int, cache: str) -> None:
    """Of 2048-wide bfloat16 weights 2560 rows are 10 MiB: five copies are H100's 50 MiB; 2048 rows are 8 MiB."""
    assert planted("gemm", framework, **gemm(1, n, 2048, 0.02))["cache"].tolist() == [cache]


@pytest.mark.parametrize(
    ("framework", "dtype", "expected"),
    [
        ("trtllm", "bfloat16", ("bfloat16", "", "", "graph", "distribution=randn")),
        ("vllm", "bfloat16", ("bfloat16", "", "", "graph", "distribution=uninitialised weights")),
        ("trtllm", "fp8", ("float8_e4m3fn", "tensor", "quantised", "graph", "distribution=randn")),
        ("vllm", "fp8", ("float8_e4m3fn", "token", "quantised", "graph", "distribution=constant weights")),
        ("vllm", "fp8_block", ("float8_e4m3fn", "block128", "quantised", "eager", "distribution=constant weights")),
        ("sglang", "fp8_block", ("float8_e4m3fn", "block128", "quantised", "graph",
                                 "distribution=randn activations and uniform weights")),
    ],
)  # fmt: skip
def test_what_a_gemm_row_is(framework: str, dtype: str, expected: tuple[str, ...]) -> None:
    (row,) = planted("gemm", framework, **gemm(16, 4096, 8192, 0.05, dtype)).to_dict("records")
    includes = {"": "", "quantised": "activation quantisation bf16 to fp8"}
    assert (row["dtype"], row["scale"]) == expected[:2]
    assert row["includes"] == includes[expected[2]]
    assert (row["launch"], row["data"]) == expected[3:]


@pytest.mark.parametrize(
    ("framework", "dtype", "num_bytes"),
    [
        ("trtllm", "bfloat16", 2 * (16 * 8192 + 16 * 4096 + 4096 * 8192)),
        ("trtllm", "fp8", 2 * (16 * 8192 + 16 * 4096) + 4096 * 8192 + 4),
        ("sglang", "fp8", 2 * (16 * 8192 + 16 * 4096) + 4096 * 8192 + 4 * 4096),
        ("sglang", "fp8_block", 2 * (16 * 8192 + 16 * 4096) + 4096 * 8192 + 4 * 32 * 64),
    ],
)
def test_fp8_gemms_count_bfloat16_activations_and_the_scales(framework: str, dtype: str, num_bytes: int) -> None:
    (row,) = planted("gemm", framework, **gemm(16, 4096, 8192, 0.05, dtype)).to_dict("records")
    assert (row["bytes"], row["flops"]) == (num_bytes, 2 * 16 * 4096 * 8192)


@pytest.mark.parametrize(
    ("m", "op", "phase"), [(64, "matmul_decode", "decode"), (65, "matmul", "decode"), (257, "matmul", "prefill")]
)
def test_op_and_phase_of_a_gemm(m: int, op: str, phase: str) -> None:
    (row,) = planted("gemm", "trtllm", **gemm(m, 4096, 4096, 0.05)).to_dict("records")
    assert (row["op"], row["phase"]) == (op, phase)


def test_an_eager_time_is_never_the_best() -> None:
    rows = [
        planted("gemm", framework, **gemm(16, 4096, 8192, latency, "fp8_block"))
        for framework, latency in (("vllm", 0.01), ("sglang", 0.03), ("trtllm", 0.02))
    ]
    assert reference.best_of(pd.concat(rows, ignore_index=True))["provider"].tolist() == ["trtllm"]


def test_decode_attends_to_the_new_token_and_the_cached_ones() -> None:
    """B=4, 4,096 keys, 32/8 heads, D=128: 2 x 4 x 32 x 4096 x 256 FLOP, and 67,174,400 bytes."""
    columns = attention(isl=1, step=4095, batch_size=4)
    (row,) = planted("attention_decode", "vllm", **columns).to_dict("records")
    assert (row["kv_len"], row["q_len"], row["flops"], row["bytes"]) == (4096, 1, 268_435_456, 67_174_400)
    assert row["case_id"].endswith("bfloat16/batch=4,q_len=1,kv_len=4096,q_heads=32,kv_heads=8,head_dim=128")


def test_prefill_is_causal() -> None:
    (row,) = planted("attention_prefill", "vllm", **attention()).to_dict("records")
    assert (row["flops"], row["causal"]) == (137_472_507_904, 1)


def test_a_window_bounds_pairs_and_keys() -> None:
    """One query over the last 128 of 4,096 keys: 128 pairs and 128 keys a KV head."""
    columns = attention(isl=1, step=4095, window_size=128)
    (row,) = planted("attention_decode", "vllm", **columns).to_dict("records")
    assert row["flops"] == 2 * 32 * 128 * 256
    assert row["bytes"] == 2 * (32 * 256 + 8 * 128 * 256)
    assert (row["technique"], row["window"]) == ("window", 128)


@pytest.mark.parametrize(("framework", "v_head_dim"), [("sglang", 128), ("vllm", 192)])
def test_heads_of_192_have_narrow_values_in_sglang(framework: str, v_head_dim: int) -> None:
    columns = attention(isl=1, step=1023, head_dim=192)
    (row,) = planted("attention_decode", framework, **columns).to_dict("records")
    assert row["bytes"] == 2 * (32 + 8 * 1024) * (192 + v_head_dim)
    assert ("v_head_dim=128" in row["case_id"]) == (framework == "sglang")


def test_prefill_mislabelled_bfloat16_is_fp8_and_in_no_standard_shape() -> None:
    """1,262 TFLOP/s, as the package has it, is beyond bfloat16 and not beyond fp8."""
    columns = attention(kv_cache_dtype="fp8", latency=137_472_507_904 / 1262e12 * 1e3)
    (row,) = planted("attention_prefill", "trtllm", **columns).to_dict("records")
    assert (row["dtype"], row["class"] == "invalid") == ("float8_e4m3fn", False)
    assert "/bfloat16.kv_float8_e4m3fn/" in row["case_id"] and "computes in fp8" in row["detail"]
    (honest,) = planted("attention_prefill", "vllm", **columns).to_dict("records")
    assert (honest["dtype"], honest["class"]) == ("bfloat16", "invalid")


@pytest.mark.parametrize(
    ("framework", "name", "dtype", "includes"),
    [
        ("vllm", "attention_prefill", "bfloat16", "KV-cache write"),
        ("trtllm", "attention_prefill", "bfloat16", "KV-cache write; RoPE; QKV split"),
        ("trtllm", "attention_prefill", "fp8", "KV-cache write; RoPE; QKV split; Q, K and V quantisation bf16 to fp8"),
        ("trtllm", "attention_decode", "bfloat16", "KV-cache write; RoPE"),
    ],
)
def test_what_an_attention_time_includes(framework: str, name: str, dtype: str, includes: str) -> None:
    columns = attention(attn_dtype=dtype, kv_cache_dtype=dtype)
    assert planted(name, framework, **columns)["includes"].tolist() == [includes]


def mla(**sizes: Any) -> dict[str, Any]:
    row = {"kv_cache_dtype": "fp8", "batch_size": 1, "num_heads": 16, "latency": 0.05, "isl": 1, "step": 0}
    return {name: [value] for name, value in (row | sizes).items()}


def test_mla_prefill_and_decode_are_counted_in_their_own_widths() -> None:
    """An fp8 cache of latents is read in decode; in prefill keys and values are expanded in bfloat16."""
    (decode,) = planted("mla_decode", "trtllm", **mla(step=1023)).to_dict("records")
    assert decode["bytes"] == 1024 * 576 + 2 * 16 * (576 + 512)
    assert decode["flops"] == 2 * 16 * 1024 * (576 + 512)
    (prefill,) = planted("mla_prefill", "trtllm", **mla(isl=1024)).to_dict("records")
    assert prefill["bytes"] == 2 * 1024 * 16 * 2 * (192 + 128)
    assert prefill["flops"] == 2 * 16 * (1024 * 1025 // 2) * 320
    assert prefill["flags"] == ""
    assert planted("mla_prefill", "sglang", **mla(isl=1024))["flags"].tolist() == ["suspect"]


def test_of_repeats_the_fastest_stays() -> None:
    rows = pd.DataFrame({"m": [1, 2, 1], "latency": [3.0, 5.0, 2.0]})
    assert fastest_of_repeats(rows).to_dict("list") == {"m": [2, 1], "latency": [5.0, 2.0]}


def test_what_is_not_documented_is_not_told() -> None:
    """Another version's rows have no cache, no data, no includes; an unknown dtype is left out."""
    columns = {"m": [1, 1], "n": [4096] * 2, "k": [4096] * 2, "latency": [0.02] * 2, "gemm_dtype": ["fp8", "int8_wo"]}
    (row,) = planted("gemm", "sglang", "0.5.6.post2", **columns).to_dict("records")
    assert (row["cache"], row["data"], row["includes"]) == ("", "", "")
    assert "documented for sglang 0.5.14 only" in row["detail"]


def test_launches_behind_a_value() -> None:
    """6 replays of a graph with one launch per copy; SGLang's attention 20 replays of one."""
    rows = pd.concat(
        [
            planted("gemm", "trtllm", **gemm(1, 8192, 8192, 0.05)),  # 128 MiB: one copy
            planted("gemm", "vllm", **gemm(1, 8192, 8192, 0.05)),
            planted("attention_prefill", "sglang", **attention()),
            planted("attention_prefill", "vllm", **attention()),
        ],
        ignore_index=True,
    )
    assert launches_per_sample(rows, H100_L2).tolist() == [6, 36, 20, 6]


def test_versions_are_sorted_as_releases() -> None:
    mixed = ["1.0", "0.24.0", "1.0rc10", "0.5.6.post2", "1.0.post1", "0.5.10", "1.0rc2", "0.5.9", "1.0.dev1"]
    ordered = ["0.5.6.post2", "0.5.9", "0.5.10", "0.24.0", "1.0.dev1", "1.0rc2", "1.0rc10", "1.0", "1.0.post1"]
    assert sorted(mixed, key=version_key) == ordered
