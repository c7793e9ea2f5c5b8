"""Published measurements of H100 and H200 as records: the standard shapes, or every row as columns.

The package `aiconfigurator-core` (Apache-2.0) holds latencies that TensorRT-LLM, vLLM and SGLang were measured to
have on real GPUs. A provider is a framework, its version stands in the run's environment. Only rows really measured
are taken: a standard shape that no framework measured is absent, and counted. What the columns mean is left to
`analysis.reference_gemm` and `analysis.reference_attention`, classes and figures to the rest of the analysis.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis import peaks
from analysis.frame import Loaded, config_key, model_of
from analysis.reference_attention import attention_columns, mla_columns
from analysis.reference_gemm import gemm_columns, launches_per_sample
from analysis.reference_tables import (
    DOCUMENTED,
    PACKAGE,
    PACKAGE_VERSION,
    Table,
    chosen,
    read_tables,
    system_named,
)
from bench.record import SCHEMA_VERSION, Environment, Record, Status, header_json
from kernels.work import AXES

SHAPES = Path(__file__).parent / "data" / "standard_shapes.csv"
READERS = {
    "gemm": gemm_columns,
    "attention_prefill": attention_columns,
    "attention_decode": attention_columns,
    "mla_prefill": mla_columns,
    "mla_decode": mla_columns,
}
_HEADS = ("batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim")
SHAPE_AXES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("M", "N", "K"),
    "attention_prefill": _HEADS,
    "attention_decode": _HEADS,
    "mla_prefill": _HEADS,
    "mla_decode": ("batch", "q_len", "kv_len", "q_heads"),
}
MODELS = {"llama3-8b": "llama-3.1-8b", "llama3-70b": "llama-3.1-70b"}
"""The standard shapes' names of models -> those of `kernels.models`, where they differ."""
COLUMNS = (
    "run", "case_id", "op", "provider", "phase", "dtype", "technique", *AXES, "model", "source", "weight_dtype",
    "kv_dtype", "scale", "status", "detail", "time_us", "low_us", "high_us", "samples", "drift", "flops", "bytes",
    "overhead_bytes", "counting", "timer", "cache", "regime", "launch", "inputs", "stop_reason", "includes", "flags",
    "data", "kernel", "device", "device_type", "config", "asked_inputs", "schema", "source_sha256", "cubins",
)  # fmt: skip
"""The columns of `analysis.frame`, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The rows at the standard shapes.

    Attributes:
        loaded: as `analysis.frame.load` gives it for the records written from it.
        versions: framework -> version read.
        asked: standard shapes there are.
        absent: those that none of the frameworks read has measured.
        repeats: rows left out because they measured a case again and were slower.
        unknown: rows left out because the meaning of their dtype is not documented.
    """

    loaded: Loaded
    versions: Mapping[str, str]
    asked: int
    absent: int
    repeats: int
    unknown: int


def run_id(device: str, framework: str, version: str) -> str:
    """The run that a framework's published rows make up: `reference-h100-trtllm-1.3.0rc20`."""
    return f"reference-{device}-{framework}-{version}"


def standard(device: str, frameworks: Sequence[str] = (), version: str = "") -> Published:
    """The published rows at the standard shapes, in their order, framework by framework.

    Raises:
        ValueError: an unknown device, framework or version.
        PackageMissingError: the package is not installed.
    """
    versions = chosen(device, frameworks, version)
    shapes, seen, parts, environments = standard_shapes(), set[int](), [], {}
    repeats = unknown = 0
    for framework, chosen_version in versions.items():
        run = run_id(device, framework, chosen_version)
        for table in read_tables(device, framework, chosen_version):
            columns = _columns(table, device)
            rows = _at_shapes(columns, shapes[shapes["table"] == table.name], table.name)
            seen |= set(rows["shape"])
            repeats += table.repeats
            unknown += len(table.rows) - len(columns)
            environments[run] = _environment(table, device)
            parts.append(_named(rows, run, environments[run]))
    frame = pd.concat(parts, ignore_index=True)
    return Published(
        loaded=Loaded(frame, environments),
        versions=versions,
        asked=len(shapes),
        absent=len(shapes) - len(seen),
        repeats=repeats,
        unknown=unknown,
    )


