"""The Triton provider of op attention_prefill: out = softmax(Q K^T / sqrt(D)) V over many query tokens.

A program owns BLOCK_M queries of one head and walks the keys: first the tiles that every query sees, without a mask,
then those on the diagonal and the ragged end, with one. The last tiles of a causal problem see the most keys, so
they are launched first; the heads of a tile are neighbours, so that those of one KV head share it in L2. Softmax is
online, in base 2 (`kernels.softmax`). Under a sliding window the walk starts at the first key that any of the tile's
queries sees, and the tiles at the window's lower edge are masked too.

Bound: arithmetic, but the exponentials count: for D = 128 a 128x128 tile takes 2,048 tensor cycles and 1,024 of the
exp2 unit on an sm_90 SM. On sm_90 tiles come by descriptor; 8 warps keep two wgmma groups of 64 queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from kernels.attention import check_shapes, padded_width
from kernels.attention_variants import Variant
from kernels.launch import OPTIONS, descriptor, target_arch, tma_refusal, use_allocator
from kernels.launch_work import attention_prefill_launch
from kernels.softmax import FLOOR, LOG2_E, finished, load_rows, no_sums, seen_sink, walk_keys
from kernels.tuned import Bucket, Table, dtype_name, tuned_first


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters.

    Attributes:
        block_m, block_n: queries and keys of a tile.
        num_warps, num_stages: of the compiler.
        descriptors: "device" (made by the kernel), "host", or "" for pointers.
        warp_specialize: producer and consumer warps; engages with 4 warps, device-made descriptors and one loop, so
            every tile is masked.
        lazy: raise the softmax's maximum only where it must be (`kernels.softmax`); not with warp_specialize.
    """

    block_m: int
    block_n: int
    num_warps: int = 8
    num_stages: int = 2
    descriptors: str = "device"
    warp_specialize: bool = False
    lazy: bool = False


HOPPER = {
    64: (
        Config(block_m=128, block_n=128, num_stages=3, lazy=True),
        Config(block_m=128, block_n=64, num_stages=3, lazy=True),
        Config(block_m=128, block_n=128, num_stages=3),
        Config(block_m=128, block_n=128, num_stages=3, descriptors="host"),
    ),
    128: (
        Config(block_m=128, block_n=128, num_stages=2, lazy=True),
        Config(block_m=128, block_n=128, num_stages=2),
        Config(block_m=128, block_n=64, num_stages=3, lazy=True),
        Config(block_m=128, block_n=128, num_stages=2, descriptors="host"),
        Config(block_m=128, block_n=128, num_warps=4, warp_specialize=True),
    ),
    256: (Config(block_m=128, block_n=64, num_stages=2, lazy=True), Config(block_m=128, block_n=64, num_stages=2)),
}
"""Device-made descriptors are of one head and leave Q in shared memory; host-made ones must span all heads, and the
reshape that they need keeps Q in registers: 33 more of them for D = 128, and for D = 256 a full wait after every
wgmma."""
BLACKWELL = {
    64: (
        Config(block_m=128, block_n=128, num_stages=3),
        Config(block_m=128, block_n=64, num_stages=3, lazy=True),
        Config(block_m=128, block_n=128, num_stages=3, descriptors="host"),
    ),
    128: (
        Config(block_m=128, block_n=128, num_stages=2),
        Config(block_m=128, block_n=64, num_stages=3, lazy=True),
        Config(block_m=128, block_n=128, num_stages=2, descriptors="host"),
        Config(block_m=128, block_n=128, num_warps=4, warp_specialize=True),
    ),
    256: (Config(block_m=128, block_n=64, num_stages=2),),
}
"""sm_100: a lazy step leaves values of larger tiles in local memory there under Triton 3.9."""
POINTERS = {
    64: (Config(block_m=128, block_n=64, num_warps=4, num_stages=3, descriptors=""),),
    128: (Config(block_m=64, block_n=64, num_warps=8, num_stages=2, descriptors=""),),
    256: (Config(block_m=64, block_n=64, num_warps=8, num_stages=2, descriptors=""),),
}
POINTER_VARIANTS = POINTERS | {
    64: (replace(POINTERS[64][0], num_warps=8),),
    256: (replace(POINTERS[256][0], block_n=32),),
}
"""With a window, sinks or a softcap, which take registers of their own."""
EXACT = {
    64: (Config(block_m=32, block_n=16, num_stages=2, descriptors=""),),
    128: (Config(block_m=32, block_n=16, num_stages=2, descriptors=""),),
    256: (Config(block_m=32, block_n=16, num_stages=3, descriptors=""),),
}
"""float32: products on the CUDA cores, from registers."""

TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""
RANKS = {"": 0, "host": 4, "device": 2}
"""What `kernels.softmax.load_rows` is told: a program can make itself a descriptor of its own head, a host cannot."""


