"""What `bench gpu` does with its budget: the steps, the cases of each, and the seconds that each is given.

Sentinels. The cases that are measured in more than one way are the first n Triton cases of suite `standard` in the
order of `bench.plan`: n = 20 hot, 4 sustained, 12 for the noise of two processes, 3 with zeros. The shorter lists are
beginnings of the longer ones and of the sweep itself, so every sentinel has its cold, burst, random-input time too.

Seconds. Steps made of cases are reckoned case by case as `bench.plan` does; `standard` gets what the others leave. When
that would be under a quarter of the budget, all others shrink alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bench.case import Case
from bench.method import Method
from bench.peaks import roof_cases
from bench.plan import guessed_s, telling_first
from bench.stopping import StopRule
from bench.suites import suite_cases
from kernels.registry import OPS

PROVIDERS = ("triton", "torch", "torch_flash", "torch_cudnn")
SENTINELS = {"hot": 20, "sustained": 4, "zeros": 3, "noise": 12}
METHODS = {
    "hot": Method(cache="hot"),
    "sustained": Method(regime="sustained"),
    "zeros": Method(inputs="zeros"),
}
USUAL_L2_BYTES = 50 * 2**20
"""Of an H100 and an H200, for a plan made where there is no GPU."""
CASE_SECONDS = 0.2
RULE = StopRule(min_s=CASE_SECONDS / 2, budget_s=CASE_SECONDS)
FILE_BYTES = 15_000_000
"""Most that the records of one file take."""
RECORD_BYTES, SAMPLE_BYTES = 5_000, 22
"""Of a record without its times, and of one time: 17 digits, point, comma, space, exponent."""
MOST_SAMPLES, FEWEST_SAMPLES = 2_000, 100

START_S = 8.0
"""Of a worker: importing torch and the kernels, first touch of the GPU."""
ENVIRONMENT_S, COMPILE_S, CHECK_S, ANALYSIS_S = 8.0, 40.0, 25.0, 12.0
TUNE_S = 90.0
END_S = 10.0
"""Kept back: for what a step overruns, and for ending."""
LEAST_SHARE = 0.25
"""Of the time, for `standard`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step.

    Attributes:
        name: of the step.
        what: it does, in a few words.
        expected_s: seconds it is expected to take, and is given.
        cases: that it measures; () where it measures none.
    """

    name: str
    what: str
    expected_s: float
    cases: tuple[Case, ...] = field(default=(), repr=False)


def standard_cases() -> list[Case]:
    """Suite `standard` by the Triton kernels and the providers they are held against."""
    return [case for case in suite_cases("standard", OPS) if case.provider in PROVIDERS]


def sentinels(cases: Sequence[Case], count: int) -> list[Case]:
    """The first `count` Triton cases that can run, in the order of a budgeted sweep."""
    can = [c for c in cases if c.provider == "triton" and not c.op.unsupported(c.workload, c.provider)]
    return telling_first(can)[:count]


def stop_rule(steps: Sequence[Step]) -> StopRule:
    """How long a case is sampled: short, and so few samples that the largest file stays under its limit in any case."""
    cases = sum(len(step.cases) for step in steps if step.name in ("peaks", "standard"))
    fitting = (FILE_BYTES // max(cases, 1) - RECORD_BYTES) // SAMPLE_BYTES
    most = min(MOST_SAMPLES, max(FEWEST_SAMPLES, fitting))
    return replace(RULE, max_samples=most)


def plan(budget_s: float, cache_bytes: int = USUAL_L2_BYTES) -> list[Step]:
    """The steps in order; their seconds and what is kept back are the budget."""
    standard, roofs = standard_cases(), roof_cases("cuda", cache_bytes)
    several = {name: sentinels(standard, count) for name, count in SENTINELS.items()}

    def of(cases: Sequence[Case], name: str = "") -> float:
        return sum(guessed_s(case, "cuda", RULE, METHODS.get(name, Method())) for case in cases)

    twice = 2 * (START_S + of(several["noise"]))
    steps = [
        Step(name="environment", what="what machine and software this is", expected_s=ENVIRONMENT_S),
        Step(name="compile", what="every kernel of the later steps, one process a core", expected_s=COMPILE_S),
        _step("peaks", "the device's own roofs", START_S + of(roofs), roofs),
        Step(name="correctness", what="every op at its small, ragged sizes", expected_s=CHECK_S),
        Step(name="tune", what="launch configurations, checked before they may win", expected_s=START_S + TUNE_S),
        _step("standard", f"the suite by {', '.join(PROVIDERS)}, most telling first", 0.0, standard),
        _step("hot", "sentinels with inputs in the cache", of(several["hot"], "hot"), several["hot"]),
        _step("sustained", "sentinels behind 3 s of load", of(several["sustained"], "sustained"), several["sustained"]),
        _step("zeros", "sentinels with zeros for inputs", of(several["zeros"], "zeros"), several["zeros"]),
        _step("noise", "sentinels in two fresh processes", twice, several["noise"]),
        Step(name="analysis", what="roofline and tables, where pandas and matplotlib are", expected_s=ANALYSIS_S),
    ]
    return _boxed(steps, budget_s)


def _step(name: str, what: str, expected_s: float, cases: Sequence[Case]) -> Step:
    return Step(name=name, what=f"{what}: {len(cases)} cases", expected_s=expected_s, cases=tuple(cases))


def _boxed(steps: Sequence[Step], budget_s: float) -> list[Step]:
    """The steps with `standard` given what the others leave, and the others shrunk where that is too little."""
    fixed_s = END_S + sum(step.expected_s for step in steps)
    scale = min(1.0, (1 - LEAST_SHARE) * budget_s / fixed_s)
    given = {step.name: step.expected_s * scale for step in steps}
    given["standard"] = budget_s - scale * fixed_s
    return [Step(name=step.name, what=step.what, expected_s=given[step.name], cases=step.cases) for step in steps]
