"""How a run times its cases: what is the same for all of them, and what each record repeats."""

from __future__ import annotations

from dataclasses import dataclass

CACHES = ("cold", "hot")
REGIMES = ("burst", "sustained")
TIMERS = ("auto", "graph", "event", "cupti")
INPUTS = ("normal", "zeros")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to time.

    Attributes:
        cache: cold (streamed inputs rotate, or a flush) or hot (one set of inputs, read again and again).
        regime: burst (warm until stable), or sustained (at least three seconds of load first).
        timer: auto (a CUDA graph, else events), or the one that is wanted; the record names the one really used.
        inputs: normal(0, 1), or zeros, which toggle fewer wires and so run faster where power is the limit.
    """

    cache: str = "cold"
    regime: str = "burst"
    timer: str = "auto"
    inputs: str = "normal"

    def __post_init__(self) -> None:
        for name, known in (("cache", CACHES), ("regime", REGIMES), ("timer", TIMERS), ("inputs", INPUTS)):
            if getattr(self, name) not in known:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}; known: {', '.join(known)}")