def every_row(device: str, frameworks: Sequence[str] = (), version: str = "", table: str = "") -> Iterator[Loaded]:
    """All published rows, or those of one table (a key of READERS), one table of a framework at a time.

    Raises as `standard` does; ValueError for an unknown table too.
    """
    if table and table not in READERS:
        raise ValueError(f"unknown table {table!r}; known: {', '.join(READERS)}")
    for framework, chosen_version in chosen(device, frameworks, version).items():
        for found in read_tables(device, framework, chosen_version):
            if table in ("", found.name):
                yield table_rows(found, device)


def table_rows(table: Table, device: str) -> Loaded:
    """Every row of one table."""
    run, environment = run_id(device, table.framework, table.version), _environment(table, device)
    rows = _columns(table, device).assign(source="", model="")
    return Loaded(_named(rows, run, environment), {run: environment})


@cache
def standard_shapes() -> pd.DataFrame:
    """The standard shapes: `shape` (a number), table, published_dtype, sizes by axis name, source, technique."""
    sizes = dict.fromkeys(("m", "n", "k", *_HEADS), "Int64")
    shapes = pd.read_csv(SHAPES, dtype=sizes, keep_default_na=False, na_values={name: [""] for name in sizes})
    attention = shapes["op"] != "gemm"
    model = shapes["model"].replace(MODELS)
    layer = (shapes["proj"] + "_proj").where(shapes["proj"] != "lm_head", "lm_head").where(~attention, "attention")
    return shapes.rename(columns={"m": "M", "n": "N", "k": "K"}).assign(
        shape=range(len(shapes)),
        table=shapes["op"].where(~attention, shapes["op"] + "_" + shapes["phase"]),
        published_dtype=shapes["dtype"],
        source=model + ": " + layer + ", tp " + shapes["tp"].astype(str),
        layer_technique=_technique_of(shapes),
    )


def _technique_of(shapes: pd.DataFrame) -> pd.Series[str]:
    split = pd.Series("dense", index=shapes.index, dtype="str").mask(shapes["tp"] > 1, "tensor_parallel")
    return split.mask(shapes["proj"] == "lm_head", "lm_head")


def _columns(table: Table, device: str) -> pd.DataFrame:
    columns = READERS[table.name](table, peaks.table()[system_named(device).part].l2_bytes)
    known = DOCUMENTED.get(table.framework)
    if table.version == known:
        return columns
    detail = f"cache, inputs and what the time includes are documented for {table.framework} {known} only"
    return columns.assign(cache="", data="", includes="", detail=detail)


