"""Counting rules, version 1: useful FLOPs and compulsory bytes of each kind of kernel.

A multiply-add is 2 FLOPs; softmax is not counted; each input is read once and each output written once. What a
kernel executes beyond that (tile padding, masked tiles) is no useful work; what it moves beyond that (split
partials, block tables) is `overhead_bytes`.

Every rule is plain arithmetic, so sizes may be Python ints or whole numpy or pandas columns: the analysis counts
a table of published rows with the very rule that a run counts one case with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COUNTING_VERSION = 1

AXES = (
    "M", "N", "K", "batch", "q_len", "kv_len", "prefix_len", "q_heads", "kv_heads", "head_dim", "v_head_dim",
    "causal", "window", "sinks", "softcap", "page_size", "group_size", "experts", "top_k", "skewed",
)  # fmt: skip
"""Names of sizes, in the order that ids and tables give them."""

ELEMENT_BITS = {
    "float64": 64,
    "float32": 32,
    "tfloat32": 32,
    "bfloat16": 16,
    "float16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "int8": 8,
    "int4": 4,
    "uint4": 4,
}

DECODE_ROWS = 64
"""Up to this many rows a matmul is called decode: the widest batch whose weights are still read for few tokens."""

DECODE_TOKENS = 16
"""Up to this many new tokens a sequence are a decode step: one, or a draft's to be verified."""

Size = Any
"""An int, or a column of ints."""


@dataclass(frozen=True, slots=True)
class Work:
    """Declared work of one launch. `flops` and `bytes` are counts; `overhead_bytes` are moved but not compulsory."""

    flops: Size
    bytes: Size
    overhead_bytes: Size = 0
    counting: int = COUNTING_VERSION


def storage_bytes(elements: Size, dtype: str) -> Size:
    """Bytes of `elements` packed values. Raises ValueError for an unknown dtype."""
    if dtype not in ELEMENT_BITS:
        raise ValueError(f"unknown storage dtype {dtype!r}; known: {', '.join(ELEMENT_BITS)}")
    return (elements * ELEMENT_BITS[dtype] + 7) // 8


def matmul_work(
    m: Size, n: Size, k: Size, *, dtype: str, weight_dtype: str = "", out_dtype: str = "", extra_bytes: Size = 0
) -> Work:
    """[M, K] x [K, N] -> [M, N].

    Args:
        dtype: storage of the activations as the kernel takes them (2 bytes where an fp8 kernel takes bfloat16).
        weight_dtype, out_dtype: storage of the other two; `dtype` when empty.
        extra_bytes: scales, zero points, bias.
    """
    weights = storage_bytes(k * n, weight_dtype or dtype)
    activations = storage_bytes(m * k, dtype) + storage_bytes(m * n, out_dtype or dtype)
    return Work(flops=2 * m * n * k, bytes=activations + weights + extra_bytes)


def gate_up_work(m: Size, n: Size, k: Size, *, dtype: str) -> Work:
    """silu([M, K] x [K, N]) * ([M, K] x [K, N]) -> [M, N]: both weights, and no [M, 2N] between them and the output."""
    return Work(flops=4 * m * n * k, bytes=storage_bytes(m * k + 2 * n * k + m * n, dtype))


def smaller(a: Size, b: Size) -> Size:
    """Element-wise minimum by arithmetic, for ints and columns alike."""
    return (a + b - abs(a - b)) // 2


def causal_pairs(q_len: Size, kv_len: Size) -> Size:
    """Query-key pairs under a causal mask aligned bottom-right: query i of Sq sees keys 0 .. i + Skv - Sq.

    For Sq > Skv the first Sq - Skv queries see nothing: (5, 3) gives 6.
    """
    rows = smaller(q_len, kv_len)
    return rows * kv_len - rows * (rows - 1) // 2


