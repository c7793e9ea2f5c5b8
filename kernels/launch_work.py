"""What a launch of each Triton kernel declares to a profiler: its useful FLOPs and the bytes it must move.

`@triton.jit(launch_metadata=...)` takes these functions. Triton calls them only when a hook asks, as Proton's does,
which then shows rates. The counts are those of `kernels.work`, from shapes alone: nothing is read from the device.
Where two kernels share a case, each counts what it reads and writes itself: the first the partial results in place of
the output, the second no FLOPs. So the FLOPs of a case add up to its work, and its bytes to that and the partials' way
out and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.ragged_tables import counts_of
from kernels.work import (
    MLA_LATENT,
    Work,
    attention_work,
    gate_up_work,
    grouped_matmul_work,
    keys_read,
    kv_append_work,
    matmul_work,
    mla_decode_work,
    storage_bytes,
    unmasked_pairs,
)

Arguments = Mapping[str, Any]
"""A kernel's arguments by name, descriptors and compile-time ones included."""
Declared = dict[str, Any]
"""`name` and Proton's metrics: `flops8` to `flops64` by the operands' width in bits, and `bytes`."""
PARTIAL = "float32"


def matmul_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of a kernel of op matmul: operands a, b, c; M, N, K."""
    M, N, K = (args[axis] for axis in "MNK")
    out_dtype, scales = _dtype(args["c"]), _scale_bytes(args["a_scale"], args["b_scale"])
    work = matmul_work(M, N, K, dtype=_dtype(args["a"]), out_dtype=out_dtype, extra_bytes=scales)
    return _declared(kernel, f"M={M},N={N},K={K}", work, args["a"])


def matmul_decode_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of the first kernel of op matmul_decode: x, w, y, partial; N, K, and M but for one row."""
    M, N, K, splits = args.get("M", 1), args["N"], args["K"], args["splits"]
    out_dtype, more = _dtype(args["y"]), _scale_bytes(args.get("x_scale"), args.get("w_scale"))
    if args["SPLIT"]:
        out_dtype, more = PARTIAL, more + storage_bytes((splits - 1) * M * N, PARTIAL)
    work = matmul_work(M, N, K, dtype=_dtype(args["x"]), out_dtype=out_dtype, extra_bytes=more)
    return _declared(kernel, f"M={M},N={N},K={K},splits={splits}", work, args["x"])


def weight_only_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of the first kernel of op matmul_weight_only: x, stored weights, scales and zero points; y or partials."""
    M, N, K, splits = args["M"], args["N"], args["K"], args["splits"]
    tensors = [args[name] for name in ("x", "w", "scales", "zeros", "partial" if args["SPLIT"] else "y")]
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
    return _declared(kernel, f"M={M},N={N},K={K},splits={splits}", Work(flops=2 * M * N * K, bytes=moved), args["x"])


def grouped_matmul_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of the kernel of op grouped_matmul.

    Offsets lie on the device, so as many experts count as can have a row: bytes are an upper bound, and the name says
    `experts<=`.
    """
    rows, N, K, experts = (args[name] for name in ("rows", "N", "K", "experts"))
    hit = min(rows, experts)
    work = grouped_matmul_work(rows, N, K, experts_hit=hit, dtype=_dtype(args["x"]))
    return _declared(kernel, f"rows={rows},N={N},K={K},experts<={hit}", work, args["x"])


def quantise_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of a kernel of op quantise_fp8: x, stored and scales once; no FLOPs."""
    moved = sum(args[name].numel() * args[name].element_size() for name in ("x", "stored", "scales"))
    return _declared(kernel, f"M={args['M']},K={args['K']}", Work(flops=0, bytes=moved), args["x"])


def glue_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of a kernel of the ops between a layer's matmuls: each of its tensors once; no FLOPs."""
    tensors = [value for value in args.values() if isinstance(value, torch.Tensor)]
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    M, K = args["y"].shape
    return _declared(kernel, f"M={M},K={K}", Work(flops=0, bytes=moved), args["x"])


def gate_up_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of the kernel of op gate_up_silu."""
    M, N, K = (args[axis] for axis in "MNK")
    return _declared(kernel, f"M={M},N={N},K={K}", gate_up_work(M, N, K, dtype=_dtype(args["x"])), args["x"])


def _scale_bytes(*scales: torch.Tensor | None) -> int:
    return sum(4 * scale.numel() for scale in scales if scale is not None)


def attention_prefill_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of the kernel of op attention_prefill."""
    batch, q_len, kv_len, q_heads = (args[name] for name in ("batches", "q_len", "kv_len", "q_heads"))
    window = args["window"] or 0
    work = attention_work(
        batch=batch,
        q_heads=q_heads,
        kv_heads=q_heads // args["group"],
        q_len=q_len,
        pairs=batch * unmasked_pairs(q_len, kv_len, causal=args["CAUSAL"], window=window),
        kv_tokens=batch * keys_read(q_len, kv_len, window=window),
        head_dim=args["D"],
        v_head_dim=args["DV"],
        dtype=_dtype(args["q"]),
        lse=args["LSE"],
        sinks=q_heads * args["SINKS"],
    )
    return _declared(kernel, f"batch={batch},q_len={q_len},kv_len={kv_len},heads={q_heads}", work, args["q"])


def attention_decode_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of the first kernel of op attention_decode.

    Lengths lie on the device, so every sequence counts as long as its allocation: the rates of ragged batches are upper
    bounds, and the name says `kv_len<=`.
    """
    batch, kv_len = args["k"].shape[:2]
    return _over_a_cache(kernel, args, batch, kv_len)


def attention_paged_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of the first kernel of the paged attention ops; lengths as of `attention_decode_launch`, by the block table."""
    batch, most_pages = args["block_table"].shape
    return _over_a_cache(kernel, args, batch, most_pages * args["PAGE"])