def _at_shapes(rows: pd.DataFrame, shapes: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows at the table's standard shapes, in their order, with whose layer each shape is."""
    key = ["published_dtype", *SHAPE_AXES[name]]
    taken = ["shape", "source", "layer_technique", *key]
    found = shapes[taken].merge(rows[rows["published_dtype"] != ""], on=key, how="inner", validate="one_to_one")
    plain = found["technique"] == "dense"
    if name == "gemm":
        found["technique"] = found["technique"].mask(plain, found["layer_technique"])
    return found.assign(model=[model_of([source]) for source in found["source"]])


def _environment(table: Table, device: str) -> Environment:
    """What the package tells (the driver's name) and what is known of the part of that name."""
    part = peaks.table()[system_named(device).part]
    return Environment(
        device_type="cuda",
        device_name=table.device_name,
        compute_capability=part.compute_capability,
        sm_count=part.sm_count,
        memory_bytes=part.memory_gib << 30,
        memory_bus_bits=part.bus_bits,
        memory_clock_mhz=part.memory_clock_mhz,
        l2_bytes=part.l2_bytes,
        packages={table.framework: table.version},
        note=f"published by {PACKAGE} {PACKAGE_VERSION}; clocks, driver and date are not recorded there; "
        "SMs, memory and L2 are the named part's",
    )


def _named(rows: pd.DataFrame, run: str, environment: Environment) -> pd.DataFrame:
    """The columns of `analysis.frame`, with the run, the device and the case ids."""
    same = {
        "device": environment.device_name, "device_type": "cuda", "config": config_key({}), "asked_inputs": "",
        "schema": SCHEMA_VERSION, "source_sha256": "", "cubins": "",
    }  # fmt: skip
    named = rows.assign(run=run, case_id=case_ids(rows), **same)
    return named[list(COLUMNS)]


def case_ids(rows: pd.DataFrame) -> pd.Series[str]:
    """Ids as `bench.case` writes them, of rows that `declared` may give another dtype than they compute in."""
    dtype = rows["declared"].where(rows["declared"] != "", rows["dtype"])
    for mark, column in ((".w_", "weight_dtype"), (".kv_", "kv_dtype"), (".", "scale")):
        stored = rows[column].where(rows["declared"] == "", "")
        dtype = dtype + (mark + stored).where(stored != "", "")
    text = rows["op"] + "/" + rows["provider"] + "/" + dtype + "/"
    first = True
    for axis in AXES:
        given = rows[axis].notna()
        if given.any():
            sizes = ("" if first else ",") + f"{axis}=" + rows[axis].astype("str")
            text = text + (sizes if given.all() else sizes.where(given, ""))
            first = False
    return text


def best_of(frame: pd.DataFrame) -> pd.DataFrame:
    """The fastest framework at each case, of those timed in a CUDA graph: a host-bound time is no kernel's."""
    rows = frame[frame["launch"] == "graph"].assign(block=frame["scale"] == "block128")
    key = ["device", "op", "dtype", "kv_dtype", "block", *AXES]
    return rows.sort_values("time_us", kind="stable").drop_duplicates(key).sort_index().drop(columns="block")


def write_parquet(path: Path, parts: Iterable[pd.DataFrame]) -> Counter[str]:
    """Writes frames of the same columns one after another, so that all need not be held; returns the rows per op.

    The file appears as a whole, or not at all.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with ExitStack() as stack:
            writer = None
            for part in parts:
                table = pa.Table.from_pandas(part, schema=writer.schema if writer else None, preserve_index=False)
                writer = writer or stack.enter_context(pq.ParquetWriter(unfinished, table.schema, compression="zstd"))
                writer.write_table(table)
                counts.update({str(op): int(count) for op, count in part["op"].value_counts().items()})
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return counts


def records_text(loaded: Loaded) -> str:
    """A records file: run by run, its header and its records."""
    lines: list[str] = []
    for run, environment in loaded.environments.items():
        rows = loaded.frame[loaded.frame["run"] == run]
        lines.append(header_json(run, environment))
        launches = launches_per_sample(rows, environment.l2_bytes or 0).tolist()
        columns = zip(*(rows[c].astype(object).tolist() for c in COLUMNS), launches, strict=True)
        lines += [_record(dict(zip((*COLUMNS, "launches"), row, strict=True))).to_json() for row in columns]
    return "\n".join(lines) + "\n"


def _record(r: Mapping[str, object]) -> Record:
    case = {name: r[name] for name in ("op", "provider", "phase", "dtype", "technique")}
    storage = {name: r[name] for name in ("weight_dtype", "kv_dtype", "scale")}
    axes = {axis: int(str(r[axis])) for axis in AXES if not pd.isna(r[axis])}  # type: ignore[call-overload]
    return Record(
        run=str(r["run"]),
        case={"id": r["case_id"], **case, "axes": axes, "source": _listed(r["source"]), **storage, "kv_lens": []},
        status=Status.OK,
        detail=str(r["detail"]),
        work={name: int(float(str(r[name]))) for name in ("flops", "bytes", "overhead_bytes", "counting")},
        timer=str(r["timer"]),
        cache=str(r["cache"]),
        regime=str(r["regime"]),
        launch=str(r["launch"]),
        times_us=(float(str(r["time_us"])),),
        launches_per_sample=int(str(r["launches"])),
        data=_pairs(r["data"]),
        kernel=_pairs(r["kernel"]),
        includes=tuple(_listed(r["includes"])),
        flags=tuple(_listed(r["flags"])),
    )


def _listed(joined: object) -> list[str]:
    return str(joined).split("; ") if joined else []


def _pairs(joined: object) -> dict[str, str]:
    return dict(part.split("=", 1) for part in _listed(joined))