def unmasked_pairs(q_len: Size, kv_len: Size, *, causal: bool, window: Size = 0) -> Size:
    """Query-key pairs that count. A window of W keeps the query's own key and the W - 1 before it; 0 means none.

    Raises:
        ValueError: for a window without a causal mask, which has no agreed meaning.
    """
    if not causal:
        windowed = window != 0
        if windowed if isinstance(windowed, bool) else windowed.any():
            raise ValueError(f"a window of {window} needs causal=1")
        return q_len * kv_len
    reach = window + (window == 0) * kv_len
    out_of_reach = causal_pairs(q_len, kv_len - smaller(kv_len, reach))
    return causal_pairs(q_len, kv_len) - out_of_reach


def keys_read(q_len: Size, kv_len: Size, *, window: Size = 0) -> Size:
    """Keys that at least one of the last `q_len` queries sees: all, or the window's reach; none without a query."""
    reach = window + (window == 0) * kv_len
    return smaller(kv_len, reach + q_len - 1) * (q_len > 0)


def attention_work(
    *,
    batch: Size,
    q_heads: Size,
    kv_heads: Size,
    q_len: Size,
    pairs: Size,
    kv_tokens: Size,
    head_dim: Size,
    v_head_dim: Size,
    dtype: str,
    kv_dtype: str = "",
    lse: bool = False,
    sinks: Size = 0,
) -> Work:
    """Attention of `batch` sequences of `q_len` queries.

    Args:
        pairs: unmasked query-key pairs of one head, summed over the batch.
        kv_tokens: keys really read, summed over the batch: real lengths, never the allocation.
        lse: whether the log-sum-exp (4 bytes a row) is written.
        sinks: learned logits that are read, of 4 bytes each.
    """
    flops = 2 * q_heads * pairs * (head_dim + v_head_dim)
    q_and_o = storage_bytes(batch * q_len * q_heads * (head_dim + v_head_dim), dtype)
    kv = storage_bytes(kv_tokens * kv_heads * (head_dim + v_head_dim), kv_dtype or dtype)
    return Work(flops=flops, bytes=q_and_o + kv + 4 * sinks + (4 * batch * q_len * q_heads if lse else 0))


def paged(work: Work, *, batch: Size, pages: Size) -> Work:
    """The same work over a paged cache: `pages` block table entries and a length for each of `batch` sequences, of 4
    bytes each, are moved beside it."""
    return Work(flops=work.flops, bytes=work.bytes, overhead_bytes=4 * (pages + batch))


def kv_append_work(*, batch: Size, tokens: Size, kv_heads: Size, head_dim: Size, dtype: str) -> Work:
    """The keys and values of `tokens` new tokens a sequence, read once and written once; no FLOPs."""
    moved = 2 * storage_bytes(2 * batch * tokens * kv_heads * head_dim, dtype)
    return Work(flops=0 * tokens, bytes=moved, overhead_bytes=4 * batch)


def glue_work(values: Size, dtype: str) -> Work:
    """What stands between a layer's matmuls: so many values read or written, each once; no FLOPs that count."""
    return Work(flops=0 * values, bytes=storage_bytes(values, dtype))


MLA_LATENT = 512
MLA_ROPE = 64


def mla_decode_work(
    *, batch: Size, q_heads: Size, q_len: Size, kv_tokens: Size, pairs: Size, dtype: str, kv_dtype: str = ""
) -> Work:
    """Absorbed MLA decode: scores over 576 values, output over 512, one latent row per key for all heads."""
    width = 2 * MLA_LATENT + MLA_ROPE
    q_and_o = storage_bytes(batch * q_len * q_heads * width, dtype)
    latent = storage_bytes(kv_tokens * (MLA_LATENT + MLA_ROPE), kv_dtype or dtype)
    return Work(flops=2 * q_heads * pairs * width, bytes=q_and_o + latent)


def grouped_matmul_work(rows: Size, n: Size, k: Size, *, experts_hit: Size, dtype: str, weight_dtype: str = "") -> Work:
    """Rows really routed times [K, N], reading only the weights of experts that got a row."""
    weights = storage_bytes(experts_hit * k * n, weight_dtype or dtype)
    return Work(flops=2 * rows * n * k, bytes=storage_bytes(rows * k + rows * n, dtype) + weights)
