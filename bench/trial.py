"""Whether launch configurations compile for an arch without spills: asked of processes that a compiler may crash.

`python -m bench.trial` is such a process: it answers for one case at a time, ahead of time, and needs no GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from bench.case import Case
from bench.compile import LIMITS, CompileError, compile_case
from bench.record import Environment, Status
from bench.run import Session, ending
from bench.worker import begin, in_worker


@dataclass(frozen=True, slots=True)
class Trial:
    """How compiling a case's kernels for an arch ended; SKIPPED when they spill."""

    status: Status
    detail: str = ""


NOT_BEGUN = Trial(Status.SKIPPED, "not compiled: the time was over")


def arch_of(environment: Environment) -> int:
    """90 for "9.0"; 0 where nothing is compiled for."""
    major, _, minor = (environment.compute_capability or "0.0").partition(".")
    return 10 * int(major) + int(minor)


def compiled(
    cases: Sequence[Case],
    session: Session,
    op_files: Sequence[Path],
    tell: Callable[[str], None],
    *,
    jobs: int,
    timeout_s: float,
    in_time: Callable[[], bool],
) -> list[Trial]:
    """How each case compiles for the session's device, `jobs` of them at a time, begun in their order.

    Args:
        cases: with their launch configurations.
        session: its environment says for which arch; the processes touch no device.
        op_files: where ops that are not the suite's come from.
        tell: gets each line that the processes print.
        timeout_s: longest that a case may take.
        in_time: asked before each; what is left when it says no is `NOT_BEGUN`.

    Returns:
        One a case. All are OK where the arch's limits are not known, or there is none: nothing can be foreseen.
    """
    if arch_of(session.environment) not in LIMITS:
        return [Trial(Status.OK)] * len(cases)
    waiting: SimpleQueue[int] = SimpleQueue()
    for number in range(len(cases)):
        waiting.put(number)
    trials = [NOT_BEGUN] * len(cases)

    def work() -> None:
        shared = (replace(session, device="cpu", telemetry=None), timeout_s, op_files, tell)
        with in_worker("bench.trial", _read, _gone, *shared) as run:
            while in_time():
                try:
                    number = waiting.get_nowait()
                except Empty:
                    return
                trials[number] = run(cases[number])

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(work) for _ in range(min(jobs, len(cases)))]:
            done.result()
    return trials


def _gone(case: Case, session: Session, status: Status, detail: str) -> Trial:
    return Trial(status, detail)


def _read(reply: str) -> Trial:
    fields = json.loads(reply)
    return Trial(Status(fields["status"]), fields["detail"])


def tried(case: Case, arch: int) -> Trial:
    """Compiles a case's kernels; never raises for what they do."""
    try:
        kernels = compile_case(case, arch, case.config)
    except CompileError as error:
        return Trial(Status.FAILED, f"does not compile: {str(error).splitlines()[0]}")
    except Exception as error:
        return Trial(*ending(error))
    spilled = [
        f"{kernel.kernel} has {kernel.spill_loads} loads and {kernel.spill_stores} stores of local memory, "
        f"{kernel.stack_bytes} bytes of stack"
        for kernel in kernels
        if kernel.stack_bytes or kernel.spill_loads or kernel.spill_stores
    ]
    return Trial(Status.SKIPPED, f"spills on sm_{arch}: {'; '.join(spilled)}") if spilled else Trial(Status.OK)


def _answer(case: Case, session: Session) -> str:
    return json.dumps(asdict(tried(case, arch_of(session.environment))))


if __name__ == "__main__":
    begin(_answer)
