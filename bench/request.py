"""A case as text, for another process: an Op holds functions, its name does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from bench.case import Case
from bench.method import Method
from kernels.registry import op_named
from kernels.spec import Op, Workload


def request_of(case: Case, method: Method) -> str:
    """The case by names and numbers, a launch configuration by its class, and how it is to be timed."""
    config = None
    if case.config is not None:
        kind = type(case.config)
        config = {"module": kind.__module__, "name": kind.__qualname__, "fields": asdict(case.config)}
    named = {"op": case.op.name, "provider": case.provider, "workload": asdict(case.workload)}
    return json.dumps(named | {"config": config, "method": asdict(method)})


def requested(text: str, own: Sequence[Op]) -> tuple[Case, Method]:
    """The case of a request, and its method.

    Args:
        text: from `request_of`.
        own: ops beside the suite's; the files of a user's are imported already, and so are their configurations.
    """
    asked = json.loads(text)
    config = asked["config"]
    if config is not None:
        config = getattr(import_module(config["module"]), config["name"])(**config["fields"])
    case = Case(op_named(asked["op"], own), asked["provider"], _workload(asked["workload"]), config)
    return case, Method(**asked["method"])


def _workload(fields: dict[str, Any]) -> Workload:
    for name in ("source", "kv_lens", "q_lens"):
        fields[name] = tuple(fields[name])
    return Workload(**fields)
