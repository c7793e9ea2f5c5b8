"""The tables and lines of a report, as Markdown and for the terminal: providers, families, points, and what was used.

Points measured in different ways (`analysis.methods`) have tables of their own. A column that is the same in every row
of a table (device, cold or flush) is said once below; where it differs it is a column. Fractions become percent here
and nowhere before. What is compared is left to `analysis.providers`, the sentences to `analysis.families`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.families import families
from analysis.flags import DRIFT
from analysis.frame import ROOF_OPS
from analysis.methods import METHOD, by_method
from analysis.peaks import accumulate_of
from analysis.providers import ProviderTable, geomeans, provider_table, workload_of
from analysis.roofline import Device, Roofs

if TYPE_CHECKING:
    from rich.table import Table as RichTable

HOW = ("device", *METHOD)
"""How and on what a row was measured."""
MOST_ROWS = 5_000
"""Rows of one table in a Markdown file; the CSV beside it has all."""
COUNTED = (
    "useful FLOPs (multiply-add = 2, unmasked pairs only, no softmax), compulsory bytes (each input and output once)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Text in columns. `numeric` names the columns that are aligned right."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    numeric: frozenset[str] = field(default=frozenset())
    note: str = ""


def number(value: Any) -> str:
    """Four significant digits, whole above 1,000, '-' for what is not there."""
    if value is None or pd.isna(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 or math.isinf(value) else f"{value:.4g}"


def percent(fraction: Any) -> str:
    """A fraction as printed: `61 %`, with a decimal below 10 %."""
    if fraction is None or pd.isna(fraction):
        return "-"
    return f"{100 * fraction:.0f} %" if fraction >= 0.0995 else f"{100 * fraction:.1f} %"


def ratio(value: Any) -> str:
    """A ratio as printed: `1.24x`."""
    return "-" if value is None or pd.isna(value) else f"{value:.2f}x"


def change(fraction: Any) -> str:
    """A change as printed: `+0.3 %`."""
    return "-" if fraction is None or pd.isna(fraction) else f"{100 * fraction:+.1f} %"


def differing(rows: pd.DataFrame) -> list[str]:
    """The columns of HOW that are not the same in every row."""
    return [c for c in HOW if rows[c].nunique(dropna=False) > 1]


def providers_table(compared: ProviderTable) -> Table:
    """Provider against provider: one row a workload, times first, then ratios."""
    if not compared.baseline:
        return Table(title="Provider against provider", columns=(), rows=[], note=compared.note)
    others = [p for p in compared.providers if p != compared.baseline]
    texts: dict[str, pd.Series[Any]] = {c: compared.times[c] for c in ("op", "workload", *differing(compared.times))}
    texts |= {f"{p} us": compared.times[p].map(number) for p in compared.providers}
    ratios = compared.ratios()
    texts |= {f"{compared.baseline}/{p}": ratios[p].map(ratio) for p in others}
    return _table("Provider against provider", texts, note=compared.note)


def geomeans_table(compared: ProviderTable) -> Table:
    """The ratios' geometric means per op, each over the workloads that both ran."""
    means = geomeans(compared)
    texts: dict[str, pd.Series[Any]] = {
        c: means[c] for c in ("op", *(["device"] if means["device"].nunique() > 1 else []))
    }
    texts["ratio"] = means["baseline"] + "/" + means["provider"]
    texts |= {"geometric mean": means["geomean"].map(ratio), "workloads of both": means["count"].astype("str")}
    return _table("Geometric mean of the ratio", texts)


def compared_tables(points: pd.DataFrame) -> list[Table]:
    """Provider against provider and the means, for each way of measuring; one line where nothing can be compared."""
    if not any(provider_table(rows).baseline for _, rows in by_method(points)):
        return [providers_table(provider_table(points))]
    made = []
    for method, rows in by_method(points):
        compared = provider_table(rows)
        made += [_headed(providers_table(compared), method)]
        made += [_headed(geomeans_table(compared), method)] if compared.baseline else []
    return made


def points_tables(points: pd.DataFrame) -> list[Table]:
    """The points of each way of measuring."""
    return [_headed(points_table(rows), method) for method, rows in by_method(points)]


def _headed(table: Table, method: str) -> Table:
    return replace(table, title=f"{table.title} ({method})") if method else table


def points_table(points: pd.DataFrame) -> Table:
    """Points with their fractions, their class and the sentence that says why."""
    texts: dict[str, pd.Series[Any]] = {c: points[c] for c in ("op", "provider", "phase")}
    texts["workload"] = workload_of(points)
    texts |= {c: points[c] for c in differing(points)}
    shown: dict[str, tuple[str, Callable[[Any], str]]] = {
        "us": ("time_us", number),
        "FLOP/byte": ("intensity_flops_per_byte", number),
        "TFLOP/s": ("tflops_per_s", number),
        "GB/s": ("gb_per_s", number),
        "of datasheet": ("fraction_of_datasheet", percent),
        "of measured": ("fraction_of_measured", percent),
        "of attainable": ("fraction_of_attainable", percent),
        "drift": ("drift", change),
    }
    texts |= {name: points[column].map(form) for name, (column, form) in shown.items()}
    texts |= {c: points[c] for c in ("flags", "class", "reason") if c != "flags" or (points[c] != "").any()}
    return _table("Points", texts)


