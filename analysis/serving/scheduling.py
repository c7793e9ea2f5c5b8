"""How requests share engines and memory, where it is not the engine's own way.

What each field does to a load is in `analysis.serving.load` and `analysis.serving.memory`.
"""

from __future__ import annotations

from dataclasses import dataclass

BATCHING = ("continuous", "static")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Every default is the engine's own way.

    Attributes:
        replicas: deployments that share the clients evenly; each is predicted alone.
        batching: continuous, or static: a batch starts when the one before has ended, and ends with its longest answer.
        longest: that answer over the mean one.
        chunk: most tokens of prompts in a step; 0 for whole prompts, as many as come.
        page: tokens of a KV block; 0 for the engine's own.
        reserved: tokens of contiguous KV that each request reserves; 0 for pages.

    Raises:
        ValueError: no replica, an unknown batching, a longest answer below the mean or without a static batch, or a
            negative size.
    """

    replicas: int = 1
    batching: str = "continuous"
    longest: float = 1.0
    chunk: int = 0
    page: int = 0
    reserved: int = 0

    def __post_init__(self) -> None:
        if self.batching not in BATCHING:
            raise ValueError(f"unknown batching {self.batching!r}; known: {', '.join(BATCHING)}")
        if self.replicas < 1 or self.longest < 1 or min(self.chunk, self.page, self.reserved) < 0:
            raise ValueError(
                f"wanted 1 replica or more, a longest answer of 1 mean or more and sizes of 0 or more, got "
                f"{self.replicas}, {self.longest}, {self.chunk}, {self.page} and {self.reserved}"
            )

        if self.longest > 1 and not self.static:
            raise ValueError("only a static batch waits for its longest answer: 1 with continuous batching")

    @property
    def static(self) -> bool:
        """Whether batches start and end together."""
        return self.batching == "static"
