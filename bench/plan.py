"""What a time budget is spent on: cases in order of how much they tell, how long each takes, and what is left out.

The order. Cases of one (op, phase, dtype) are a group; groups take turns, so that each has its most telling cases
first and none waits for another to end. Inside a group the providers of one workload stay together, since a time is
read beside its reference's: they are run as one or left out as one. Workloads come in order of the ground they add:
first the one of the highest intensity (the largest of several), then always the one that lies farthest from all before
it, in the logarithms of intensity and bytes, each scaled to the group's range. So the extremes come first, then the
middles of the gaps. The roofs, under which all else is read, come before any group.

The time. A case's seconds are reckoned from its work and the stopping rule, and corrected by what cases of its op have
really taken. A workload is begun when all its providers fit into what is left of the budget; a shorter one after it may
still fit. Leaves running a case to its runner, and telling what was left out to the command.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.case import Case
from bench.method import Method
from bench.record import Record, Status
from bench.stopping import StopRule
from kernels.registry import ROOF_OPS

UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600}
WARM_S = {"burst": 0.25, "sustained": 3.5}
"""Of one case, the fit of a graph's head included."""
NEAR = 16
"""Cases of an op whose times correct the next estimate: the latest, since sizes change along the order."""

Group = tuple[str, str, str]
"""Op, phase, dtype."""


def seconds_of(budget: str) -> float:
    """Seconds of "480", "480s", "8m" or "1.5h". Raises ValueError for anything else, and for none."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", budget.strip())
    seconds = float(parts[1]) * UNITS_S[parts[2]] if parts else 0.0
    if not seconds:
        raise ValueError(f"--budget {budget!r}: wanted a time such as 480, 480s or 8m")
    return seconds


def group_of(case: Case) -> Group:
    """What a case is of."""
    return case.op.name, case.workload.phase, case.workload.dtype


def telling_first(cases: Sequence[Case]) -> list[Case]:
    """The cases in the order of this module's docstring."""
    roofs = [case for case in cases if _is_roof(case)]
    groups: dict[Group, dict[str, list[Case]]] = {}
    for case in cases:
        if not _is_roof(case):
            groups.setdefault(group_of(case), {}).setdefault(case.workload.key, []).append(case)
    queues = [_spread(list(by_workload.values())) for by_workload in groups.values()]
    turns = max((len(queue) for queue in queues), default=0)
    rounds = [queue[turn] for turn in range(turns) for queue in queues if turn < len(queue)]
    return [*roofs, *(case for together in rounds for case in together)]


def _is_roof(case: Case) -> bool:
    return any(case.op.name == op.name for op in ROOF_OPS)


def _spread(workloads: Sequence[list[Case]]) -> list[list[Case]]:
    """Highest intensity first, then farthest from all chosen; equal ones in the order given."""
    points = _scaled([_place(together[0]) for together in workloads])
    left = list(range(len(points)))
    chosen = max(left, key=lambda i: points[i]) if left else -1
    distances = dict.fromkeys(left, math.inf)
    order = []
    while left:
        order.append(workloads[chosen])
        left.remove(chosen)
        for i in left:
            distances[i] = min(distances[i], math.dist(points[i], points[chosen]))
        chosen = max(left, key=lambda i: distances[i]) if left else -1
    return order


def _place(case: Case) -> tuple[float, float]:
    """Logarithms of intensity and bytes."""
    flops, moved = _work(case)
    return math.log2(max(flops, 1) / max(moved, 1)), math.log2(max(moved, 1))


def _work(case: Case) -> tuple[int, int]:
    """FLOPs and bytes; none where the op cannot count them, which its record will say."""
    try:
        work = case.op.work(case.workload)
    except Exception:
        return 0, 0
    return work.flops, work.bytes + work.overhead_bytes