def path_for(tensors: Sequence[tuple[str, torch.Tensor]], arch: int) -> str:
    """Why the inputs take pointers; '' when they take descriptors."""
    if arch < 90:
        return f"sm_{arch} has no tensor memory accelerator"
    if tensors[0][1].dtype == torch.float32:
        return "exact float32 runs on the CUDA cores, from registers"
    return next((why for name, tensor in tensors if (why := tma_refusal(tensor, name))), "")


def bucket_of(dtype: torch.dtype, width: int, refused: str, variant: str = "") -> Bucket:
    """What the choice of a configuration depends on: dtype, padded head width, path, and as
    `kernels.attention_variants` names it the variant, if any."""
    return (dtype_name(dtype), width, "pointers" if refused else "descriptors", *filter(None, (variant,)))


def configs_for(
    dtype: torch.dtype, width: int, refused: str, arch: int | None = None, variant: str = ""
) -> tuple[Config, ...]:
    """The configurations for a padded head width, the default first."""
    pointers = POINTER_VARIANTS if variant else POINTERS
    usual = EXACT[width] if dtype == torch.float32 else pointers[width] if refused else _tma(arch)[width]
    return tuned_first(TUNED, bucket_of(dtype, width, refused, variant), usual, arch)


def _tma(arch: int | None) -> Mapping[int, tuple[Config, ...]]:
    return BLACKWELL if (target_arch() if arch is None else arch) >= 100 else HOPPER