def _over_a_cache(kernel: Any, args: Arguments, batch: int, kv_len: int) -> Declared:
    q_len, kv_heads, splits = args["q_len"], args["kv_heads"], args["splits"]
    q_heads, dtype, window = kv_heads * args["group"], _dtype(args["q"]), args.get("window") or 0
    work = attention_work(
        batch=batch,
        q_heads=q_heads,
        kv_heads=kv_heads,
        q_len=q_len,
        pairs=batch * unmasked_pairs(q_len, kv_len, causal=not args.get("SHARED"), window=window),
        kv_tokens=batch * keys_read(q_len, kv_len, window=window),
        head_dim=args["D"],
        v_head_dim=args["DV"],
        dtype=dtype,
        kv_dtype=_dtype(args.get("k", args.get("k_pool"))),
        lse=args["LSE"] and not args["SPLIT"],
        sinks=q_heads * args.get("SINKS", 0),
    )
    if args.get("QUANTISED"):
        scales = sum(scale.numel() for scale in (args["k_scale"], args["v_scale"]))
        work = replace(work, bytes=work.bytes + storage_bytes(scales, "float32"))
    if args["SPLIT"]:
        rows = batch * q_len * q_heads
        partials = storage_bytes(rows * splits * (args["DV"] + 1), PARTIAL)
        work = Work(flops=work.flops, bytes=work.bytes - storage_bytes(rows * args["DV"], dtype) + partials)
    return _declared(kernel, f"batch={batch},kv_len<={kv_len},heads={q_heads},splits={splits}", work, args["q"])


def attention_ragged_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of the first kernel of the ops over sequences of unlike lengths: their real ones, and the schedule's own bytes.

    Parts take the place of the rows that they are parts of; which those are is not told, and their output counts too.
    """
    pairs, keys = counts_of(args["plan"])
    total_q, kv_heads, q_heads = args["total_q"], args["kv_heads"], args["kv_heads"] * args["group"]
    work = attention_work(
        batch=1,
        q_heads=q_heads,
        kv_heads=kv_heads,
        q_len=total_q,
        pairs=pairs,
        kv_tokens=keys,
        head_dim=args["D"],
        v_head_dim=args["DV"],
        dtype=_dtype(args["q"]),
        lse=args["LSE"],
    )
    beside = storage_bytes(args["partial"].numel() + args["partial_lse"].numel(), PARTIAL) + 4 * args["plan"].numel()
    work = Work(flops=work.flops, bytes=work.bytes + beside)
    return _declared(kernel, f"tokens={total_q},keys={keys},heads={q_heads},items={len(args['plan'])}", work, args["q"])


def ragged_merge_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of their second kernel: the parts once, no useful FLOPs; the output is counted with the first."""
    read = storage_bytes(args["partial"].numel() + args["partial_lse"].numel(), PARTIAL)
    work = Work(flops=0, bytes=read + 4 * args["merged"].numel())
    return _declared(kernel, f"tiles={len(args['merged'])}", work, args["partial"])


def attention_mla_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of the first kernel of op attention_mla_decode; lengths as of `attention_paged_launch`."""
    batch, most_pages = args["block_table"].shape
    q_len, q_heads, splits, kv_len = args["q_len"], args["q_heads"], args["splits"], most_pages * args["PAGE"]
    dtype, rows = _dtype(args["q"]), batch * q_len * q_heads
    pairs = batch * unmasked_pairs(q_len, kv_len, causal=True)
    work = mla_decode_work(
        batch=batch, q_heads=q_heads, q_len=q_len, kv_tokens=batch * kv_len, pairs=pairs, dtype=dtype
    )
    more = 4 * rows if args["LSE"] else 0
    if args["SPLIT"]:
        more = storage_bytes(rows * splits * (MLA_LATENT + 1), PARTIAL) - storage_bytes(rows * MLA_LATENT, dtype)
    told = f"batch={batch},kv_len<={kv_len},heads={q_heads},splits={splits}"
    return _declared(kernel, told, Work(flops=work.flops, bytes=work.bytes + more), args["q"])


def kv_append_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of the kernel of op kv_append."""
    batch, tokens, _, kv_heads, head_dim = args["kv_new"].shape
    work = kv_append_work(
        batch=batch, tokens=tokens, kv_heads=kv_heads, head_dim=head_dim, dtype=_dtype(args["kv_new"])
    )
    return _declared(kernel, f"batch={batch},tokens={tokens},kv_heads={kv_heads}", work, args["kv_new"])


def merge_launch(grid: Any, kernel: Any, args: Arguments) -> Declared:
    """Of a second kernel, which joins partial results: each of its tensors once, no useful FLOPs."""
    tensors = [value for value in args.values() if isinstance(value, torch.Tensor)]
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return _declared(kernel, f"splits={args['splits']}", Work(flops=0, bytes=moved), tensors[0])


def _declared(kernel: Any, sizes: str, work: Work, operand: torch.Tensor | TensorDescriptor) -> Declared:
    bits = 8 * _tensor(operand).element_size()
    return {"name": f"{kernel.name}[{sizes}]", f"flops{bits}": work.flops, "bytes": work.bytes}


def _dtype(operand: torch.Tensor | TensorDescriptor) -> str:
    return str(_tensor(operand).dtype).removeprefix("torch.")


def _tensor(operand: torch.Tensor | TensorDescriptor) -> torch.Tensor:
    tensor: torch.Tensor = operand if isinstance(operand, torch.Tensor) else operand.base
    return tensor
