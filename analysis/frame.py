"""Records as columns: one row a record, the sizes as whole numbers, the times as median and interval.

Everything after this works on columns. The environments stay beside the frame, by run, since a device is a set of
properties and no column.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.flags import drift_of
from analysis.methods import METHOD
from bench.record import Environment, Record, RecordError, read_records
from bench.stopping import median_interval
from kernels.work import AXES

TILE = ("block_m", "block_n")
"""What a record's configuration tells of a matmul's tile."""
WORK = ("flops", "bytes", "overhead_bytes")
NO_INTERVAL = (float("nan"),) * 3
ROOF_OPS = ("peak_matmul", "peak_read", "peak_copy", "empty_launch")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Records of one or more files.

    Attributes:
        frame: one row a record.
        environments: run id -> Environment.
    """

    frame: pd.DataFrame
    environments: dict[str, Environment]

    def environment_of(self, device: str) -> Environment:
        """The environment of the first run on a device (as the frame's `device` column names it)."""
        run = self.frame.loc[self.frame["device"] == device, "run"].iloc[0]
        return self.environments[run]


def load(paths: Sequence[Path], *, untold_schema: bool = False) -> Loaded:
    """Reads records files, or directories that hold a `records.jsonl`; `untold_schema` lets a schema be missing.

    Raises:
        RecordError: a file that cannot be used whole, or no file at all.
    """
    if not paths:
        raise RecordError("no records given")
    files = [path / "records.jsonl" if path.is_dir() else path for path in paths]
    with _no_collection():
        return _columns([r for file in files for r in read_records(file, untold_schema=untold_schema)])


def _columns(records: Sequence[Record]) -> Loaded:
    environments = {r.run: r.environment for r in records if r.environment is not None}
    frame = pd.DataFrame({**_case_columns(records), **_time_columns(records), **_told_columns(records)})
    # The last record of a case wins: a run appended to the same file measured it again.
    key = ["case_id", "device", *METHOD, "run"]
    return Loaded(frame.drop_duplicates(key, keep="last", ignore_index=True), environments)


@contextmanager
def _no_collection() -> Iterator[None]:
    """100,000 records are millions of objects and none is garbage: nothing looks for any in the meantime."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def device_label(environment: Environment | None) -> str:
    """The name a device goes by in tables and series; '' where a record tells none."""
    if environment is None:
        return ""
    return environment.device_name or ("CPU" if environment.device_type == "cpu" else "")


def config_key(config: Mapping[str, Any]) -> str:
    """A configuration as text, the same whatever the order of its parameters."""
    return json.dumps(dict(config), sort_keys=True) if config else "{}"


def model_of(sources: Sequence[str]) -> str:
    """The models whose layers a case stands for, from sources like `llama-3.1-8b: qkv_proj, tp 1`."""
    return "+".join(dict.fromkeys(s.split(":")[0] for s in sources if ":" in s))


def _cubins(record: Record) -> str:
    """The kernels that a call launched, each with what it is in binary; '' where none is told."""
    launched = record.kernel.get("kernels", ())
    return "; ".join(f"{kernel.get('name')} {kernel.get('cubin_sha256')}" for kernel in launched)


def _case_columns(records: Sequence[Record]) -> dict[str, Any]:
    """What the cases are. Column by column: a dictionary for each of 100,000 records would cost a second."""
    cases = [record.case for record in records]
    sources = [case.get("source", ()) for case in cases]
    return {
        "run": [record.run for record in records],
        "case_id": [case["id"] for case in cases],
        **{name: [case[name] for case in cases] for name in ("op", "provider", "phase", "dtype")},
        "technique": [case.get("technique", "") for case in cases],
        **_size_columns([case.get("axes", {}) for case in cases]),
        "model": [model_of(source) for source in sources],
        "source": ["; ".join(source) for source in sources],
        **{name: [case.get(name, "") for case in cases] for name in ("weight_dtype", "kv_dtype", "scale")},
    }


def _size_columns(axes: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    used = {axis for sizes in axes for axis in sizes}
    none = pd.array([None] * len(axes), dtype="Int64")
    return {
        axis: pd.array([sizes.get(axis) for sizes in axes], dtype="Int64") if axis in used else none for axis in AXES
    }


def _time_columns(records: Sequence[Record]) -> dict[str, Any]:
    """How the cases ended, their times and their declared work."""
    times = [record.times_us for record in records]
    intervals = [median_interval(samples) if samples else NO_INTERVAL for samples in times]
    works = [record.work for record in records]
    return {
        "status": [record.status.value for record in records],
        "detail": [record.detail for record in records],
        **{name: [of[i] for of in intervals] for i, name in enumerate(("time_us", "low_us", "high_us"))},
        "samples": [len(samples) for samples in times],
        "drift": [drift_of(samples) for samples in times],
        **{name: np.array([work.get(name) for work in works], dtype=float) for name in WORK},
        "counting": [work.get("counting") for work in works],
    }


def _told_columns(records: Sequence[Record]) -> dict[str, list[Any]]:
    """What the records tell of how they were made."""
    devices = {id(record.environment): record.environment for record in records}
    labels = {key: device_label(environment) for key, environment in devices.items()}
    types = {key: environment.device_type if environment else "" for key, environment in devices.items()}
    return {
        **{name: [getattr(record, name) for record in records] for name in ("timer", "cache", "regime", "launch")},
        # What was published tells its inputs in `data`: each source has its own.
        "inputs": ["" if r.timer == "published" else str(r.data.get("distribution", "")) for r in records],
        "stop_reason": [record.stop_reason for record in records],
        **{name: ["; ".join(getattr(record, name)) for record in records] for name in ("includes", "flags")},
        "data": [_pairs(record.data) for record in records],
        "kernel": [_pairs(record.kernel) for record in records],
        "device": [labels[id(record.environment)] for record in records],
        "device_type": [types[id(record.environment)] for record in records],
        **{name: [float(record.config.get(name, "nan")) for record in records] for name in TILE},
        "config": [config_key(record.config) for record in records],
        "asked_inputs": [str(record.asked.get("inputs", "")) for record in records],
        **{name: [getattr(record, name) for record in records] for name in ("schema", "source_sha256")},
        "cubins": [_cubins(record) for record in records],
    }


def _pairs(told: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}={value}" for name, value in told.items())
