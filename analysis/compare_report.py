"""The files of a comparison: `comparison.md`, `comparison.csv`, and the two-run picture as PNG and SVG.

Which dtype and shape class got slower stands in a table of its own, since 20,000 cases are read by nobody. Verdicts
are left to `analysis.compare`, the picture to `analysis.two_runs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.compare import Comparison
from analysis.compare_output import summary, table
from analysis.files import write_all
from analysis.outputs import images
from analysis.roofline import Device
from analysis.tables import Table, change, markdown
from analysis.verdicts import COMPARED, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

M_CLASSES = ((16, "M <= 16"), (64, "M 17 to 64"), (512, "M 65 to 512"), (4096, "M 513 to 4096"))
LARGEST = "M > 4096"
NO_M = "all"
"""Shape class of an op without an M."""
MOST_CASES = 40
"""Cases of a verdict that the page shows; the CSV has all."""
COUNTED = (Verdict.SLOW, Verdict.FAST, Verdict.SAME, Verdict.AMBIGUOUS)


def groups(cases: pd.DataFrame) -> pd.DataFrame:
    """How many cases of each device, op, dtype and shape class have which verdict.

    Args:
        cases: as `analysis.compare.Comparison` holds them.

    Returns:
        device, op, dtype (as case ids have it: with what is stored otherwise), shape, cases, one column a verdict of
        COUNTED, and geomean: of candidate over baseline.
    """
    both = cases[cases["verdict"].isin(COMPARED)]
    rows = both.assign(shape=shape_class(both), dtype=both["case_id"].str.split("/").str[2], log=np.log(both["ratio"]))
    rows = rows.assign(**{verdict.value: rows["verdict"] == verdict for verdict in COUNTED})
    found = rows.groupby(["device", "op", "dtype", "shape"], sort=False, dropna=False).agg(
        cases=("case_id", "size"), **{v.value: (v.value, "sum") for v in COUNTED}, geomean=("log", "mean"),
        largest=("M", "max"),
    )  # fmt: skip
    ordered = found.reset_index().sort_values(["device", "op", "dtype", "largest"], kind="stable", ignore_index=True)
    return ordered.assign(geomean=np.exp(ordered["geomean"])).drop(columns="largest")


def shape_class(cases: pd.DataFrame) -> pd.Series[str]:
    """`M 17 to 64` of a matmul, NO_M of an op without an M."""
    limits, names = [limit for limit, _ in M_CLASSES], [name for _, name in M_CLASSES]
    sizes = cases["M"].astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    classes = np.array([*names, LARGEST], dtype=object)[np.searchsorted(limits, sizes)]
    return pd.Series(np.where(np.isnan(sizes), NO_M, classes), index=cases.index, dtype="str")


def write_comparison(
    comparison: Comparison, devices: Sequence[Device], directory: Path, sides: Sequence[str]
) -> list[str]:
    """Writes the four files; a line for each that could not be.

    Args:
        comparison: what came out.
        devices: those of the candidate.
        directory: made when missing.
        sides: a line on each side: runs, dates, versions.
    """

    @cache
    def figure() -> Figure:
        from analysis.two_runs import two_runs_figure

        return two_runs_figure(comparison.cases, devices, "Baseline and candidate", [*sides, *comparison.warnings])

    made = {
        "comparison.csv": lambda: comparison.cases.to_csv(index=False, lineterminator="\n"),
        "comparison.md": lambda: page(comparison, sides),
        **images("comparison", figure),
    }
    return write_all({directory / name: make for name, make in made.items()})


def page(comparison: Comparison, sides: Sequence[str]) -> str:
    """`comparison.md`."""
    lines = ["# Baseline and candidate", "", f"**{summary(comparison)}** (exit code {comparison.code})", ""]
    lines += [f"* {line}" for line in [*sides, *comparison.warnings]]
    lines += ["", "![Old and new rates under the roofs](comparison.png)", ""]
    parts = [markdown(_groups_table(groups(comparison.cases)), most=MOST_CASES)]
    for verdict in Verdict:
        rows = comparison.cases[comparison.cases["verdict"] == verdict]
        if len(rows):
            title = f"{verdict}: {len(rows)} cases"
            parts.append(markdown(table(rows.head(MOST_CASES), title)))
            if len(rows) > MOST_CASES:
                parts.append(f"{len(rows) - MOST_CASES} more in `comparison.csv`, the largest changes stand here.\n")
    return "\n".join(lines) + "\n" + "\n".join(parts)


def _groups_table(rows: pd.DataFrame) -> Table:
    texts = {name: rows[name].astype("str") for name in ("device", "op", "dtype", "shape", "cases")}
    texts |= {v.value: rows[v.value].astype("str") for v in COUNTED}
    texts["geomean of the change"] = (rows["geomean"] - 1).map(change)
    return Table(
        title="Which dtype and shape class",
        columns=tuple(texts),
        rows=list(zip(*(series.tolist() for series in texts.values()), strict=True)),
        numeric=frozenset(list(texts)[4:]),
    )
