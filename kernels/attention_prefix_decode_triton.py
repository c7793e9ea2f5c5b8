"""The Triton provider of op attention_prefix_decode: decode over a shared prefix and over each sequence's own keys.

Three launches, all of attention_decode's own kernels. Over the prefix, the sequences are the tokens of one: the rows of
a tile are sequences x query heads of a KV head, none masked, so that the prefix is read once a tile of rows (and by the
next tile from L2). Over the rest it is a plain decode. Each leaves its splits' parts, and the merge joins them all, the
prefix's first.

Bound: over the prefix arithmetic, from about 32 sequences of 8 heads a KV head on; over the rest DRAM.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import triton

from kernels import attention_decode_triton as decode
from kernels.attention import check_shapes, padded_width
from kernels.attention_decode_configs import Config as DecodeConfig
from kernels.attention_decode_configs import block_rows, splits_for
from kernels.attention_merge_triton import launch_merge, partials
from kernels.launch import sm_count, target_arch
from kernels.tuned import Bucket, Table, tuned_first


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(DecodeConfig):
    """Launch parameters of the walk over the prefix, as of attention_decode; without `pdl`, since the merge comes after
    another walk. What follows the prefix takes attention_decode's own."""


AMPERE, BLACKWELL = {"block_m": 32, "block_n": 64}, {"block_m": 32, "block_n": 32}
"""Of a tile at most on sm_80 and sm_100, where values of a larger one wait in local memory."""
TUNED: Table[Config] = {}
"""What `bench tune` found: (device, Triton's version) -> bucket, as `bucket_of` gives it -> configuration."""


def bucket_of(dtype: torch.dtype, width: int, rows: int) -> Bucket:
    """What the choice of a configuration depends on: as of attention_decode."""
    return decode.bucket_of(dtype, width, rows)


def configs_for(dtype: torch.dtype, width: int, rows: int, arch: int) -> tuple[Config, ...]:
    """The configurations for a padded head width and a number of packed rows, the default first."""
    fields = [asdict(c) for c in decode.configs_for(dtype, width, rows, arch) if not c.pdl]
    if arch != 90:
        limits = BLACKWELL if arch >= 100 else AMPERE
        fields = [of | {name: min(of[name], most) for name, most in limits.items()} for of in fields]
    return tuned_first(TUNED, bucket_of(dtype, width, rows), tuple(Config(**of) for of in fields), arch)


def attention_prefix_decode(
    q: torch.Tensor,
    prefix_k: torch.Tensor,
    prefix_v: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    ragged: bool = True,
    return_lse: bool = False,
    config: Config | None = None,
    own_config: DecodeConfig | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of one new token a sequence over a shared prefix and the sequence's own cache by the Triton kernels.

    Args:
        q: [B, 1, Hq, D], any strides.
        prefix_k: [P, Hkv, D], any strides.
        prefix_v: [P, Hkv, Dv].
        k: [B, S, Hkv, D] allocated after the prefix, Hq a multiple of Hkv, any strides.
        v: [B, S, Hkv, Dv].
        kv_lens: [B] int32, any stride, keys of each sequence after the prefix; without any key at all 0 and -inf.
        ragged: ignored: lengths are always honoured.
        return_lse: also return the natural log-sum-exp.
        config: launch parameters over the prefix; the first of `configs_for` when None.
        own_config: over the rest; the first of attention_decode's when None.

    Returns:
        out [B, 1, Hq, Dv] of q's dtype, or (out, lse [B, Hq, 1] float32).

    Raises:
        ValueError: shapes that do not fit together, several query tokens, or a head over 256.
    """
    _check(q, prefix_k, prefix_v, k, v, kv_lens)
    (B, _, Hq, D), (S, Hkv), Dv = q.shape, k.shape[1:3], v.shape[3]
    out = torch.empty((B, 1, Hq, Dv), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, 1) if return_lse else (1,), dtype=torch.float32, device=q.device)
    if B * Hq:
        kind, group, arch = (q.dtype, padded_width(max(D, Dv))), Hq // Hkv, target_arch()
        over_prefix = config or configs_for(*kind, B * group, arch)[0]
        over_own = own_config or decode.configs_for(*kind, group, arch)[0]
        first = _splits(B * group, Hkv, prefix_k.shape[0], over_prefix)
        rest = _splits(group, B * Hkv, S, over_own)
        shared, own = partials(out, first), partials(out, rest)
        whole = (q.transpose(0, 1), prefix_k[None], prefix_v[None], None, None, None)
        decode.launch_walk(*whole, *shared, over_prefix, first)
        # One part of a sequence is output and log-sum-exp as they are; as a split alone it would take more registers.
        decode.launch_walk(q, k, v, kv_lens, *own, *own, over_own, rest)
        launch_merge(*own, out, lse if return_lse else None, before=shared)
    return (out, lse) if return_lse else out


def _splits(rows: int, walks: int, keys: int, config: DecodeConfig) -> int:
    return splits_for(walks * triton.cdiv(rows, block_rows(config, rows)), keys, config, sm_count())


def _check(
    q: torch.Tensor, prefix_k: torch.Tensor, prefix_v: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    kv_lens: torch.Tensor,
) -> None:  # fmt: skip
    check_shapes(q, k, v)
    shapes = [list(tensor.shape) for tensor in (q, prefix_k, prefix_v, kv_lens)]
    fits = prefix_k.shape[1:] == k.shape[2:] and prefix_v.shape[1:] == v.shape[2:] and len(prefix_k) == len(prefix_v)
    if not fits or {prefix_k.ndim, prefix_v.ndim} != {3} or q.shape[1] != 1 or kv_lens.shape != q.shape[:1]:
        raise ValueError(
            f"wanted q [B, 1, Hq, D], prefix_k [P, Hkv, D], prefix_v [P, Hkv, Dv] and kv_lens [B] for k "
            f"{list(k.shape)} and v {list(v.shape)}, got {shapes}"
        )
    if not q.dtype == prefix_k.dtype == prefix_v.dtype:
        raise ValueError(f"wanted one dtype, got q {q.dtype}, prefix_k {prefix_k.dtype}, prefix_v {prefix_v.dtype}")