@triton.jit(launch_metadata=attention_prefill_launch)
def _attention_prefill_kernel(
    q, k, v, out, lse, batches, q_len, kv_len, q_heads, group, scale_log2,
    stride_qb, stride_qs, stride_qh, stride_qd, stride_kb, stride_ks, stride_kh, stride_kd,
    stride_vb, stride_vs, stride_vh, stride_vd, stride_ob, stride_os, stride_oh, stride_od, sinks, window,
    D: tl.constexpr, DV: tl.constexpr, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, LSE: tl.constexpr,
    RANK: tl.constexpr, WARP_SPECIALIZE: tl.constexpr, LAZY: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    head = program % q_heads
    batch = (program // q_heads) % batches
    start_m = (tl.cdiv(q_len, BLOCK_M) - 1 - program // (q_heads * batches)) * BLOCK_M
    kv_head = head // group
    if RANK == 2:
        q += batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
        k += batch.to(tl.int64) * stride_kb + kv_head.to(tl.int64) * stride_kh
        v += batch.to(tl.int64) * stride_vb + kv_head.to(tl.int64) * stride_vh
        out += batch.to(tl.int64) * stride_ob + head.to(tl.int64) * stride_oh
        q = tl.make_tensor_descriptor(q, [q_len, D], [stride_qs, 1], [BLOCK_M, WIDTH])
        k = tl.make_tensor_descriptor(k, [kv_len, D], [stride_ks, 1], [BLOCK_N, WIDTH])
        v = tl.make_tensor_descriptor(v, [kv_len, DV], [stride_vs, 1], [BLOCK_N, WIDTH_V])
        out = tl.make_tensor_descriptor(out, [q_len, DV], [stride_os, 1], [BLOCK_M, WIDTH_V])
    rows = start_m + tl.arange(0, BLOCK_M)
    q_positions = rows + (kv_len - q_len)
    q_tile = load_rows(
        q, batch, start_m, head, stride_qb, stride_qs, stride_qh, stride_qd, q_len, D, BLOCK_M, WIDTH, RANK)
    m = tl.full([BLOCK_M], FLOOR, tl.float32)
    total = no_sums(BLOCK_M, LAZY)
    if SINKS:
        m, total = seen_sink(tl.zeros([BLOCK_M], tl.float32) + tl.load(sinks + head), LAZY)
    acc = tl.zeros([BLOCK_M, WIDTH_V], tl.float32)
    lo = 0
    hi = kv_len
    seen_by_all = kv_len
    if CAUSAL:
        hi = max(0, min(kv_len, start_m + BLOCK_M + kv_len - q_len))
        seen_by_all = max(0, min(kv_len, start_m + 1 + kv_len - q_len))
    if WINDOW:
        lo = max(0, start_m + 1 + kv_len - q_len - window)
    if WARP_SPECIALIZE:
        full = lo
    else:
        if WINDOW:
            # The last query's first key; those before it only some see.
            edge = max(0, start_m + BLOCK_M + kv_len - q_len - window)
            first = min(hi, lo + tl.cdiv(edge - lo, BLOCK_N) * BLOCK_N)
            acc, m, total = walk_keys(
                acc, m, total, q_tile, k, v, batch, kv_head, lo, first, q_positions, kv_len, scale_log2,
                stride_kb, stride_ks, stride_kh, stride_kd, stride_vb, stride_vs, stride_vh, stride_vd,
                D, DV, BLOCK_N, WIDTH, WIDTH_V, CAUSAL, True, RANK, False, LAZY, SOFTCAP, WINDOW, window)
            lo = first
        full = lo + max(0, seen_by_all - lo) // BLOCK_N * BLOCK_N if WINDOW else seen_by_all // BLOCK_N * BLOCK_N
        acc, m, total = walk_keys(
            acc, m, total, q_tile, k, v, batch, kv_head, lo, full, q_positions, kv_len, scale_log2,
            stride_kb, stride_ks, stride_kh, stride_kd, stride_vb, stride_vs, stride_vh, stride_vd,
            D, DV, BLOCK_N, WIDTH, WIDTH_V, CAUSAL, False, RANK, False, LAZY, SOFTCAP)
    acc, m, total = walk_keys(
        acc, m, total, q_tile, k, v, batch, kv_head, full, hi, q_positions, kv_len, scale_log2,
        stride_kb, stride_ks, stride_kh, stride_kd, stride_vb, stride_vs, stride_vh, stride_vd,
        D, DV, BLOCK_N, WIDTH, WIDTH_V, CAUSAL, True, RANK, WARP_SPECIALIZE, LAZY, SOFTCAP, WINDOW, window)
    result, row_lse = finished(acc, m, total)
    if LSE:
        tl.store(lse + (batch.to(tl.int64) * q_heads + head) * q_len + rows, row_lse, mask=rows < q_len)
    if RANK == 4:
        out.store([batch, start_m, head, 0], result.to(out.dtype).reshape([1, BLOCK_M, 1, WIDTH_V]))
    elif RANK == 2:
        out.store([start_m, 0], result.to(out.dtype))
    else:
        d = tl.arange(0, WIDTH_V)
        spots = (out + batch.to(tl.int64) * stride_ob + head.to(tl.int64) * stride_oh
                 + rows.to(tl.int64)[:, None] * stride_os + d[None, :] * stride_od)
        tl.store(spots, result.to(out.dtype.element_ty), mask=(rows < q_len)[:, None] & (d < DV)[None, :])


def attention_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    window: int = 0,
    softcap: int = 0,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
    config: Config | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of many queries by the Triton kernel.

    Args:
        q: [B, Sq, Hq, D], any strides.
        k: [B, Skv, Hkv, D], Hq a multiple of Hkv.
        v: [B, Skv, Hkv, Dv].
        causal: bottom-right aligned: query i sees keys 0 .. i + Skv - Sq.
        window, softcap: as of `kernels.attention_variants`; 0 for none.
        sinks: [Hq] float32; a query that sees no key then gives 0 and its head's sink.
        return_lse: also return the natural log-sum-exp.
        config: launch parameters; the first of `configs_for` when None.

    Returns:
        out [B, Sq, Hq, Dv] of q's dtype, or (out, lse [B, Hq, Sq] float32).

    Raises:
        ValueError: shapes that do not fit together, a head over 256, or a window that is not causal.
    """
    check_shapes(q, k, v)
    variant = Variant(window, softcap, sinks)
    variant.check(q, causal=causal)
    (B, Sq, Hq, D), Skv, Dv = q.shape, k.shape[1], v.shape[3]
    out = torch.empty((B, Sq, Hq, Dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, Sq) if return_lse else (0,), dtype=torch.float32, device=q.device)
    refused = path_for((("q", q), ("k", k), ("v", v), ("out", out)), target_arch())
    refused = refused or ("no keys" if Skv == 0 else "")
    width = padded_width(max(D, Dv))
    config = config or configs_for(q.dtype, width, refused, variant=variant.name)[0]
    if refused and config.descriptors:
        raise ValueError(f"{config} needs descriptors, refused by {refused}")
    programs = triton.cdiv(Sq, config.block_m) * Hq * B
    if programs:
        _launch(q, k, v, out, lse, causal, return_lse, config, programs, variant)
    return (out, lse) if return_lse else out


def _launch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    causal: bool, return_lse: bool, config: Config, programs: int, variant: Variant,
) -> None:  # fmt: skip
    (B, Sq, Hq, D), (Skv, Hkv), Dv = q.shape, k.shape[1:3], v.shape[3]
    width, width_v = padded_width(D), padded_width(Dv)
    operands: list[object] = [q, k, v, out]
    if config.descriptors == "host":
        blocks = (
            (config.block_m, width),
            (config.block_n, width),
            (config.block_n, width_v),
            (config.block_m, width_v),
        )
        tensors = (q, k, v, out)
        operands = [descriptor(t, (1, rows, 1, wide)) for t, (rows, wide) in zip(tensors, blocks, strict=True)]
    elif config.descriptors:
        use_allocator(q.device)
    strides = [stride for tensor in (q, k, v, out) for stride in tensor.stride()]
    _attention_prefill_kernel[(programs,)](
        *operands, lse, B, Sq, Skv, Hq, Hq // Hkv, LOG2_E.value / math.sqrt(D), *strides,
        D=D, DV=Dv, WIDTH=width, WIDTH_V=width_v, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        CAUSAL=causal, LSE=return_lse, RANK=RANKS[config.descriptors],
        WARP_SPECIALIZE=config.warp_specialize, LAZY=config.lazy,
        num_warps=config.num_warps, num_stages=config.num_stages, **variant.options, **OPTIONS,
    )  # fmt: skip
