"""`report.md`: the page as text, with the same headline, tables, sections and provenance, and links to the pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.methods import METHOD
from analysis.page.against import NOTE, against, geomeans
from analysis.page.headline import Headline
from analysis.page.provenance import Caution, Rows, caution_lines
from analysis.page.sections import Section
from analysis.tables import Table, family_lines, markdown, points_tables, ratio

HOW = ("device", *METHOD)
"""Told where it is not the same everywhere."""
MOST_ROWS = 200
"""Rows of a table; the page has all."""


def report_md(
    title: str,
    headline: Headline,
    points: pd.DataFrame,
    *,
    provenance: Mapping[str, Rows],
    cautions: Sequence[Caution] = (),
    sections: Sequence[Section] = (),
    statuses: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """The whole text, of what the other modules of this package made.

    Args:
        title: the heading.
        headline, provenance, cautions, sections: as those modules give them.
        points: as `analysis.roofline.points` gives them.
        statuses, notes: lines on how the cases ended, and on roofs that came from another run.
    """
    counts = ", ".join(f"{n:,} {name}" for name, n in headline.counts.items())
    parts = [f"# {title}", f"{headline.device}; {headline.date}; {headline.commit}."]
    parts += [f"**{counts}**"] if counts else []
    parts += [bullets(headline.sentences), bullets([*statuses, *notes])]
    parts += [] if points.empty else ["![Roofline](roofline.png)", "The same as vectors: [roofline.svg](roofline.svg)."]
    parts += ["## What to doubt", bullets(caution_lines(cautions)) if cautions else "Nothing is flagged."]
    if len(points):
        parts += [_shown(table) for table in against_tables(points)]
        parts += ["## Families", bullets(family_lines(points))]
        parts += [_shown(table) for table in points_tables(points)]
    parts += [f"## {section.title}\n\n{_lowered(section.text)}" for section in sections]
    parts.append("## What this rests on")
    parts += [
        f"### Run {run}\n\n{bullets(f'{name}: {value}' for name, value in rows)}" for run, rows in provenance.items()
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def against_tables(points: pd.DataFrame) -> list[Table]:
    """Provider against provider: the means a family, then the ratio at each case with its interval."""
    pairs = against(points)
    if pairs.empty:
        return []
    means = geomeans(pairs)
    work = means["same_work"].map({True: "the same", False: "differs"})
    of_families = {
        "family": means["family"], **{name: means[name] for name in HOW if means[name].nunique() > 1},
        "A / B": means["provider_a"] + " / " + means["provider_b"], "work timed": work,
        "geometric mean": means["geomean"].map(ratio), "cases of both": means["count"].astype("str"),
        "B surely faster": means["faster"].astype("str"), "B surely slower": means["slower"].astype("str"),
    }  # fmt: skip
    of_cases = {
        "case": pairs["case"], **{name: pairs[name] for name in HOW if pairs[name].nunique() > 1},
        "A / B": pairs["provider_a"] + " / " + pairs["provider_b"], "ratio": pairs["ratio"].map(ratio),
        "low": pairs["low"].map(ratio), "high": pairs["high"].map(ratio),
    }  # fmt: skip
    return [
        _table("Geometric mean of the ratio, a family", of_families, numbers=4),
        _table("Provider against provider", of_cases, numbers=3, note=NOTE),
    ]


def bullets(lines: Iterable[str]) -> str:
    """A list; a line break in a line would end it."""
    return "".join(f"* {' '.join(line.split())}\n" for line in lines)


def _table(title: str, texts: Mapping[str, pd.Series[Any]], *, numbers: int, note: str = "") -> Table:
    rows = list(zip(*(series.astype("str").tolist() for series in texts.values()), strict=True))
    return Table(title=title, columns=tuple(texts), rows=rows, numeric=frozenset(list(texts)[-numbers:]), note=note)


def _shown(table: Table) -> str:
    text = markdown(replace(table, rows=table.rows[:MOST_ROWS]))
    more = len(table.rows) - MOST_ROWS
    return f"{text}\n{more:,} more rows are in report.html, which exports them as CSV." if more > 0 else text


def _lowered(text: str) -> str:
    """A page's text as a part of another: no title, headings one level down, pictures left where they are."""
    lines = text.split("\n")
    kept = [line for i, line in enumerate(lines) if not (line.startswith("# ") and not any(lines[:i]))]
    shown = [line for line in kept if not line.startswith("![")]
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in shown)
