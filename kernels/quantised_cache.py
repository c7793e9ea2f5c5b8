"""KV caches stored in 8 bits, float8_e4m3fn or int8: K and V each with one float32 scale, or one a KV head.

value = stored * scale; scales are k_scale and v_scale, [1] or [Hkv]. A workload says the storage in `kv_dtype` and the
granularity in `scale`: tensor or head. Leaves the arithmetic to `kernels.quantisation`, device code to
`kernels.stored_values`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.inputs import torch_dtype
from kernels.quantisation import LARGEST, check_arch, dequantised, quantised, scales_of
from kernels.spec import Inputs, Workload

GRANULARITIES = ("tensor", "head")
MAGNITUDES = (1.0, 0.25, 2.0)
"""Of KV heads in turn, where each has a scale of its own: none may pass for another's."""
ROLES = {"k_scale": "resident", "v_scale": "resident"}


def quantised_kv(workload: Workload, kv_dtype: str, scale: str) -> Workload:
    """The workload with its cache quantised."""
    return replace(workload, technique="quantised_kv", kv_dtype=kv_dtype, scale=scale)


def scale_bytes(workload: Workload) -> int:
    """Of both scales, or none."""
    return 2 * 4 * (workload.axes["kv_heads"] if workload.scale == "head" else 1) if workload.kv_dtype else 0


def quantised_inputs(workload: Workload, names: tuple[str, str], inputs: Inputs) -> Inputs:
    """Inputs with the cache as the workload stores it: two tensors quantised and their scales; or as they are.

    Args:
        workload: whose `kv_dtype` and `scale` are wanted.
        names: of K and V among the inputs: [..., Hkv, D].
        inputs: in the compute dtype.
    """
    if not workload.kv_dtype:
        return inputs
    dtype, changed = torch_dtype(workload.kv_dtype), {}
    for name, short in zip(names, "kv", strict=True):
        changed[name], changed[f"{short}_scale"] = _stored(inputs[name], dtype, workload.scale == "head")
    return inputs | changed


def _stored(values: torch.Tensor, dtype: torch.dtype, per_head: bool) -> tuple[torch.Tensor, torch.Tensor]:
    head = values.ndim - 2
    dims = [dim for dim in range(values.ndim) if dim != head or not per_head]
    if not values.numel():
        return values.to(dtype), torch.ones(values.shape[head] if per_head else 1, device=values.device)
    scales = scales_of(values, dtype, dims)
    stored, scales = quantised(values, scales, dtype), scales.flatten()
    if per_head:  # powers of two, so that the stored values are those of heads of these magnitudes
        sizes = torch.tensor(MAGNITUDES, device=values.device)
        scales = scales * sizes[torch.arange(len(scales), device=values.device) % len(sizes)]
    return stored, scales


def as_values(stored: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """K or V [..., Hkv, D] in `dtype` from what is stored; of a cache without scales its own values."""
    return stored.to(dtype) if scale is None else dequantised(stored, scale.view(-1, 1), dtype)


def scale_of_heads(scale: torch.Tensor, kv_heads: torch.Tensor) -> torch.Tensor:
    """The scales of some KV heads."""
    return scale if len(scale) == 1 else scale[kv_heads]


def refusal(workload: Workload, provider: str) -> str | None:
    """Why a provider cannot take the cache as it is stored; None where it can, or the cache is not quantised."""
    stored, scale = workload.kv_dtype, workload.scale
    if not stored:
        return None
    known = [str(dtype).removeprefix("torch.") for dtype in LARGEST]
    if stored not in known or scale not in GRANULARITIES:
        told = f"KV caches of {' and '.join(known)} with scales per {' or '.join(GRANULARITIES)}"
        return f"wanted {told}, got {stored} with scales per {scale or 'nothing'}"
    if provider.startswith("torch"):
        return f"SDPA takes no {stored} keys and values: a dequantised copy would move more than the cache"
    return None if provider == "triton" else f"{provider} takes no {stored} KV cache with scales per {scale} here"


def check_stored(
    k: torch.Tensor, v: torch.Tensor, k_scale: torch.Tensor | None, v_scale: torch.Tensor | None, arch: int
) -> None:
    """Raises what is wrong with a quantised cache, K and V [..., Hkv, D], for a GPU of an arch.

    Raises:
        ValueError: dtypes that do not fit, or scales that are not float32 of shape [1] or [Hkv].
        UnsupportedError: float8_e4m3fn on a GPU that does not convert it.
    """
    if k.dtype != v.dtype or k.dtype not in LARGEST:
        raise ValueError(f"wanted k and v both of {' or '.join(map(str, LARGEST))}, got {k.dtype} and {v.dtype}")
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale is None or scale.dtype != torch.float32 or scale.shape not in ((1,), (k.shape[-2],)):
            got = None if scale is None else f"{list(scale.shape)} {scale.dtype}"
            raise ValueError(f"wanted {name} float32 [1] or [{k.shape[-2]}], one a KV head, got {got}")
    check_arch(k.dtype, arch)
