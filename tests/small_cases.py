"""Small cases on the CPU around providers that a test brings, and a session whose cache they outgrow quickly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.case import Case
from bench.record import Environment, Record, Status
from bench.run import Session, run_case
from bench.stopping import StopRule
from bench.worker import Runner
from kernels import matmul

Provider = Callable[..., Any]
SMALL = {"M": 4, "N": 8, "K": 16}
NOTHING: Mapping[str, Any] = MappingProxyType({})


def session(seed: int = 0) -> Session:
    """A cache of 4,096 bytes: 24 copies of a weight of 512."""
    return Session(
        run="r1",
        device="cpu",
        environment=Environment(device_name="cpu", l2_bytes=4096),
        rule=StopRule(min_s=0.0, budget_s=0.01),
        seed=seed,
    )


def matmul_case(
    provider: Provider = matmul.matmul_torch,
    *,
    name: str = "mine",
    dtype: str = "float32",
    axes: dict[str, int] = SMALL,
    changes: Mapping[str, Any] = NOTHING,
) -> Case:
    """One case of matmul by this provider; `changes` replace other parts of the op."""
    op = replace(matmul.OP, **{"providers": {name: provider}, **changes})
    return Case(op, name, matmul.describe_axes(axes, dtype, ("test",)))


@contextmanager
def in_process(
    session: Session, timeout_s: float, op_files: Sequence[Path], tell: Callable[[str], None]
) -> Iterator[Runner]:
    """Stands for `bench.worker.isolated` where providers are a test's own, which no other process has."""
    yield partial(run_case, session=session)


def raising(error: BaseException) -> Provider:
    """A provider that raises."""

    def provider(**inputs: Any) -> None:
        raise error

    return provider


def ended(record: Record) -> tuple[Status, str]:
    """Status and detail of a record without times."""
    assert (record.times_us, record.stop_reason) == ((), "")
    return record.status, record.detail