def _table(title: str, texts: dict[str, pd.Series[Any]], note: str = "") -> Table:
    words = {"op", "provider", "phase", "workload", "flags", "class", "reason", "ratio", *HOW}
    rows = list(zip(*(series.astype("str").tolist() for series in texts.values()), strict=True))
    return Table(title=title, columns=tuple(texts), rows=rows, numeric=frozenset(texts) - words, note=note)


def markdown(table: Table, most: int = MOST_ROWS) -> str:
    """The table as Markdown, with a line that says how many rows were left out."""
    lines = [f"## {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    if table.rows:
        lines += [_line(table.columns), _line(["---:" if c in table.numeric else "---" for c in table.columns])]
        lines += [_line(row) for row in table.rows[:most]]
    if len(table.rows) > most:
        lines += ["", f"{len(table.rows) - most} more rows are in points.csv."]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def for_terminal(table: Table, most: int) -> RichTable:
    """The first `most` rows for a console, without the sentences, which are wider than any console."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
    shown = [i for i, column in enumerate(table.columns) if column != "reason"]
    for i in shown:
        right = table.columns[i] in table.numeric
        made.add_column(Text(table.columns[i]), justify="right" if right else "left", overflow="fold")
    for row in table.rows[:most]:
        made.add_row(*(Text(row[i]) for i in shown))
    return made


def family_lines(points: pd.DataFrame) -> list[str]:
    """One sentence a family, with the device where there are several."""
    found = families(points)
    if found["device"].nunique() < 2:
        return found["sentence"].tolist()
    return (found["device"].replace("", "no device named") + ": " + found["sentence"]).tolist()


def provenance(points: pd.DataFrame, devices: Sequence[Device]) -> list[str]:
    """What the figures rest on: device, chosen peaks and their sources, counting rule, how it was measured."""
    lines = []
    for device in devices:
        known = device.recognised.startswith(device.name)
        lines.append(device.recognised if known else f"{device.name}: {device.recognised}")
        dtypes = sorted(points.loc[points["device"] == device.name, "dtype"].unique())
        if device.datasheet and device.peaks:
            lines.append(f"datasheet roofs of {device.peaks.device}, dense: {_roofs(device.datasheet, dtypes)}")
        if device.measured:
            floor = f"; launch floor {device.measured.launch_us:.3g} us; {device.measured.source}"
            lines.append(f"measured roofs: {_roofs(device.measured, dtypes)}{floor}")
        lines += [f"note: {text}" for text in device.notes]
    if len(points):
        drifted = points["flags"].str.contains("drift")
        if drifted.any():
            told = f"flagged drift: the last tenth of the samples lies over {DRIFT:.0%} from the first"
            lines.append(f"{told} at {int(drifted.sum())} of {len(points)} points")
        versions = ", ".join(sorted(points["counting"].dropna().astype("Int64").astype("str").unique()))
        lines.append(f"counting version {versions or 'not recorded'}: {COUNTED}")
        same = [c for c in HOW[1:] if c not in differing(points)]
        told = ", ".join(f"{c} {points[c].iloc[0] or 'not told'}" for c in same)
        lines += [f"measured with: {told}"] if same else []
    return lines


def _roofs(roofs: Roofs, dtypes: Sequence[str]) -> str:
    known = [d for d in dtypes if d in roofs.tflops] or list(roofs.tflops)
    rates = ", ".join(f"{d} {roofs.tflops[d]:.4g} TFLOP/s ({accumulate_of(d)} accumulate)" for d in known)
    unknown = [d for d in dtypes if d not in roofs.tflops]
    return f"{rates}, DRAM {roofs.dram_gb_per_s:.4g} GB/s" + (f"; none for {', '.join(unknown)}" if unknown else "")


def status_lines(frame: pd.DataFrame) -> list[str]:
    """`12 OK, 3 SKIPPED`, then each reason once with how often it came; the roofs' own records are counted apart."""
    is_roof = frame["op"].isin(ROOF_OPS)
    cases = frame[~is_roof]
    counts = cases["status"].value_counts()
    told = ", ".join(f"{counts.get(s, 0)} {s}" for s in dict.fromkeys(["OK", *counts.index]))
    lines = [told + (f" (and {int(is_roof.sum())} roof records)" if is_roof.any() else "")]
    others = cases[cases["status"] != "OK"]
    reasons = others.groupby(["status", "detail"], sort=False).size().reset_index(name="count")
    lines += (reasons["count"].astype("str") + " " + reasons["status"] + ": " + reasons["detail"]).tolist()
    return lines


def report_markdown(
    points: pd.DataFrame, devices: Sequence[Device], title: str, statuses: Sequence[str] = (), notes: Sequence[str] = ()
) -> str:
    """The whole `table.md`."""
    parts = [f"# {title}\n", _bullets([*statuses, *notes])]
    parts += [markdown(table) for table in compared_tables(points)]
    parts += ["## Families\n", _bullets(family_lines(points))]
    parts += [markdown(table) for table in points_tables(points)]
    parts += ["## What this rests on\n", _bullets(provenance(points, devices))]
    return "\n".join(part for part in parts if part)


def _bullets(lines: Sequence[str]) -> str:
    return "".join(f"* {line}\n" for line in lines)
