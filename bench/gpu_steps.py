"""What each step of `bench gpu` does. One function a step; each tells in a few words what came of it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bench.child import Child
from bench.cmd_tune import PASTE
from bench.gpu import CUT_OFF, NOISE, RECORDS, VARIANTS, StepError, Visit, Work
from bench.gpu_plan import METHODS, SENTINELS, START_S, Step
from bench.record import Record
from kernels.registry import OPS

DRAWING = ("pandas", "matplotlib")
"""What `analysis` needs beyond the image that this command promises to run on."""


def _environment(visit: Visit, step: Step, seconds: float) -> str:
    told = asdict(visit.session.environment)
    visit.facts["environment"] = told
    return ", ".join(f"{name} {told[name]}" for name in ("device_name", "driver", "torch", "triton") if told[name])


def _compile(visit: Visit, step: Step, seconds: float) -> str:
    """Kernels for this GPU, into Triton's cache; its limits are asked for here, so that the pool needs no GPU."""
    gpu = torch.cuda.get_device_properties(visit.session.device)
    shared = getattr(gpu, "shared_memory_per_block_optin", None)
    if shared is None:
        raise StepError("this torch does not tell the shared memory of a block: kernels compile at their first launch")
    arguments = (str(10 * gpu.major + gpu.minor), str(shared), str(gpu.multi_processor_count))
    with visit.child("bench.gpu_compile", *arguments) as child:
        ended = child.wait(visit.cut_s)
    groups = _told(child)
    failed = list(dict.fromkeys(line for group in groups for line in group["failed"]))
    visit.facts["compile"] = {"failed": failed}
    told = f"{sum(g['kernels'] for g in groups)} kernels of {sum(g['cases'] for g in groups)} launches"
    return _ended(told + (f", {len(failed)} failed" if failed else ""), ended)


def _ended(told: str, *endings: str) -> str:
    """What came of children. Raises StepError when one neither ended well nor was cut off."""
    ended = "; ".join(ending for ending in endings if ending)
    if any(ending and CUT_OFF not in ending for ending in endings):
        raise StepError(f"{ended} ({told})")
    return f"{told}, {ended}" if ended else told


def _told(child: Child) -> list[Any]:
    """The JSON lines that a child has printed; the last one may be cut off."""
    found = []
    for line in child.lines:
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def _peaks(visit: Visit, step: Step, seconds: float) -> str:
    told = _counts(visit.swept(step, seconds, RECORDS, resume=True))
    visit.end_worker()
    return told


def _correctness(visit: Visit, step: Step, seconds: float) -> str:
    """One process an op, all at once: nothing is timed, and an op that dies takes no other with it."""
    checked: list[dict[str, Any]] = []
    visit.facts["correctness"] = checked
    endings: list[str] = []
    with ExitStack() as open_:
        device, seed = visit.session.device, str(visit.session.seed)
        children = {op.name: open_.enter_context(visit.child("bench.gpu_check", device, seed, op.name)) for op in OPS}
        for name, child in children.items():
            ended = child.wait(visit.cut_s)
            checked += _told(child)
            endings += [f"{name} {ended}"] if ended else []
    counts = Counter(one["status"] for one in checked)
    told = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing was checked"
    return _ended(told, *endings)


def _tune(visit: Visit, step: Step, seconds: float) -> str:
    """The command itself, so that its literals are what it prints for anybody."""
    budget = max(seconds - START_S, seconds / 2)
    output = visit.directory / "tune"
    with visit.child("bench", "tune", "--budget", f"{budget:.0f}", "-o", str(output)) as child:
        ended = child.wait(visit.cut_s)
    (output / PASTE).unlink(missing_ok=True)  # its lines are kept below, and few files come back from rented GPUs
    visit.facts["tune"] = {"printed": child.lines}
    return _ended(f"{len(child.lines)} lines printed", ended)


def _standard(visit: Visit, step: Step, seconds: float) -> str:
    return _counts(visit.swept(step, seconds, RECORDS, resume=True))


def _variant(visit: Visit, step: Step, seconds: float) -> str:
    return _counts(visit.swept(step, seconds, VARIANTS, method=METHODS[step.name], resume=True))


def _noise(visit: Visit, step: Step, seconds: float) -> str:
    """The same cases in two processes that share nothing but the GPU."""
    told = []
    own, run = visit.session, visit.session.run
    for number, path in enumerate(NOISE, start=1):
        visit.end_worker()
        visit.session = replace(own, run=f"{run}-noise-{number}")
        try:
            told.append(_counts(visit.swept(step, seconds / 2, path)))
        finally:
            visit.session = own
    visit.end_worker()
    return "; ".join(told)


def _analysis(visit: Visit, step: Step, seconds: float) -> str:
    """Figure and tables by `python -m analysis`; of its files the figure is kept, records make the rest again."""
    missing = [name for name in DRAWING if importlib.util.find_spec(name) is None]
    again = f"python -m analysis roofline {visit.directory}"
    if missing:
        return f"for figure and tables: pip install {' '.join(missing)} && {again}"
    with tempfile.TemporaryDirectory() as made:
        with visit.child("analysis", "roofline", str(visit.directory / RECORDS), "-o", made) as child:
            ended = child.wait(visit.cut_s)
        figure = Path(made) / "roofline.png"
        if figure.exists():
            shutil.copyfile(figure, visit.directory / figure.name)
    visit.facts["analysis"] = [line for line in child.lines if made not in line]
    return _ended(f"more with: {again}", ended)


def _counts(records: Sequence[Record]) -> str:
    counts = Counter(str(record.status) for record in records)
    return ", ".join(f"{count} {status}" for status, count in counts.items()) or "no case fitted into the time"


WORKS: dict[str, Work] = {
    "environment": _environment,
    "compile": _compile,
    "peaks": _peaks,
    "correctness": _correctness,
    "tune": _tune,
    "standard": _standard,
    **dict.fromkeys((name for name in SENTINELS if name in METHODS), _variant),
    "noise": _noise,
    "analysis": _analysis,
}
