"""Schedules of ragged batches as tables on the device, made once for a table of lengths and kept as long as it lives.

A step of a serving engine runs every layer with the same lengths: planning and its copy to the device happen once, at
the first call, and are no part of the calls after it, which are those that are timed.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from kernels.ragged_plan import ITEM, Lengths, keys_of, pairs_of, schedule


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """A schedule of `kernels.ragged_plan` on the device.

    Attributes:
        items, merged: [n, 5] int32, rows of `ITEM`.
        parts: pieces of all tiles that are merged.
        block_m: rows of a tile.
    """

    items: torch.Tensor
    merged: torch.Tensor
    parts: int
    block_m: int


_TABLES: MutableMapping[torch.Tensor, dict[Any, Tables]] = WeakIdKeyDictionary()
"""Starts of the sequences -> what was asked -> tables."""
_COUNTS: MutableMapping[torch.Tensor, tuple[int, int]] = WeakIdKeyDictionary()
"""Items -> unmasked query-key pairs, and keys that some query sees, of one head over all sequences."""


def tables_for(starts_q: torch.Tensor, lengths: Lengths, *, block_m: int, causal: bool, **how: int) -> Tables:
    """The schedule's tables on the device of `starts_q`; arguments as of `kernels.ragged_plan.schedule`."""
    made = _TABLES.setdefault(starts_q, {})
    asked = (lengths, block_m, causal, *sorted(how.items()))
    if asked not in made:
        plan = schedule(lengths, block_m=block_m, causal=causal, **how)
        items, merged = (
            torch.tensor(rows, dtype=torch.int32, device=starts_q.device).view(-1, len(ITEM))
            for rows in (plan.items, plan.merged)
        )
        made[asked] = Tables(items, merged, plan.parts, block_m)
        _COUNTS[items] = pairs_of(lengths, causal=causal), keys_of(lengths)
    return made[asked]


def counts_of(items: torch.Tensor) -> tuple[int, int]:
    """(unmasked query-key pairs, keys that some query sees) of one head over all sequences, for what a launch declares.

    Lengths lie on the device; the host had them when these items were made.
    """
    return _COUNTS[items]
