"""The one case that a text names: its id, also one that no suite has, or a part that only its id holds."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.case import Case, select
from bench.suites import question_workloads, suite_cases
from kernels.registry import OPS, ROOF_OPS, op_named
from kernels.spec import Op

PARTS = re.compile(r"(?P<op>\w+)/(?P<provider>\w+)/(?P<dtype>\w+)/(?P<axes>[^/]+)")
SHOWN = 10


def case_named(text: str, own: Sequence[Op] = ()) -> Case:
    """The case.

    Args:
        text: `matmul/triton/bfloat16/M=4096,N=4096,K=4096`, or what `--match` takes where only one case has it.
        own: ops beside the suite's.

    Raises:
        ValueError: no case, with the nearest ids; or several, with the first of them.
    """
    by_id = _parsed(text, own)
    if by_id:
        return by_id
    cases = suite_cases("full", OPS)
    cases += [Case(op, p, w) for op in (*OPS, *own) for w in op.check_workloads for p in op.providers]
    known = {case.id: case for case in cases}
    if text in known:
        return known[text]
    try:
        found = select(known.values(), match=text)
    except ValueError:
        near = difflib.get_close_matches(text, known, n=3, cutoff=0.3)
        hint = f"; the nearest: {', '.join(near)}" if near else ""
        raise ValueError(f"no case {text!r}{hint}; `python -m bench list` shows them all") from None
    if len(found) > 1:
        shown = "\n  ".join(case.id for case in found[:SHOWN])
        more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise ValueError(f"{len(found)} cases match {text!r}; name one of them:\n  {shown}{more}")
    return found[0]


def _parsed(text: str, own: Sequence[Op]) -> Case | None:
    """The case whose id a text is, of any sizes that the op takes; None when it is no such id."""
    parts = PARTS.fullmatch(text)
    if not parts:
        return None
    sizes, *ragged = re.split(",(?=kv_lens=|q_lens=)", parts["axes"])
    try:
        op = op_named(parts["op"], (*ROOF_OPS, *own))
        given = {axis: int(size) for axis, _, size in (pair.partition("=") for pair in sizes.split(","))}
        [workload] = question_workloads(op, {axis: [size] for axis, size in given.items()}, [parts["dtype"]], ())
        lens: dict[str, Any] = {}
        for part in ragged:
            name, _, listed = part.partition("=")
            lens[name] = tuple(map(int, listed.split("+")))
        case = Case(op, parts["provider"], replace(workload, axes=given, **lens))
    except ValueError:
        return None
    return case if case.id == text and case.provider in op.providers else None
