"""Chooses launch configurations on a device: for each bucket of an op's problems, the fastest that is right.

A bucket is what the op's own rule tells apart (`Op.bucket`); one problem of the suite, that of middle size, stands for
it. Its default configuration and at most three others that compile without spills are measured as any case is, so each
is checked before it has a time. A winner's whole interval lies under the default's, and its median by one percent at
least, and still so when the default is measured once more after it: else the default stays. What compiles is said by
`bench.trial`, and what runs by a runner that the caller brings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest
from typing import Any

from bench.case import Case
from bench.record import Record, Status
from bench.run import Session, record_of
from bench.stopping import median_interval
from bench.trial import NOT_BEGUN, Trial
from bench.worker import Runner
from kernels.spec import Op

MOST_CONFIGS = 4
"""Of a bucket, its default included."""
LEAST_GAIN = 0.01
"""A smaller one is not worth a line in a table, however sure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Problems of one op that share a launch configuration.

    Attributes:
        key: `Op.bucket` of each of them.
        case: the one that stands for them.
        configs: the default first, then the others in the op's order.
    """

    op: Op
    key: tuple[Any, ...]
    case: Case
    configs: tuple[Any, ...]

    @property
    def cases(self) -> list[Case]:
        """One a configuration."""
        return [replace(self.case, config=config) for config in self.configs]

    @property
    def name(self) -> str:
        """For a person."""
        return f"{self.op.name} {self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What became of a bucket.

    Attributes:
        config: the winner; None when the default stays.
        why: in a few words.
        default_us, best_us: medians; None without a time.
    """

    bucket: Bucket
    config: Any
    why: str
    default_us: float | None
    best_us: float | None


def buckets(cases: Iterable[Case], arch: int) -> list[Bucket]:
    """The buckets of these cases that have a choice, the ops taking turns so that each is met early."""
    groups: dict[str, dict[tuple[Any, ...], list[Case]]] = {}
    for case in cases:
        groups.setdefault(case.op.name, {}).setdefault(case.op.bucket(case.workload, arch), []).append(case)
    by_op: list[list[Bucket]] = []
    for by_key in groups.values():
        made = []
        for key, alike in by_key.items():
            case = sorted(alike, key=_size)[len(alike) // 2]
            configs = case.op.configs(case.workload, arch)
            if len(configs) > 1:
                made.append(Bucket(op=case.op, key=key, case=case, configs=configs))
        by_op.append(made)
    return [bucket for bucket in chain.from_iterable(zip_longest(*by_op)) if bucket is not None]


def _size(case: Case) -> tuple[int, int]:
    work = case.op.work(case.workload)
    return work.bytes, work.flops


def tune_bucket(
    bucket: Bucket, trials: Sequence[Trial], session: Session, runner: Runner, keep: Callable[[Record], None]
) -> Choice:
    """Measures a bucket's configurations and chooses.

    Args:
        bucket: what to tune.
        trials: how each of its configurations compiled.
        session: names the run in the records.
        runner: runs one case; never raises for what it does.
        keep: gets every record as it is made, those of what was not tried too.
    """
    measured: list[tuple[Case, Record]] = []

    def measure(case: Case) -> Record:
        record = replace(runner(case), config=asdict(case.config))
        keep(record)
        return record

    for number, (case, trial) in enumerate(zip(bucket.cases, trials, strict=True)):
        runs_today = number == 0 and trial.status is Status.SKIPPED  # it spills, and is what others must beat
        if trial.status is Status.OK or runs_today:
            if len(measured) < MOST_CONFIGS:
                measured.append((case, measure(case)))
        else:
            keep(record_of(case, session, trial.status, trial.detail, config=asdict(case.config)))
    return _chosen(bucket, measured, measure)


def _chosen(bucket: Bucket, measured: Sequence[tuple[Case, Record]], measure: Callable[[Case], Record]) -> Choice:
    """The fastest right configuration where it beats the default twice, else the default."""
    default = next((record for case, record in measured if case.config == bucket.configs[0]), None)
    right = sorted(
        ((case, record) for case, record in measured if record.status is Status.OK), key=lambda pair: _us(pair[1])
    )
    default_us = _us(default) if default and default.status is Status.OK else None
    best_us = _us(right[0][1]) if right else None

    def choice(config: Any, why: str) -> Choice:
        return Choice(bucket=bucket, config=config, why=why, default_us=default_us, best_us=best_us)

    if not right:
        return choice(None, "no configuration ran")
    case, best = right[0]
    if default is None or default.status is not Status.OK:
        return choice(case.config, f"the default ended as {default.status if default else 'not compiled'}")
    if not beats(best, default):
        return choice(None, "the default is as fast, within noise or 1 %")
    again = measure(bucket.cases[0])
    if again.status is Status.OK and not beats(best, again):
        return choice(None, "not faster than the default when that was measured again")
    return choice(case.config, "faster than the default, measured before and after")


def beats(candidate: Record, default: Record) -> bool:
    """Whether the interval of the median lies under the other's, and the gain is worth it."""
    (median, _, high), (than, low, _) = map(median_interval, (candidate.times_us, default.times_us))
    return high < low and median <= (1 - LEAST_GAIN) * than


def _us(record: Record) -> float:
    return median_interval(record.times_us)[0]


def literals(choices: Iterable[Choice], device: str, triton: str) -> Iterator[tuple[str, str]]:
    """(the kernel's file, the Python to merge into its `TUNED`) of each file that has winners."""
    by_file: dict[str, list[Choice]] = {}
    for choice in choices:
        if choice.config is not None:
            by_file.setdefault(table_file(choice.config), []).append(choice)
    for file, winners in by_file.items():
        lines = [f"        {choice.bucket.key!r}: {choice.config!r},  # {choice.why}" for choice in winners]
        yield file, "\n".join(["TUNED = {", f"    {(device, triton)!r}: {{", *lines, "    },", "}"])


def table_file(config: Any) -> str:
    """The file whose `TUNED` a configuration belongs into: that of its class, or of the kernel beside `x_configs`."""
    name = type(config).__module__
    kernel = f"{name.removesuffix('_configs')}_triton"
    return str(sys.modules[kernel if kernel in sys.modules else name].__file__)


def unready(trials: Sequence[Trial]) -> bool:
    """Whether time ended before all of a bucket's configurations were compiled."""
    return NOT_BEGUN in trials
