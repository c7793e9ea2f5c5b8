"""run(case) -> Record: inputs, check, times, check again; whatever happens becomes a record.

The order is the method: nothing is timed that was not first found right, and a failing case ends as a status with
its reason while the sweep goes on. How a right case is timed is left to `bench.timing`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from bench import l2
from bench.case import Case
from bench.check import check_case
from bench.compile_time import compile_time
from bench.device import explain_cuda_error
from bench.launched import kernels_launched
from bench.method import Method
from bench.record import Environment, Record, Status
from bench.stopping import StopRule
from bench.telemetry import Telemetry
from bench.timing import first_line, phase, time_case
from kernels.inputs import DISTRIBUTION
from kernels.registry import ROOF_OPS
from kernels.spec import UnsupportedError

TUNED = "triton"
"""The provider whose launch configurations are ours to choose and to record."""
ROOF_NAMES = tuple(op.name for op in ROOF_OPS)
HEADROOM = 0.9
"""Share of the free memory that a case may plan to take; outputs and the reference's sample take the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What the cases of one run share.

    Attributes:
        method: how its cases are timed; its roofs are always timed in the default way.
        nvtx: mark the timed part of each case for a profiler.
    """

    run: str
    device: str
    environment: Environment
    rule: StopRule = field(default_factory=StopRule)
    method: Method = field(default_factory=Method)
    seed: int = 0
    nvtx: bool = False
    telemetry: Telemetry | None = None

    @property
    def cache_bytes(self) -> int:
        """The last cache, which cold inputs must outgrow."""
        return self.environment.l2_bytes or 0

    def method_of(self, case: Case) -> Method:
        """How to time this case. The device's own roofs are measured in one way, whatever is asked of the others."""
        return Method() if case.op.name in ROOF_NAMES else self.method


def run_case(case: Case, session: Session) -> Record:
    """Runs one case and tells how it ended; never raises for what the case itself does."""
    try:
        return _run(case, session)
    except Exception as error:
        return record_of(case, session, *ending(error))


def ending(error: Exception) -> tuple[Status, str]:
    """How a case that raised has ended, and why."""
    if isinstance(error, UnsupportedError):
        return Status.UNSUPPORTED, str(error) or "the provider gives no reason"
    told = ("can't allocate memory", "out of memory")
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(text in str(error).lower() for text in told):
        return Status.OUT_OF_MEMORY, first_line(error)
    return Status.FAILED, explain_cuda_error(first_line(error))


def not_to_run(case: Case, device: str) -> tuple[Status, str] | None:
    """How a case ends that is not tried on a device, and why; None when it is."""
    if device == "cpu" and case.provider in case.op.cuda_only:
        return Status.SKIPPED, case.op.cuda_only[case.provider]
    reason = case.op.unsupported(case.workload, case.provider)
    return (Status.UNSUPPORTED, reason) if reason else None


def _run(case: Case, session: Session) -> Record:
    op, workload = case.op, case.workload
    op.work(workload)
    refused = not_to_run(case, session.device)
    if refused:
        return record_of(case, session, *refused)
    on_meta = op.make_inputs(workload, "meta", session.seed)
    rotation = l2.plan(on_meta, op.roles, session.cache_bytes, session.method_of(case).cache)
    free = free_bytes(session.device)
    if free is not None and rotation.needed_bytes > HEADROOM * free:
        return record_of(
            case, session, Status.SKIPPED, f"needs {rotation.needed_bytes:,} bytes, {free:,} are free on this device"
        )
    return _measure(case, session, rotation)


def _measure(case: Case, session: Session, rotation: l2.Rotation) -> Record:
    op = case.op
    provider, config = configured(case, session.device)
    phases: dict[str, float] = {}
    with phase(phases, "inputs"):
        inputs = op.make_inputs(case.workload, session.device, session.seed)
        _synchronize(session.device)
    with phase(phases, "first_call"), kernels_launched() as kernels, compile_time() as compiled_s:
        provider(**inputs)
        _synchronize(session.device)
    phases |= {"compile": sum(compiled_s)} if compiled_s else {}
    facts: dict[str, Any] = dict(op.facts(case.provider, inputs)) | ({"kernels": kernels} if kernels else {})
    with phase(phases, "check"):
        verdict = check_case(op, provider, inputs)
    if verdict.problem:
        return record_of(
            case, session, Status.INCORRECT, verdict.problem, error=verdict.figures, kernel=facts, config=config
        )
    timed = time_case(case, session, provider, rotation, inputs, phases)
    del inputs
    with phase(phases, "recheck"):
        again = check_case(op, provider, op.make_inputs(case.workload, session.device, session.seed + 1))
    if again.problem:
        problem = f"right at first, but with fresh inputs after timing: {again.problem}"
        return record_of(case, session, Status.INCORRECT, problem, error=again.figures, kernel=facts, config=config)
    timed["kernel"] = facts | timed["kernel"]
    first_call_us = phases["first_call"] * 1e6
    return record_of(
        case, session, Status.OK, "", config=config, error=verdict.figures, first_call_us=first_call_us,
        phases_s=phases, **timed,
    )  # fmt: skip


def configured(case: Case, device: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The provider with its launch configuration, the case's or the default for this device, and that as recorded."""
    provider = case.op.providers[case.provider]
    if case.config is not None:
        return partial(provider, config=case.config), asdict(case.config)
    if case.provider != TUNED or device == "cpu":
        return provider, {}
    major, minor = torch.cuda.get_device_capability()
    configs = case.op.configs(case.workload, 10 * major + minor)
    return (partial(provider, config=configs[0]), asdict(configs[0])) if configs else (provider, {})


def free_bytes(device: str) -> int | None:
    """Memory that a case could take now; None where nothing tells."""
    if device != "cpu":
        torch.cuda.empty_cache()  # what torch holds of earlier cases is free too, and the driver does not know it
        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def record_of(case: Case, session: Session, status: Status, detail: str, **measured: Any) -> Record:
    """A record of this case with everything that is known without running it."""
    method = session.method_of(case)
    return Record(
        run=session.run,
        case=case.to_json(),
        status=status,
        detail=detail,
        work=_declared_work(case),
        regime=method.regime,
        asked=asdict(method),
        data={"distribution": "zeros" if method.inputs == "zeros" else DISTRIBUTION, "seed": session.seed},
        source_sha256=case_sha256(case),
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=session.environment,
        **measured,
    )


def _declared_work(case: Case) -> dict[str, int]:
    """Empty where the op cannot count it: the record of that failure says why."""
    try:
        return asdict(case.op.work(case.workload))
    except Exception:
        return {}


def case_sha256(case: Case) -> str:
    """Of the code that a case runs: what resuming and comparing recognise changed code by."""
    return source_sha256(case.op.make_inputs, case.op.providers[case.provider])


@cache
def source_sha256(*functions: Callable[..., Any]) -> str:
    """Of the files that functions of an op stand in.

    An op of this suite shares device code with others, so the whole of its package is taken: too many records are
    called changed rather than one too few. A user's op is its own file, or files.
    """
    files: set[Path] = set()
    for function in functions:
        try:
            own = Path(inspect.getsourcefile(inspect.unwrap(getattr(function, "func", function))) or "")
        except TypeError:
            continue  # a callable object or a built-in has no file to change
        files |= set(own.parent.glob("*.py")) if (own.parent / "registry.py").exists() else {own}
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files, key=lambda f: f.name))).hexdigest()


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
