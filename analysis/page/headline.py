"""The head of a page: device, date, commit, how many cases of which class, and the sentences that matter.

Every sentence is made of counts and medians of the points, and says of how many; what was measured in different ways
shares no median. Classes are left to `analysis.roofline`, pairs of providers to `analysis.page.against`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.families import ROOFED
from analysis.methods import METHOD, by_method
from analysis.page.against import against, geomeans
from analysis.page.named import duration, listed, name_of, times
from analysis.peaks import DEFAULT_DEVICE
from analysis.reasons import TOLERANCE
from analysis.roofline import CLASSES
from analysis.tables import percent
from bench.record import Environment

PHASES = ("decode", "prefill", "mixed")
UNROOFED = {"no roofs": "without roofs"}
"""Class -> how a sentence says it."""
MOST_OPS, MOST_WAYS, MOST_PAIRS = 3, 3, 3
"""Ops, ways of measuring and pairs of providers that a sentence names; it counts the others."""
NEAR = 0.005
"""Providers whose mean ratio is nearer to 1 are as fast as each other."""
DOUBTS = ("suspect", "throttled", "contended", "drift")


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What stands at the top.

    Attributes:
        device, date, commit: of the runs with points (of all runs where there is none); published figures say whose.
        counts: class -> cases, in the order of `analysis.roofline.CLASSES`.
        sentences: what bounds the cases; decode, prefill and the largest gap; providers and doubts. One alone where
            nothing was measured.
    """

    device: str
    date: str
    commit: str
    counts: dict[str, int]
    sentences: tuple[str, ...]


def headline(points: pd.DataFrame, environments: Mapping[str, Environment]) -> Headline:
    """The headline of classified points.

    Args:
        points: as `analysis.roofline.points` gives them; of a case in two runs the later counts.
        environments: run id -> Environment; those without a point (roofs of another run) are left out.
    """
    seen = set(points["run"])
    used = {run: e for run, e in environments.items() if run in seen} or dict(environments)
    rows = points.drop_duplicates(["device", "case_id", *METHOD], keep="last")
    counts = rows["class"].value_counts()
    return Headline(
        device=listed(dict.fromkeys(name_of(e) for e in used.values())) or "no device named",
        date=_dates(used),
        commit=_commits(used),
        counts={name: int(counts[name]) for name in CLASSES if name in counts},
        sentences=_sentences(rows, used, repeated=len(points) - len(rows)),
    )


def _dates(environments: Mapping[str, Environment]) -> str:
    days = sorted({e.taken_at[:10] for e in environments.values() if e.taken_at})
    if not days:
        return "date not recorded"
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _commits(environments: Mapping[str, Environment]) -> str:
    """Commits with what was changed; of published figures where they come from."""
    told = [(e.commit[:12] + (" with changes" if e.dirty else "")) for e in environments.values() if e.commit]
    published = [(e.note or "").split(";")[0] for e in environments.values() if not e.commit]
    sources = [text for text in published if text.startswith("published")]
    return listed(dict.fromkeys([*told, *sources])) or "commit not recorded"


def _sentences(rows: pd.DataFrame, environments: Mapping[str, Environment], *, repeated: int) -> tuple[str, ...]:
    if rows.empty:
        return ("No case was measured: there is nothing to place under a roof.",)
    again = f" ({repeated:,} older time{'s' if repeated > 1 else ''} of these cases left out)" if repeated else ""
    first = _bounds(rows, _whose(rows, environments))
    if (rows["device"] == "").any():
        again += f", by the roofs of {DEFAULT_DEVICE} where the records name no device"
    return (f"{first}{again}.", f"{_phases(rows)}; {_gap(rows)}.", f"{_providers(rows)}; {_doubts(rows)}.")


def _whose(rows: pd.DataFrame, environments: Mapping[str, Environment]) -> str:
    """`published case`, and of what, where every figure is published."""
    published = rows["timer"] == "published"
    if not published.any():
        return ""
    runs = dict.fromkeys(rows.loc[published, "run"])
    packages = [f"{n} {v}" for run in runs if run in environments for n, v in environments[run].packages.items()]
    whose = f"published figures of {listed(dict.fromkeys(packages))}" if packages else "published figures"
    return f"{whose}, not measured here" if published.all() else f"{int(published.sum())} of them {whose}"


def _bounds(rows: pd.DataFrame, whose: str) -> str:
    """What bounds most cases, at what fraction of attainable, and how many are memory-bound."""
    told = f" ({whose})" if whose else ""
    roofed = rows[rows["class"].isin(ROOFED)]
    if roofed.empty:
        classes = rows["class"].replace(UNROOFED).value_counts()
        return f"No roof applies to {_cases(len(rows))}{told}: {listed(f'{n:,} {name}' for name, n in classes.items())}"
    leading = str(roofed["class"].value_counts().index[0])
    text = f"{_part(rows, leading, told)}{_where(roofed, leading)}"
    if leading == "memory-bound":
        return text
    memory = int((rows["class"] == "memory-bound").sum())
    if not memory:
        return f"{text}; none is memory-bound"
    return f"{text}; {memory:,} {_is(memory)} memory-bound{_where(roofed, 'memory-bound')}"


def _part(rows: pd.DataFrame, name: str, told: str) -> str:
    of_class = int((rows["class"] == name).sum())
    if of_class < len(rows):
        share = percent(of_class / len(rows))
        return f"{of_class:,} of {_cases(len(rows))}{told} ({share}) {_is(of_class)} {name}"
    return f"The one case{told} is {name}" if of_class == 1 else f"All {of_class:,} cases{told} are {name}"


