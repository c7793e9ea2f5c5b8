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

import pandas as pd

from analysis.flags import drift_of
from analysis.methods import METHOD
from bench.record import Environment, Record, RecordError, read_records
from bench.stopping import median_interval
from kernels.work import AXES

TILE = ("block_m", "block_n")
"""What a record's configuration tells of a matmul's tile."""
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
    rows = [_row(record) for record in records]
    frame = pd.DataFrame({name: [row[name] for row in rows] for name in rows[0]})
    for name in TILE:
        frame[name] = [float(record.config.get(name, "nan")) for record in records]
    frame["config"] = [config_key(record.config) for record in records]
    frame["asked_inputs"] = [str(record.asked.get("inputs", "")) for record in records]
    frame["schema"] = [record.schema for record in records]
    frame["source_sha256"] = [record.source_sha256 for record in records]
    frame["cubins"] = [_cubins(record) for record in records]
    for axis in AXES:
        frame[axis] = frame[axis].astype("Int64")
    for count in ("flops", "bytes", "overhead_bytes"):
        frame[count] = frame[count].astype("float64")
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
    return json.dumps(dict(config), sort_keys=True)


def model_of(sources: Sequence[str]) -> str:
    """The models whose layers a case stands for, from sources like `llama-3.1-8b: qkv_proj, tp 1`."""
    return "+".join(dict.fromkeys(s.split(":")[0] for s in sources if ":" in s))


def _cubins(record: Record) -> str:
    """The kernels that a call launched, each with what it is in binary; '' where none is told."""
    launched = record.kernel.get("kernels", ())
    return "; ".join(f"{kernel.get('name')} {kernel.get('cubin_sha256')}" for kernel in launched)


def _row(record: Record) -> dict[str, object]:
    case, work = record.case, record.work
    median, low, high = median_interval(record.times_us) if record.times_us else (float("nan"),) * 3
    axes = case.get("axes", {})
    return {
        "run": record.run,
        "case_id": case["id"],
        "op": case["op"],
        "provider": case["provider"],
        "phase": case["phase"],
        "dtype": case["dtype"],
        "technique": case.get("technique", ""),
        **{axis: axes.get(axis) for axis in AXES},
        "model": model_of(case.get("source", ())),
        "source": "; ".join(case.get("source", ())),
        **{storage: case.get(storage, "") for storage in ("weight_dtype", "kv_dtype", "scale")},
        "status": str(record.status),
        "detail": record.detail,
        "time_us": median,
        "low_us": low,
        "high_us": high,
        "samples": len(record.times_us),
        "drift": drift_of(record.times_us),
        **{count: work.get(count) for count in ("flops", "bytes", "overhead_bytes", "counting")},
        "timer": record.timer,
        "cache": record.cache,
        "regime": record.regime,
        "launch": record.launch,
        # What was published tells its inputs in `data`: each source has its own.
        "inputs": "" if record.timer == "published" else str(record.data.get("distribution", "")),
        "stop_reason": record.stop_reason,
        "includes": "; ".join(record.includes),
        "flags": "; ".join(record.flags),
        "data": "; ".join(f"{k}={v}" for k, v in record.data.items()),
        "kernel": "; ".join(f"{k}={v}" for k, v in record.kernel.items()),
        "device": device_label(record.environment),
        "device_type": record.environment.device_type if record.environment else "",
    }
