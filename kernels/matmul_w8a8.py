"""W8A8 matmuls: activations and weights both e4m3 or both int8, float32 scales, bfloat16 out. Of ops matmul and
matmul_decode.

value = stored * scale; int8 products are added in int32, exactly. A workload's `scale` says what shares one: `tensor`
each operand whole; `token` each row of the activations and each output channel of the weights; `block128`, of e4m3
alone, each row x 128 along K of the activations and each 128 x 128 of the weights (DeepSeek-V3, arXiv 2412.19437, 3.3).
Weights lie K-major, as wgmma takes operands of 8 bits.
Leaves device code to `kernels.scaled_products`, the arithmetic of quantisation to `kernels.quantisation`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.inputs import Sampler, torch_dtype
from kernels.quantisation import check_arch, over_tiles, quantised_in_tiles
from kernels.spec import UnsupportedError, Workload
from kernels.work import Work, matmul_work

E4M3, INT8, OUT = "float8_e4m3fn", "int8", "bfloat16"
SCALED = {E4M3: ("tensor", "token", "block128"), INT8: ("tensor", "token")}
"""Compute dtype -> the granularities that it is multiplied with."""
BLOCK = 128
"""Edge of a block of weights that shares a scale, and length of one of activations."""
TILES = {"tensor": ((0, 0), (0, 0)), "token": ((1, 0), (1, 0)), "block128": ((1, BLOCK), (BLOCK, BLOCK))}
"""Granularity -> (rows, columns) that share a scale in activations [M, K] and weights [N, K]; 0 for all."""
MAGNITUDES = (1.0, 0.25, 2.0)
"""Of neighbouring scales in turn, so that none may pass for another."""
CUBLAS_PIECE, CUBLAS_ROWS, CUBLAS_DEPTH = 16, 4, 4 * BLOCK
"""What sizes of operands, and with scales of blocks M and K, must be whole multiples of."""
INT_PIECE, INT_ROWS = 8, 16
"""Of torch._int_mm on CUDA: N and K in whole pieces, and more rows than that."""


def described(workload: Workload) -> Workload:
    """With scales per token where the dtype needs some: what vLLM and SGLang choose for weights that have none."""
    return with_scales(workload, "token", workload.dtype) if workload.dtype in SCALED else workload


def with_scales(workload: Workload, scale: str, dtype: str = E4M3) -> Workload:
    """The workload in a dtype of 8 bits with scales of this granularity."""
    return replace(workload, dtype=dtype, scale=scale, technique="int8" if dtype == INT8 else "fp8")


def scaling_for(workload: Workload) -> int:
    """How the Triton kernels scale it: 0, ROWS or BLOCKS of `kernels.scaled_products`."""
    from kernels.scaled_products import BLOCKS, ROWS

    return {"": 0, "block128": BLOCKS}.get(workload.scale, ROWS)


def refusal(workload: Workload, provider: str) -> str | None:
    """Why the dtype, scales and sizes of a matmul cannot be run by a provider; None where they can."""
    dtype, scale = workload.dtype, workload.scale
    if dtype not in SCALED:
        return f"{dtype} takes no scales, got {scale}" if scale else None
    if scale not in SCALED[dtype]:
        return f"{dtype} needs scales per {', '.join(SCALED[dtype])}, got {scale or 'none'}"
    return _refused_by_torch(workload) if provider.startswith("torch") else None


def _refused_by_torch(workload: Workload) -> str | None:
    M, N, K = (workload.axes[axis] for axis in "MNK")
    if workload.dtype == INT8:
        told = f"torch._int_mm wants N and K in whole {INT_PIECE} and M over {INT_ROWS}, got M={M}, N={N}, K={K}"
        return told if N % INT_PIECE or K % INT_PIECE or M <= INT_ROWS else None
    if N % CUBLAS_PIECE or K % CUBLAS_PIECE:
        return f"torch._scaled_mm wants N and K in whole {CUBLAS_PIECE}, got N={N}, K={K}"
    if workload.scale == "block128" and (M % CUBLAS_ROWS or K % CUBLAS_DEPTH):
        return f"with blocks cuBLAS wants M in whole {CUBLAS_ROWS}, K in whole {CUBLAS_DEPTH}, got M={M}, K={K}"
    return None


def scaled_operands(
    workload: Workload, device: torch.device | str, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x [M, K], x_scale, w [N, K], w_scale): normal values quantised, neighbouring scales unlike.

    Scales are [1, 1]; [M, 1] and [N, 1]; or [M, K / 128], M-major so that a step of K reads them side by side, and
    [N / 128, K / 128].
    """
    M, N, K = (workload.axes[axis] for axis in "MNK")
    if workload.scale not in TILES:
        raise ValueError(refusal(workload, "triton"))
    draw, dtype, (tile_x, tile_w) = Sampler(device, seed), torch_dtype(workload.dtype), TILES[workload.scale]
    x, x_scale = _stored(draw.normal((M, K), torch.bfloat16), dtype, *tile_x)
    w, w_scale = _stored(draw.normal((N, K), torch.bfloat16), dtype, *tile_w)
    return x, x_scale.t().contiguous().t(), w, w_scale