def _where(roofed: pd.DataFrame, name: str) -> str:
    """Which ops, and the median fraction of attainable for each device and way of measuring."""
    rows = roofed[roofed["class"] == name]
    ops = [f"{op} ({n:,})" for op, n in rows["op"].value_counts().items()]
    if len(ops) > MOST_OPS + 1:
        ops = [*ops[:MOST_OPS], f"{len(ops) - MOST_OPS} more ops"]
    several = roofed["device"].nunique() > 1
    medians = []
    for device, of_device in rows.groupby("device", sort=False):
        named = [str(device) or "no device named"] if several else []
        for way, part in by_method(of_device):
            heading = "; ".join([f"median of {len(part):,}", *named, *([way] if way else [])])
            medians.append(f"{percent(part['fraction_of_attainable'].median())} of attainable ({heading})")
    if len(medians) > MOST_WAYS + 1:
        medians = [*medians[:MOST_WAYS], f"other fractions in {len(medians) - MOST_WAYS} other ways of measuring"]
    return f": {listed(ops)}, at {listed(medians)}"


def _phases(rows: pd.DataFrame) -> str:
    """What bounds decode, and what prefill: the commonest class of each, both where two are as common."""
    texts = []
    for phase in [p for p in PHASES if (rows["phase"] == p).any()] or [*rows["phase"].unique()]:
        counts = rows.loc[rows["phase"] == phase, "class"].replace(UNROOFED).value_counts()
        first, *as_many = [(int(n), str(name)) for name, n in counts.items() if n == counts.iloc[0]]
        also = "".join(f" and {n:,} {name}" for n, name in as_many)
        texts.append(f"{first[0]:,} of {_cases(int(counts.sum()), phase)} {_is(first[0])} {first[1]}{also}")
    return ", ".join(texts)


def _gap(rows: pd.DataFrame) -> str:
    """Where the most time, and where the largest factor, lies between a case and what its roof allows."""
    behind = rows[rows["class"].isin(ROOFED) & (rows["fraction_of_attainable"] < 1 / TOLERANCE)]
    if behind.empty:
        roofed = rows["class"].isin(ROOFED).any()
        return f"no case is over {TOLERANCE - 1:.0%} behind its roof" if roofed else "no gap to a roof can be told"
    lost_us = behind["time_us"] - behind["attainable_us"]
    most = behind.iloc[int(lost_us.argmax())]
    far = behind.iloc[int(behind["fraction_of_attainable"].argmin())]
    device = f" on {most['device']}" if rows["device"].nunique() > 1 else ""
    text = (
        f"the most to gain is {duration(lost_us.max())} at {most['case_id']}{device}: {duration(most['time_us'])} "
        f"where {duration(most['attainable_us'])} is attainable, {times(1 / most['fraction_of_attainable'])}"
    )
    if far.name == most.name:
        return text
    return f"{text}; the largest factor, {times(1 / far['fraction_of_attainable'])}, at {far['case_id']}"


def _providers(rows: pd.DataFrame) -> str:
    """Who is faster where both ran in the same way: of the way and pair with the most cases first."""
    names = sorted(rows["provider"].unique())
    if len(names) == 1:
        return f"Only provider {names[0]} was measured, so there is none to compare it with"
    pairs = against(rows)
    pairs = pairs[pairs["same_work"] & ~pairs["suspect"]] if len(pairs) else pairs
    means = geomeans(pairs.assign(family="")) if len(pairs) else pairs
    if means.empty:
        return f"{listed(names)} share no case that can be compared"
    ordered = means.sort_values("count", ascending=False, kind="stable")
    differing = [name for name in ("device", *METHOD) if ordered[name].nunique() > 1]
    shown = [{str(k): v for k, v in row.items()} for row in ordered.head(MOST_PAIRS).to_dict("records")]
    more = f" ({len(ordered) - MOST_PAIRS} more in the table)" if len(ordered) > MOST_PAIRS else ""
    return "; ".join(_pair(row, differing) for row in shown) + more


def _pair(row: Mapping[str, Any], differing: Sequence[str]) -> str:
    ratio, count = float(row["geomean"]), int(row["count"])
    a, b = row["provider_a"], row["provider_b"]
    fast, slow, factor = (b, a, ratio) if ratio > 1 else (a, b, 1 / ratio)
    alike = abs(np.log(ratio)) < NEAR
    said = f"{a} and {b} are equally fast" if alike else f"{fast} is {times(factor)} as fast as {slow}"
    how = [row[n] or "no device named" if n == "device" else f"{n} {row[n] or 'not told'}" for n in differing]
    mean = f"geometric mean of {_cases(count)}" if count > 1 else "one case"
    return f"{said} ({'; '.join([mean, *how])})"


def _doubts(rows: pd.DataFrame) -> str:
    """How many cases are invalid or flagged."""
    found = {"invalid": int((rows["class"] == "invalid").sum())}
    found |= {word: int(rows["flags"].str.contains(word).sum()) for word in DOUBTS}
    told = [f"{n:,} {'flagged ' if name in DOUBTS else ''}{name}" for name, n in found.items() if n]
    return f"of {_cases(len(rows))} {listed(told)}" if told else f"none of {_cases(len(rows))} is invalid or flagged"


def _cases(count: int, kind: str = "") -> str:
    return f"{count:,} {kind + ' ' if kind else ''}case{'' if count == 1 else 's'}"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
