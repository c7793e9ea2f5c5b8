"""Times one case that was found right: rotated inputs, the clock that its method asks for, warm-up, samples.

Leaves what a clock does to `bench.clock` and its neighbours, when to stop to `bench.stopping`, and the record's other
fields to `bench.run`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from bench import l2
from bench.case import Case
from bench.clock import Clock, CpuClock, Launch
from bench.cuda_clock import CudaEventClock, CudaGraphClock
from bench.cupti import CuptiClock, CuptiError
from bench.stopping import StopRule
from bench.telemetry import flags_of, told
from bench.warming import keep_warm, warm
from kernels.spec import Inputs

if TYPE_CHECKING:
    from bench.run import Session

SUSTAINED_S = 3.0
"""Clocks of a GPU swing for about three seconds after a load begins (CUTLASS's measurement methodology)."""


def time_case(
    case: Case,
    session: Session,
    provider: Callable[..., object],
    rotation: l2.Rotation,
    inputs: Inputs,
    phases: dict[str, float],
) -> dict[str, Any]:
    """Warms and samples the case: what its record says of times. Copies of inputs are freed when it returns.

    Args:
        inputs: the first set; zeroed in place where the method asks for zeros.
        phases: gets the seconds of each step.
    """
    method, device = session.method_of(case), session.device
    with phase(phases, "rotate"):
        if method.inputs == "zeros":
            zero(inputs)
        launches = [partial(provider, **one) for one in l2.rotate(inputs, case.op.roles, rotation)]
        flush = l2.flusher(rotation, device)
        clock, refused = make_clock(device, launches, flush, method.timer)
    try:
        timed = _sampled(clock, case, session, phases)
    except CuptiError as error:
        clock, refused = make_clock(device, launches, flush)
        refused = {"cupti_refused": str(error)} | refused
        timed = _sampled(clock, case, session, phases)
    timed["kernel"] = rotation_facts(rotation) | refused | timed["kernel"]
    return timed | {"cache": rotation.cache}


def _sampled(clock: Clock, case: Case, session: Session, phases: dict[str, float]) -> dict[str, Any]:
    least_s = SUSTAINED_S if session.method_of(case).regime == "sustained" else 0.0
    telemetry = session.telemetry
    with marked(case.id if session.nvtx and session.device != "cpu" else ""):
        with phase(phases, "warm_up"):
            warmed = warm(clock, session.rule, least_s)
        before = telemetry.snapshot() if telemetry else None
        with phase(phases, "warm_up"):
            keep_warm(clock)
        with phase(phases, "measure"):
            times_us, stop_reason = take_samples(clock, session.rule)
    after = telemetry.snapshot() if telemetry else None
    doubts = clock.doubts(statistics.median(times_us))
    return {
        "times_us": tuple(times_us),
        "stop_reason": stop_reason,
        "timer": clock.timer,
        "launch": clock.launch,
        "launches_per_sample": clock.launches_per_sample,
        "warm_up_samples": warmed,
        "kernel": clock.facts() | {f"{flag}_because": why for flag, why in doubts.items()},
        "telemetry": told(telemetry, before, after),
        "flags": (*flags_of(before, after, phases["measure"]), *doubts),
    }


def zero(inputs: Inputs) -> None:
    """Fills every floating tensor with zeros; integers (packed weights, tables, lengths) stay."""
    for value in inputs.values():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value.zero_()


def take_samples(clock: Clock, rule: StopRule) -> tuple[list[float], str]:
    """Samples in the order taken, until the rule says why to stop."""
    times_us: list[float] = []
    start, judge_at = time.perf_counter(), 1
    while True:
        times_us.append(clock.sample())
        if len(times_us) < judge_at and time.perf_counter() - start < rule.budget_s:
            continue
        # Judging sorts the samples, so it is done each time they have grown by a tenth.
        judge_at = min(len(times_us) + max(1, len(times_us) // 10), rule.max_samples)
        reason = rule.reason_to_stop(times_us, time.perf_counter() - start)
        if reason:
            return times_us, reason


def make_clock(
    device: str, launches: Sequence[Launch], flush: Launch | None, timer: str = "auto"
) -> tuple[Clock, dict[str, str]]:
    """The clock that a timer's name means on a device, and by name what was refused on the way to it, with the reason.

    Raises:
        ValueError: another timer than auto on a CPU.
        RuntimeError: a graph was asked for by name, and refused.
    """
    if device == "cpu":
        if timer != "auto":
            raise ValueError(f"timer {timer}: a CPU has one clock; wanted auto, or a GPU (--device cuda)")
        return CpuClock(launches, flush), {}
    if timer == "event":
        return CudaEventClock(launches, flush), {}
    if timer == "cupti":
        try:
            return CuptiClock(launches, flush), {}
        except CuptiError as error:
            clock, refused = make_clock(device, launches, flush)
            return clock, {"cupti_refused": str(error)} | refused
    try:
        return CudaGraphClock(launches, flush), {}
    except RuntimeError as error:
        if timer == "graph":
            raise
        return CudaEventClock(launches, flush), {"graph_refused": first_line(error)}


def marked(name: str) -> AbstractContextManager[object]:
    """An NVTX range of this name; nothing for ''."""
    return torch.cuda.nvtx.range(name) if name else nullcontext()


@contextmanager
def phase(phases: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds inside to `phases`."""
    start = time.perf_counter()
    yield
    phases[name] = phases.get(name, 0.0) + time.perf_counter() - start


def rotation_facts(rotation: l2.Rotation) -> dict[str, Any]:
    """What the record says of how the cache was kept."""
    return {"copies": rotation.copies, "streamed_bytes": rotation.streamed_bytes, "cache_bytes": rotation.cache_bytes}


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"
