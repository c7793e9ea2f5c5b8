"""A case is what runs: op x provider x workload. Its id names it in records, tables and comparisons."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kernels.spec import Op, Workload


@dataclass(frozen=True, slots=True)
class Case:
    """One op by one provider at one workload; `config` instead of the launch configuration of the op's own choice."""

    op: Op
    provider: str
    workload: Workload
    config: Any = None

    @property
    def id(self) -> str:
        """`matmul/triton/bfloat16/M=4096,N=4096,K=4096`."""
        return f"{self.op.name}/{self.provider}/{self.workload.key}"

    def to_json(self) -> dict[str, Any]:
        """The case as records and `bench list --json` hold it."""
        w = self.workload
        return {
            "id": self.id,
            "op": self.op.name,
            "provider": self.provider,
            "phase": w.phase,
            "dtype": w.dtype,
            "technique": w.technique,
            "axes": dict(w.axes),
            "source": list(w.source),
            "weight_dtype": w.weight_dtype,
            "kv_dtype": w.kv_dtype,
            "scale": w.scale,
            "kv_lens": list(w.kv_lens),
            "q_lens": list(w.q_lens),
        }


def merged(workloads: Iterable[Workload]) -> list[Workload]:
    """Workloads of one op with those of one key made one that names all their sources, in order of appearance."""
    by_key: dict[str, Workload] = {}
    for workload in workloads:
        seen = by_key.get(workload.key)
        if seen is None:
            by_key[workload.key] = workload
            continue
        sources = seen.source + tuple(s for s in workload.source if s not in seen.source)
        by_key[workload.key] = replace(seen, source=sources)
    return list(by_key.values())


def select(cases: Iterable[Case], *, providers: tuple[str, ...] = (), match: str = "") -> list[Case]:
    """The cases of the named providers (all when empty) whose id has the text, or is found by it as a pattern.

    A whole id selects its case though ragged lengths (`kv_lens=3+5`) mean something else as a pattern.

    Raises:
        ValueError: an unknown provider, a pattern that is no regular expression, or nothing left.
    """
    cases = list(cases)
    known = tuple(dict.fromkeys(case.provider for case in cases))
    for provider in providers:
        if provider not in known:
            raise ValueError(f"unknown provider {provider!r}; known for these ops: {', '.join(known)}")
    try:
        pattern = re.compile(match)
    except re.error as error:
        raise ValueError(f"--match {match!r} is not a regular expression: {error}") from error
    chosen = [
        c for c in cases if (not providers or c.provider in providers) and (match in c.id or pattern.search(c.id))
    ]
    if not chosen:
        of = f" of {', '.join(providers)}" if providers else ""
        raise ValueError(f"no case{of} matches {match!r}; `python -m bench list` shows them all")
    return chosen
