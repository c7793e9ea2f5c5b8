"""Speculative decoding: a draft proposes g tokens, one step of the model verifies them.

With independent acceptance a (Leviathan et al. 2023, arXiv 2211.17192) a step yields E = (1 - a^(g+1)) / (1 - a)
tokens and costs T(B (g+1)) + g c_d T(B), c_d the draft's share of a plain step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A draft.

    Attributes:
        tokens: proposed each step, g.
        acceptance: chance that a proposed token is right, a.
        draft_cost: time of proposing one, of a plain decode step, c_d.

    Raises:
        ValueError: no token, or a chance or a cost outside of what they can be.
    """

    tokens: int
    acceptance: float
    draft_cost: float = 0.0

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 0 <= self.acceptance <= 1 or self.draft_cost < 0:
            raise ValueError(
                f"wanted 1 token or more, acceptance from 0 to 1 and a cost of 0 or more, got {self.tokens}, "
                f"{self.acceptance} and {self.draft_cost}"
            )

    @property
    def accepted(self) -> float:
        """Tokens that a step yields, E; g + 1 where every one is right."""
        a, g = self.acceptance, self.tokens
        return float(g + 1) if a == 1 else (1 - a ** (g + 1)) / (1 - a)

    def break_even_batch(self, critical_batch: float) -> float:
        """The batch above which drafts cost more than they bring, where a step of B tokens takes as long as one of
        `critical_batch` up to it and in proportion beyond: critical (E - g c_d) / (g + 1)."""
        return critical_batch * (self.accepted - self.tokens * self.draft_cost) / (self.tokens + 1)
