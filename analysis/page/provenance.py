"""What a page rests on: per run everything needed to repeat it, and what to doubt, case by case.

What a record does not hold is said to be not recorded, never left out: a reader must not take a gap for a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.flags import DRIFT
from analysis.frame import ROOF_OPS, Loaded
from analysis.page.named import listed
from analysis.tables import change, number, percent
from bench.record import Environment

UNTOLD = "not recorded"
Rows = list[tuple[str, str]]
"""Name and value."""
WIDE = 0.05
"""Half-width of the interval over the median from which a time is told to be uncertain; compare's threshold."""
MOST_NAMED = 20
"""Cases named of one kind of caution; the others are counted."""
FACTS = {
    "sm_count": "SMs", "threads": "threads", "compute_capability": "compute capability",
    "memory_bytes": "memory, bytes", "memory_bus_bits": "memory bus, bits", "l2_bytes": "last-level cache, bytes",
    "ecc": "ECC", "mig": "MIG", "uuid": "UUID", "os": "system", "python": "Python", "ptxas": "ptxas", "note": "note",
}  # fmt: skip
"""Field of an Environment that is shown where it is told -> its name on the page."""
GPU_FACTS = {
    "driver": "driver", "cuda": "CUDA", "max_sm_clock_mhz": "maximum SM clock, MHz",
    "memory_clock_mhz": "memory clock, MHz", "power_limit_w": "power limit, W",
}  # fmt: skip
"""The same, always shown of a GPU."""
HOW = {
    "timer": "timer", "cache": "cache", "regime": "regime", "launch": "launch", "counting": "counting version",
    "schema": "schema of the records", "data": "inputs",
}  # fmt: skip
"""Column of `analysis.frame` -> its name on the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """What to doubt of a case. `kind` is one word of KINDS."""

    case_id: str
    kind: str
    text: str
    device: str = ""
    run: str = ""


KINDS: Mapping[str, str] = {
    "invalid": "not a time to believe",
    "suspect": "flagged suspect: faster than its roof allows, or by the source of the record",
    "throttled": "the clocks were held down while it was measured: slower than it could be",
    "contended": "another process was on the device while it was measured",
    "gaps": "launches came late: gaps between them may be in the time",
    "drift": f"the last tenth of the samples lies over {DRIFT:.0%} from the first",
    "uncertain": f"the interval of the median is wider than {WIDE:.0%} to either side",
}
"""Kind of a caution -> what it means, in the order a page lists them."""


def provenance(loaded: Loaded) -> dict[str, Rows]:
    """Run id -> what is needed to repeat it, in the order of the runs.

    Args:
        loaded: the records, those of roofs too.
    """
    frame = loaded.frame
    return {run: _rows(run, e, frame[frame["run"] == run]) for run, e in loaded.environments.items()}


def warnings(points: pd.DataFrame) -> list[Caution]:
    """What to doubt of classified points, by kind in the order of KINDS; one entry a case and kind."""
    if points.empty:
        return []
    half = (points["high_us"] - points["low_us"]) / 2 / points["time_us"]
    holds = _flagged(points["flags"]) | {"invalid": points["class"] == "invalid", "uncertain": half > WIDE}
    found = []
    for kind, meaning in KINDS.items():
        rows = points[holds[kind]]
        texts = [meaning] * len(rows)
        if kind == "invalid":
            texts = rows["reason"].tolist()
        elif kind == "drift":
            texts = [f"{change(drift)}: {meaning}" for drift in rows["drift"].tolist()]
        elif kind == "uncertain":
            texts = [f"half-width {percent(width)} of the median: {meaning}" for width in half[holds[kind]].tolist()]
        columns = zip(*(rows[name].tolist() for name in ("case_id", "device", "run")), texts, strict=True)
        found += [Caution(case_id=c, kind=kind, text=text, device=d, run=r) for c, d, r, text in columns]
    return found


def caution_lines(cautions: Sequence[Caution], most: int = MOST_NAMED) -> list[str]:
    """A line for each kind: how many cases, what it means, and the first `most` of them."""
    lines = []
    for kind, meaning in KINDS.items():
        names = [caution.case_id for caution in cautions if caution.kind == kind]
        if names:
            rest = f" and {len(names) - most} more" if len(names) > most else ""
            lines.append(f"{kind}, {len(names)}: {meaning}: {', '.join(names[:most])}{rest}")
    return lines


def _flagged(flags: pd.Series[str]) -> dict[str, pd.Series[bool]]:
    """Kind -> rows whose flags have that word; few texts of flags stand in many rows."""
    words = {text: set(text.split("; ")) for text in flags.unique()}
    return {kind: flags.isin([text for text, told in words.items() if kind in told]) for kind in KINDS}


def _rows(run: str, e: Environment, rows: pd.DataFrame) -> Rows:
    published = len(rows) > 0 and bool((rows["timer"] == "published").all())
    told = [
        ("run", run),
        ("device", e.device_name or e.device_type),
        ("taken", e.taken_at or UNTOLD),
        ("commit", (e.commit + (" with changes" if e.dirty else "")) if e.commit else UNTOLD),
        ("torch", e.torch or UNTOLD),
        ("triton", e.triton or UNTOLD),
    ]
    gpu = [(name, _text(getattr(e, field))) for field, name in GPU_FACTS.items() if e.device_type == "cuda"]
    facts = [(name, _text(getattr(e, field))) for field, name in FACTS.items() if getattr(e, field) is not None]
    packages = [("packages", listed(f"{n} {v}" for n, v in e.packages.items()))] if e.packages else []
    whose = [("published", "figures of others, not measured by this suite")] if published else []
    return [*told, *gpu, *facts, *packages, *whose, *_how(rows), ("to repeat", _command(e, rows, published=published))]


def _how(rows: pd.DataFrame) -> Rows:
    """How the run measured, over all its records; each value once, the commonest first."""
    timed = rows[rows["status"] == "OK"]
    statuses = listed(f"{n:,} {status}" for status, n in rows["status"].value_counts().items())
    made: Rows = [("records", statuses or "none")]
    made += [(name, _values(timed[column])) for column, name in HOW.items()]
    if len(timed):
        fewest, most = int(timed["samples"].min()), int(timed["samples"].max())
        made.append(("samples a case", f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"))
    sources = rows.loc[rows["source_sha256"] != "", ["op", "source_sha256"]].drop_duplicates()
    made.append(("kernel sources, SHA-256", listed(sources["op"] + " " + sources["source_sha256"]) or UNTOLD))
    return made


def _values(column: pd.Series[Any]) -> str:
    """`cold (40) and hot (2)`, without counts where there is one value."""
    counts = column.dropna().astype("str").value_counts()
    names = [(str(value) or UNTOLD, int(n)) for value, n in counts.items()]
    return listed(name if len(names) == 1 else f"{name} ({n:,})" for name, n in names) or UNTOLD


def _command(e: Environment, rows: pd.DataFrame, *, published: bool) -> str:
    """The command that measures the same ops again; records hold no command line, so the cases are the ids' own."""
    if published:
        return "`python -m analysis reference` writes these figures again; nothing measures them"
    ops = _ops(rows)
    if not ops:
        return "`python -m bench peaks`" if len(rows) else UNTOLD
    checkout = f"at commit {e.commit[:12]}, " if e.commit else ""
    device = " --device cpu" if e.device_type == "cpu" else ""
    return (
        f"{checkout}`python -m bench run {' '.join(ops)}{device}`, or the suite that it was: "
        "the records hold each case and no command line"
    )


def _ops(rows: pd.DataFrame) -> Iterable[str]:
    return [str(op) for op in rows["op"].unique() if op not in ROOF_OPS]


def _text(value: object) -> str:
    if value is None:
        return UNTOLD
    return number(value) if isinstance(value, float) else str(value)