def _scaled(points: Sequence[tuple[float, float]]) -> list[tuple[float, ...]]:
    columns = []
    for column in zip(*points, strict=True):
        low, width = min(column), max(column) - min(column)
        columns.append([(value - low) / width if width else 0.0 for value in column])
    return list(zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a kind of device gets through what is not timed: inputs, copies, two checks in float64.

    Attributes:
        fixed_s: of any case.
        bytes_per_s, flops_per_s: of a case's work, all passes over it together.
    """

    fixed_s: float
    bytes_per_s: float
    flops_per_s: float


PACES = {"cuda": Pace(0.5, 3e10, 1e13), "cpu": Pace(0.1, 5e8, 2e10)}
"""First guesses, corrected as cases end; a GPU's is not measured yet."""


def guessed_s(case: Case, device_type: str, rule: StopRule, method: Method) -> float:
    """Seconds that a case takes in all before any of its op has run: inputs, check, warm-up, samples, recheck."""
    pace = PACES[device_type]
    flops, moved = _work(case)
    sampling = (min(rule.min_s, rule.budget_s) + rule.budget_s) / 2
    return pace.fixed_s + moved / pace.bytes_per_s + flops / pace.flops_per_s + WARM_S[method.regime] + sampling


class Budget:
    """The time of a sweep, and which of its cases still fit.

    Args:
        seconds: from now on.
        device_type: "cuda" or "cpu".
        rule, method: of the sweep's cases.
        now: a clock in seconds.
    """

    def __init__(
        self,
        seconds: float,
        device_type: str,
        rule: StopRule,
        method: Method | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now, self._end_s = now, now() + seconds
        self._device_type, self._rule, self._method = device_type, rule, method or Method()
        self._together: dict[tuple[str, str], list[Case]] = {}
        self._begun: dict[tuple[str, str], bool] = {}
        self._off: dict[str, list[float]] = defaultdict(list)

    @property
    def left_s(self) -> float:
        """Seconds until the budget ends; negative after."""
        return self._end_s - self._now()

    def order(self, cases: Sequence[Case]) -> list[Case]:
        """The cases of a sweep in the order in which they are to be offered to `allows`."""
        self._together.clear()
        self._begun.clear()
        for case in cases:
            self._together.setdefault(_workload_of(case), []).append(case)
        return telling_first(cases)

    def allows(self, case: Case) -> bool:
        """Whether a case is to be run now: decided for all providers of its workload when the first is offered."""
        key = _workload_of(case)
        if key not in self._begun:
            self._begun[key] = self.estimate_s(self._together.get(key, [case])) <= self.left_s
        return self._begun[key]

    def estimate_s(self, cases: Iterable[Case]) -> float:
        """Seconds that cases take together, by what has been learnt so far."""
        return sum(self._guess_s(case) * self._factor(case.op.name) for case in cases)

    def learn(self, case: Case, record: Record) -> None:
        """Takes in how long a case took: by its own phases, so that a worker's start is not taken for the case's."""
        if record.status is Status.OK and record.phases_s:
            self._off[case.op.name].append(sum(record.phases_s.values()) / self._guess_s(case))

    def _guess_s(self, case: Case) -> float:
        return guessed_s(case, self._device_type, self._rule, self._method)

    def _factor(self, op: str) -> float:
        """How far guesses were off: of this op, else of all, else not known to be."""
        known = self._off.get(op) or [ratio for ratios in self._off.values() for ratio in ratios]
        return statistics.median(known[-NEAR:]) if known else 1.0


def _workload_of(case: Case) -> tuple[str, str]:
    return case.op.name, case.workload.key


def left_out_lines(cases: Sequence[Case]) -> list[str]:
    """What to tell of cases that a budget left out: how many of each group."""
    if not cases:
        return []
    lines = [f"{len(cases)} cases were left out, since they did not fit into the budget:"]
    for (op, phase, dtype), count in Counter(map(group_of, cases)).items():
        lines.append(f"  {count} of {op}, {phase}, {dtype}")
    return lines
