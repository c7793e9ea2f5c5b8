"""What two times must share to be compared: the conditions of a record, field by field, as columns of text.

A condition that both sides tell and that differs makes a case not comparable, unless its field is allowed. One that
only one side tells is named in a warning: an older record has not what a newer one has. What the machine calls itself
(index, UUID), its commit and its measured clocks are no conditions: they differ between equal machines, or are the
very thing compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.frame import Loaded
from bench.record import Environment

ENVIRONMENT: Mapping[str, str] = {
    "device_type": "device", "device_name": "device", "compute_capability": "device", "mig": "device",
    "memory_bytes": "memory", "ecc": "memory", "sm_count": "sm_count", "threads": "sm_count",
    "power_limit_w": "power", "driver": "driver",
}  # fmt: skip
"""Field of an Environment -> the FIELD that allows it to differ."""
VERSIONS = ("python", "cuda", "torch", "triton", "ptxas")
ROW: Mapping[str, str] = {
    "timer": "timer", "cache": "cache", "regime": "regime", "launch": "launch", "asked_inputs": "inputs",
    "data": "inputs", "dtype": "dtype", "weight_dtype": "dtype", "kv_dtype": "dtype", "scale": "dtype",
    "counting": "counting", "includes": "includes",
}  # fmt: skip
"""Column of `analysis.frame` -> the FIELD that allows it to differ."""
FIELDS = tuple(dict.fromkeys([*ENVIRONMENT.values(), *ROW.values(), "packages"]))
"""What `--allow` knows."""
NAMED = ("schema",)
"""Columns that are named where one side does not tell them; where both do they are equal, or reading refused them."""
PREFIX = "on:"
"""Of the columns that hold conditions."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A condition that differs, or that one side does not tell, in some cases.

    Attributes:
        name: of the condition: `packages.torch`.
        field: what allows it.
        baseline, candidate: the values of the first such case; '' is not told.
        cases: how many.
    """

    name: str
    field: str
    baseline: str
    candidate: str
    cases: int

    @property
    def told(self) -> bool:
        """Whether both sides tell it."""
        return bool(self.baseline and self.candidate)

    def __str__(self) -> str:
        return f"{self.name}: {self.baseline or 'not told'} -> {self.candidate or 'not told'}"


def field_of(name: str) -> str:
    """The FIELD of a condition."""
    return "packages" if name.startswith("packages.") else {**ENVIRONMENT, **ROW}.get(name, name)


def conditions(loaded: Loaded) -> pd.DataFrame:
    """One column of text a condition, named with PREFIX, one row a record; '' where it is not told."""
    frame = loaded.frame
    environments = {run: _told(environment) for run, environment in loaded.environments.items()}
    names = dict.fromkeys(name for told in environments.values() for name in told)
    runs = frame["run"]
    columns = {name: runs.map({run: told.get(name, "") for run, told in environments.items()}) for name in names}
    columns |= {name: frame[name].map({v: _text(v) for v in frame[name].unique()}) for name in (*ROW, *NAMED)}
    return pd.DataFrame(columns, index=frame.index, dtype=object).add_prefix(PREFIX)


def _told(environment: Environment) -> dict[str, str]:
    told = {name: _text(getattr(environment, name)) for name in ENVIRONMENT}
    versions = {name: _text(getattr(environment, name)) for name in VERSIONS} | dict(environment.packages)
    return told | {f"packages.{name}": str(version) for name, version in versions.items()}


def _text(value: object) -> str:
    return "" if value is None or value is pd.NA or value != value else str(value)


def compared_conditions(
    cases: pd.DataFrame, allowed: Collection[str], suffixes: tuple[str, str] = ("_a", "_b")
) -> tuple[pd.Series[str], list[Difference]]:
    """What refuses each case, and every condition that differs or is told by one side alone.

    Args:
        cases: one row a case, the conditions of both sides with these suffixes.
        allowed: FIELDs that may differ.

    Returns:
        A text a case, '' where nothing refuses it; the differences.
    """
    stems = [c.removesuffix(suffixes[0]) for c in map(str, cases) if c.startswith(PREFIX) and c.endswith(suffixes[0])]
    reasons = pd.Series("", index=cases.index, dtype="object")
    differences: list[Difference] = []
    for stem in stems:
        name = stem.removeprefix(PREFIX)
        a, b = (cases[stem + suffix].fillna("").to_numpy(dtype=object) for suffix in suffixes)
        unequal = np.asarray(a != b, dtype=bool)
        told = np.asarray((a != "") & (b != ""), dtype=bool)
        for which in (unequal & told, unequal & ~told):
            if which.any():
                first = int(which.argmax())
                found = Difference(name, field_of(name), a[first], b[first], int(which.sum()))
                differences.append(found)
        refused = unequal & told
        if refused.any() and field_of(name) not in allowed:
            text = pd.Series([f"{name}: {x} -> {y}" for x, y in zip(a[refused], b[refused], strict=True)])
            before = reasons[refused]
            reasons[refused] = (before + np.where(before == "", "", "; ") + text.to_numpy()).to_numpy()
    return reasons, differences


def told_lines(differences: Sequence[Difference], allowed: Collection[str]) -> list[str]:
    """One warning a condition: refused and by what allowed, allowed, or told by one side alone."""
    lines = []
    for found in differences:
        if not found.told:
            lines.append(f"{found} ({found.cases} cases): told by one side alone, so not compared")
        elif found.field in allowed:
            lines.append(f"{found} ({found.cases} cases): let through by --allow {found.field}")
        else:
            lines.append(f"{found} ({found.cases} cases) is not comparable; --allow {found.field} lets it through")
    return lines
