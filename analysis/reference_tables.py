"""The published measurements as they lie in the package `aiconfigurator-core`: which there are, and their columns.

Finds the package, lists its frameworks and versions, and reads tables. Leaves what the columns mean to
`analysis.reference_columns`, and records to `analysis.reference`. The package itself is never imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

PACKAGE = "aiconfigurator-core"
PACKAGE_VERSION = "0.12.0"
DOCUMENTED: Mapping[str, str] = {"sglang": "0.5.14", "trtllm": "1.3.0rc20", "vllm": "0.24.0"}
"""The versions of which it is known what was timed, on which data, and from which cache."""
INSTALL = f"pip install '{PACKAGE}=={PACKAGE_VERSION}'"

TABLES: Mapping[str, str] = {
    "gemm": "gemm/{framework}/{version}/gemm_perf.parquet",
    "attention_prefill": "attention/{framework}/{version}/context_attention_perf.parquet",
    "attention_decode": "attention/{framework}/{version}/generation_attention_perf.parquet",
    "mla_prefill": "mla/{framework}/{version}/context_mla_perf.parquet",
    "mla_decode": "mla/{framework}/{version}/generation_mla_perf.parquet",
}
"""Our name of a table -> its file. The *_module and wideep MLA tables time whole layers and are no kernels."""

SAME_FOR_ALL = ("framework", "version", "device", "op_name", "beam_width", "tp_size")
"""Columns that tell nothing about a row: one value in the whole table, or (tp_size) already in the head count."""


@dataclass(frozen=True, slots=True)
class System:
    """A device of the package: its directory, and the part by our name for it (in `analysis.peaks`)."""

    directory: str
    part: str


SYSTEMS: Mapping[str, System] = {
    "h100": System("h100_sxm", "H100 SXM5 80GB"),
    "h200": System("h200_sxm", "H200 SXM 141GB"),
}


class PackageMissingError(RuntimeError):
    """The package with the measurements is not installed, or is another version; the message says how to get it."""


def system_named(device: str) -> System:
    """The package's system for `h100` or `h200`. Raises ValueError with the known names."""
    if device not in SYSTEMS:
        raise ValueError(f"unknown device {device!r}; known: {', '.join(SYSTEMS)}")
    return SYSTEMS[device]


def data_directory() -> Path:
    """Where the package keeps its tables.

    Raises:
        PackageMissingError: not installed, or not the version whose columns this suite knows.
    """
    spec = importlib.util.find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        raise PackageMissingError(f"the published measurements are in the package {PACKAGE}: {INSTALL}")
    found = importlib.metadata.version(PACKAGE)
    if found != PACKAGE_VERSION:
        raise PackageMissingError(
            f"{PACKAGE} is {found}, and the meaning of its columns is known for {PACKAGE_VERSION}: {INSTALL}"
        )
    return Path(spec.submodule_search_locations[0]) / "systems" / "data"


_ORDER = {"dev": -4, "a": -3, "b": -2, "rc": -1, "post": 1}


def version_key(version: str) -> list[tuple[int, int]]:
    """Sorts versions as releases are: 1.0.dev1 < 1.0rc2 < 1.0 < 1.0.post1 < 1.0.1."""
    tokens = re.findall(r"\d+|[a-z]+", version.lower())
    key = [(2, int(token)) if token.isdigit() else (_ORDER.get(token, -5), 0) for token in tokens]
    return [*key, (0, 0)]


def available(device: str) -> dict[str, list[str]]:
    """Framework -> versions that have at least one of `TABLES`, oldest first."""
    root = data_directory() / system_named(device).directory
    found: dict[str, set[str]] = {}
    for pattern in TABLES.values():
        for path in root.glob(pattern.format(framework="*", version="*")):
            found.setdefault(path.parts[-3], set()).add(path.parts[-2])
    return {framework: sorted(found[framework], key=version_key) for framework in sorted(found)}


def chosen(device: str, frameworks: Sequence[str] = (), version: str = "") -> dict[str, str]:
    """Framework -> version to read: the latest of each by default.

    Args:
        frameworks: only these; all when empty.
        version: only frameworks that have this version.

    Raises:
        ValueError: an unknown device, framework or version; the message lists what is known.
        PackageMissingError: as `data_directory`.
    """
    known = available(device)
    for framework in frameworks:
        if framework not in known:
            raise ValueError(f"unknown framework {framework!r}; known for {device}: {', '.join(known)}")
    asked = {f: versions for f, versions in known.items() if not frameworks or f in frameworks}
    if not version:
        return {framework: versions[-1] for framework, versions in asked.items()}
    having = {framework: version for framework, versions in asked.items() if version in versions}
    if not having:
        names = "; ".join(f"{framework}: {', '.join(versions)}" for framework, versions in asked.items())
        raise ValueError(f"unknown version {version!r}; known for {device}: {names}")
    return having


@dataclass(frozen=True, slots=True)
class Table:
    """One published table.

    Attributes:
        name: a key of `TABLES`.
        rows: its columns as published, each measurement once.
        device_name: the driver's name for the device, as the table gives it.
        repeats: rows that measured the same thing again.
    """

    name: str
    framework: str
    version: str
    rows: pd.DataFrame
    device_name: str
    repeats: int


def read_tables(device: str, framework: str, version: str) -> list[Table]:
    """The tables that a framework's version has."""
    root = data_directory() / system_named(device).directory
    tables = []
    for name, pattern in TABLES.items():
        path = root / pattern.format(framework=framework, version=version)
        if path.exists():
            tables.append(_read(path, name, framework, version))
    return tables


def _read(path: Path, name: str, framework: str, version: str) -> Table:
    rows = pd.read_parquet(path)
    device_name = str(rows["device"].iloc[0])
    rows = rows.drop(columns=[column for column in SAME_FOR_ALL if column in rows])
    once = fastest_of_repeats(rows)
    return Table(name, framework, version, once, device_name, len(rows) - len(once))


def fastest_of_repeats(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each thing measured, the fastest where it was measured again: a disturbance only adds time."""
    key = [column for column in rows if column != "latency"]
    if not rows.duplicated(key).any():
        return rows
    return rows.sort_values("latency", kind="stable").drop_duplicates(key).sort_index().reset_index(drop=True)