def _stored(values: torch.Tensor, dtype: torch.dtype, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    stored, scales = quantised_in_tiles(values, rows, columns, dtype)
    places = sum(torch.meshgrid(*(torch.arange(size, device=values.device) for size in scales.shape), indexing="ij"))
    sizes = torch.tensor(MAGNITUDES, device=values.device)
    return stored, scales * sizes[places % len(sizes)]


def scaled_reference(x: torch.Tensor, x_scale: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """[M, N] in float64 from the dequantised values."""
    return _values(x, x_scale, torch.float64) @ _values(w, w_scale, torch.float64).t()


def scaled_eager(x: torch.Tensor, x_scale: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """[M, N] bfloat16: dequantised, multiplied and added in float32, and rounded once; int8 sums are exact."""
    if x.dtype == torch.int8:
        return _with_scales(x.double() @ w.double().t(), x_scale, w_scale)
    out = _values(x, x_scale, torch.float32) @ _values(w, w_scale, torch.float32).t()
    return out.to(torch_dtype(OUT))


def _with_scales(sums: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    return (sums.float() * x_scale * w_scale.t()).to(torch_dtype(OUT))


def _values(stored: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return stored.to(dtype) * over_tiles(scales, stored.shape, BLOCK).to(dtype)


def scaled_mm_torch(x: torch.Tensor, x_scale: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
    """`torch._scaled_mm`, which knows the granularity by the scales' shapes: cuBLAS or CUTLASS on CUDA.

    Of int8 `torch._int_mm`, whose int32 sums are scaled by launches of their own: torch has no fused one.

    Accumulation is the accurate one (`use_fast_accum` off). Sums of blocks: cuBLAS 12.9 and newer, on sm_90.

    Raises:
        UnsupportedError: a GPU before sm_89, or scales of blocks on another device than sm_90.
    """
    if x.dtype == torch.int8:
        return _with_scales(torch._int_mm(x, w.t()), x_scale, w_scale)
    major, minor = torch.cuda.get_device_capability(x.device) if x.device.type == "cuda" else (0, 0)
    if major:
        check_arch(x.dtype, 10 * major + minor)
    if x_scale.shape[1] > 1 and (major, minor) != (9, 0):
        raise UnsupportedError("torch._scaled_mm takes scales of blocks on sm_90 only")
    return torch._scaled_mm(x, w.t(), x_scale, w_scale.t(), out_dtype=torch_dtype(OUT))


def scaled_matmul_work(workload: Workload) -> Work:
    """2 M N K FLOPs; operands, scales of 4 bytes and the output once."""
    M, N, K = (workload.axes[axis] for axis in "MNK")
    tiles = zip((M, N), TILES[workload.scale], strict=True)
    scales = sum(-(-R // (rows or R)) * -(-K // (columns or K)) for R, (rows, columns) in tiles)
    return matmul_work(M, N, K, dtype=workload.dtype, out_dtype=OUT, extra_bytes=4 * scales)


def sampled_channels(
    w: torch.Tensor, w_scale: torch.Tensor, channels: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """(indices, (weights, scales)) of some output channels: those asked for, or whole blocks that share scales."""
    if w_scale.shape[0] == 1:
        return channels, (w[channels], w_scale)
    if w_scale.shape[0] == w.shape[0]:
        return channels, (w[channels], w_scale[channels])
    last = w_scale.shape[0] - 1
    blocks = torch.tensor(sorted({0, last // 2, last}), device=w.device)
    places = (blocks[:, None] * BLOCK + torch.arange(BLOCK, device=w.device)).flatten()
    places = places[places < w.shape[0]]
    return places, (w[places], w_scale[blocks])
