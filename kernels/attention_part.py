"""A part of an attention problem that is too large to be checked whole: some sequences, tokens and KV heads of it.

Each op says which; tensors are token-major, as `kernels.attention` has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.matmul import spread
from kernels.spec import Outputs

SAMPLED_SEQUENCES, SAMPLED_KV_HEADS = 4, 2


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Indices [n] of sequences, of their query tokens, of KV heads, and of the query heads that read those."""

    sequences: torch.Tensor
    tokens: torch.Tensor
    kv_heads: torch.Tensor
    heads: torch.Tensor

    def queries(self, q: torch.Tensor) -> torch.Tensor:
        """The part of q, or of out, [B, Sq, Hq, D]."""
        return q[self.sequences][:, self.tokens][:, :, self.heads]

    def keys(self, cache: torch.Tensor) -> torch.Tensor:
        """The part of k or v [B, S, Hkv, D]: all keys."""
        return cache[self.sequences][:, :, self.kv_heads]

    def cut(self, outputs: Outputs) -> Outputs:
        """The part of out, or of (out, lse [B, Hq, Sq])."""
        if isinstance(outputs, tuple):
            return self.queries(outputs[0]), outputs[1][self.sequences][:, self.heads][:, :, self.tokens]
        return self.queries(outputs)


def part_of(q: torch.Tensor, kv_heads: int, *, tokens: int = 0, last_sequence: bool = False) -> Part:
    """Indices evenly over q [B, Sq, Hq, D] and its KV heads, the first and the last included.

    Args:
        q: the queries.
        kv_heads: of the whole problem.
        tokens: at most so many query tokens; 0 takes all.
        last_sequence: the last one alone instead of some.
    """
    (B, Sq, Hq, _), on = q.shape, q.device
    few = spread(kv_heads, SAMPLED_KV_HEADS, on)
    group = Hq // kv_heads
    return Part(
        sequences=torch.tensor([B - 1], device=on) if last_sequence else spread(B, SAMPLED_SEQUENCES, on),
        tokens=spread(Sq, tokens or Sq, on),
        kv_heads=few,
        heads=(few[:, None] * group + torch.arange(group, device=on)).flatten(),
    )
