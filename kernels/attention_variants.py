"""What models add to attention's scores, as axes of the attention ops: sliding windows, sinks, and a cap on logits.

* window W: a query sees its own key and the W - 1 before it (Mistral, Gemma, gpt-oss). Keys outside are no work.
* sinks: a learned logit for each query head joins the softmax's sum and has no value (gpt-oss):
  out = sum exp(s - m) v / (sum exp(s - m) + exp(sink - m)). The log-sum-exp includes it, natural as ever; a query that
  sees no key gives 0 and the sink itself. Of the parts of a row one has the sink, so that they merge as others do.
* softcap C: scores are C tanh(scale q k / C) before the mask (Gemma 2).

Sources: transformers' modeling_gemma2.py and modeling_gpt_oss.py. Leaves the arithmetic to `kernels.attention` (torch)
and `kernels.softmax` (Triton).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernels.inputs import Sampler

VARIANT_AXES: dict[str, int] = {"window": 0, "sinks": 0, "softcap": 0}
"""Axes with their defaults, which a workload leaves out."""
NO_WINDOW = "SDPA has no sliding window without a mask of q_len x kv_len values"
NO_MASK = "SDPA's FlashAttention backend takes no mask, which a window needs over several tokens or unlike lengths"
NO_SINKS = "SDPA has no attention sinks"
NO_SOFTCAP = "SDPA has no cap on logits"


def only_present(axes: Mapping[str, int]) -> dict[str, int]:
    """The axes without variants that are off.

    Raises:
        ValueError: a window without a causal mask, or sinks that are neither off nor on.
    """
    if axes.get("window") and not axes.get("causal", 1):
        raise ValueError(f"a window of {axes['window']} needs causal=1")
    if axes.get("sinks", 0) not in (0, 1):
        raise ValueError(f"sinks={axes['sinks']}: wanted 0 or 1, whether each query head has one")
    return {axis: size for axis, size in axes.items() if size or axis not in VARIANT_AXES}


def variant_of(axes: Mapping[str, int]) -> str:
    """The variants that a workload has, as a tuned table names them: "softcap, window"; '' for none."""
    return ", ".join(axis for axis in VARIANT_AXES if axes.get(axis))


def variant_inputs(axes: Mapping[str, int], draw: Sampler) -> dict[str, Any]:
    """Of the variants that a workload has: `window` and `softcap` as numbers, `sinks` [Hq] float32."""
    made: dict[str, Any] = {axis: axes[axis] for axis in ("window", "softcap") if axes.get(axis)}
    return made | ({"sinks": draw.normal((axes["q_heads"],), torch.float32)} if axes.get("sinks") else {})


def refused_by_sdpa(axes: Mapping[str, int]) -> str | None:
    """Which variant, other than a window, torch's SDPA cannot express; None when there is none."""
    return NO_SINKS if axes.get("sinks") else NO_SOFTCAP if axes.get("softcap") else None


def refused_by_flash_attn(axes: Mapping[str, int]) -> str | None:
    """Which variant flash-attn 2 cannot express."""
    return "flash-attn 2 has no attention sinks" if axes.get("sinks") else None


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """What a launch of a Triton kernel is told: window and softcap, 0 for none, and sinks [Hq] float32 or None."""

    window: int = 0
    softcap: int = 0
    sinks: torch.Tensor | None = None

    @property
    def name(self) -> str:
        """As `variant_of` gives it."""
        return variant_of({"window": self.window, "softcap": self.softcap, "sinks": int(self.sinks is not None)})

    @property
    def options(self) -> dict[str, Any]:
        """The kernel's arguments: which variants there are and the cap are compiled in."""
        values = {"sinks": self.sinks, "window": self.window or None}
        return {**values, "SINKS": self.sinks is not None, "WINDOW": self.window > 0, "SOFTCAP": self.softcap}

    def check(self, q: torch.Tensor, *, causal: bool = True) -> None:
        """Raises ValueError for queries [B, Sq, Hq, D] that it does not fit."""
        if min(self.window, self.softcap) < 0 or (self.window and not causal):
            raise ValueError(f"wanted window and softcap >= 0, a window with causal, got {self.window}, {self.softcap}")
        own = self.sinks
        if own is not None and (own.shape != q.shape[2:3] or own.dtype != torch.float32 or not own.is_contiguous()):
            raise ValueError(f"wanted sinks [{q.shape[2]}] float32, contiguous, got {list(own.shape)} {own.dtype}")


PLAIN = Variant()
