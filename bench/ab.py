"""`bench ab` and `bench noise` as procedures: which process runs when, and what is run again.

Every run is `python -m bench run` of its own tree in a fresh process, its records in a directory of their own.
Baseline and candidate alternate (ABBA), so that a drift of the machine meets both. What the times say is asked of
`python -m analysis compare`, in a process too: what a verdict is stands there alone. Leaves options to
`bench.cmd_ab` and `bench.cmd_noise`, and the baseline's checkout to `bench.ab_tree`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.ab_tree import Side
from bench.child import Child
from bench.device import DeviceError
from bench.environment import ROOT
from bench.record import RecordError, read_records

SIDES = ("baseline", "candidate")
RERUN = "rerun"
FLAGGED = ("SLOW", "FAST")
LONGEST_PATTERN = 100_000
"""Linux takes no argument of 128 KiB."""
EXPECTED = (0, 3, 4)
"""Exit codes of a run whose records tell how each case ended."""

Measure = Callable[[Side, Path, Sequence[str]], None]
"""Runs a side once into a directory: all cases that are asked for, or those of these ids."""
Judge = Callable[[], Mapping[str, Any]]
"""The document of `analysis compare --json` on what was measured so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What `bench run` is asked for, of either tree.

    Attributes:
        arguments: but for those below.
        match: the pattern of case ids.
        op_files: of the user; one inside the checkout is each tree's own.
        checkout: that of the candidate.
        locks: directory of locks for the runs: the device's own is held by this process.
    """

    arguments: tuple[str, ...]
    match: str
    op_files: tuple[Path, ...]
    checkout: Path
    locks: Path


def stage_one(
    measure: Measure, judge: Judge, sides: Sequence[Side], directory: Path, pairs: int, *, time_identical: bool
) -> list[str]:
    """Pairs of runs of all cases; the ids of those that the times flag.

    A case whose first pair launched the same binaries, and no slower, is the same code and left out of the others.
    """
    _pair(measure, sides, directory, 1, ())
    cases = judge()["cases"]
    # A verdict from one process a side is SAME for the same code alone.
    same = [] if time_identical else [case["case_id"] for case in cases if case["verdict"] == "SAME"]
    left = [case["case_id"] for case in cases if case["case_id"] not in set(same)]
    if pairs == 1 or not left:
        return flagged_of(cases)
    for number in range(2, pairs + 1):
        _pair(measure, sides, directory, number, left if same else ())
    return flagged_of(judge()["cases"])


def stage_two(measure: Measure, sides: Sequence[Side], directory: Path, pairs: int, flagged: Sequence[str]) -> None:
    """Fresh pairs of the flagged cases, in `directory`/rerun."""
    for number in range(1, pairs + 1):
        _pair(measure, sides, directory / RERUN, number, flagged)


def flagged_of(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ids of the cases that are SLOW or FAST."""
    return [case["case_id"] for case in cases if case["verdict"] in FLAGGED]


def _pair(measure: Measure, sides: Sequence[Side], directory: Path, number: int, ids: Sequence[str]) -> None:
    for side in sides if number % 2 else reversed(sides):
        measure(side, directory / side.name / f"pair-{number:02d}", ids)


def process_of(asked: Asked, tell: Callable[[str], None]) -> Measure:
    """What measures by `python -m bench run` of a side's tree.

    The returned function raises ValueError for a tree that cannot run what is asked for, DeviceError where it found no
    device.
    """

    def measure(side: Side, output: Path, ids: Sequence[str]) -> None:
        again = "rerun, " if output.parent.parent.name == RERUN else ""
        tell(f"{again}{output.name}: {side.name}")
        variables = {"XDG_RUNTIME_DIR": str(asked.locks)}
        with Child(_arguments(asked, side.tree, output, ids), _ignore, checkout=side.tree, variables=variables) as run:
            problem = run.wait(math.inf)
        try:
            read_records(output / "records.jsonl")
        except RecordError as error:
            raised = DeviceError if run.code == 3 else ValueError
            raise raised(f"the {side.name} ({side.told}) did not run this: {problem or error}") from error
        if run.code not in EXPECTED:
            tell(f"warning: {side.name}, {output.name}: {problem}")

    return measure


def _ignore(line: str) -> None:
    """A run's own progress; its last words come with its exit code."""


def _arguments(asked: Asked, tree: Path, output: Path, ids: Sequence[str]) -> list[str]:
    pattern = pattern_of(ids) or asked.match
    told = ["bench", "run", *asked.arguments, "--no-peaks", "-o", str(output)]
    told += ["--match", pattern] if pattern else []
    for file in asked.op_files:
        inside = file.is_relative_to(asked.checkout)
        own = tree / file.relative_to(asked.checkout) if inside else file
        told += ["--op-file", str(own)]
    return told


def pattern_of(ids: Sequence[str]) -> str:
    """Finds these case ids and no other; '' where it would be too long for a command line, or there are none."""
    pattern = f"^(?:{'|'.join(map(re.escape, ids))})$"
    return pattern if ids and len(pattern) <= LONGEST_PATTERN else ""


def analysed(arguments: Sequence[str], tell: Callable[[str], None]) -> tuple[int, list[str]]:
    """Exit code and stdout of `python -m analysis` with these arguments.

    Raises:
        ValueError: it could not do it; what it said is in the message where `tell` has not told it.
    """
    with Child(["analysis", *arguments], tell, checkout=ROOT) as child:
        problem = child.wait(math.inf)
    if child.code not in (0, 1, 3, 4) or not child.lines:
        raise ValueError(f"`python -m analysis {arguments[0]}`: {problem}")
    return child.code, child.lines


def judge_of(directory: Path, rules: Sequence[str]) -> Judge:
    """What asks for the verdicts on a directory's runs."""

    def judge() -> Mapping[str, Any]:
        lines = analysed(["compare", *map(str, sides_in(directory)), *rules, "--json"], _ignore)[1]
        document: Mapping[str, Any] = json.loads(lines[0])
        return document

    return judge


def sides_in(directory: Path) -> list[Path]:
    """Where the runs of baseline and candidate are."""
    return [directory / name for name in SIDES]
