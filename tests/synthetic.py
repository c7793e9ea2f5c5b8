"""Made-up runs on made-up devices, written as the bench writes them. Times follow from a stated share of the roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.frame import load
from analysis.roofline import Device, points
from bench.record import Environment, Record, RecordWriter, Status
from kernels.spec import Workload
from kernels.work import Work, attention_work, matmul_work, unmasked_pairs

H100 = Environment(
    device_type="cuda", device_name="NVIDIA H100 80GB HBM3", compute_capability="9.0", sm_count=132,
    memory_bytes=85_000_000_000, memory_bus_bits=5120, memory_clock_mhz=2619, max_sm_clock_mhz=1980,
    l2_bytes=50 << 20, torch="2.13.0", triton="3.7.1", taken_at="2026-03-01T10:00:00+00:00",
)  # fmt: skip
H200 = Environment(
    device_type="cuda", device_name="NVIDIA H200", compute_capability="9.0", sm_count=132, max_sm_clock_mhz=1980,
    taken_at="2026-03-02T10:00:00+00:00",
)  # fmt: skip
UNKNOWN = Environment(device_type="cuda", device_name="NVIDIA Z900 Ultra", compute_capability="19.0", sm_count=500)
NAMELESS = Environment(device_type="cuda")
CPU = Environment(
    device_type="cpu", device_name="Example CPU 9000", threads=2, l2_bytes=32 << 20, taken_at="2026-03-01T09:00:00Z"
)
Classified = tuple[pd.DataFrame, list[Device]]
"""What `analysis.roofline.points` gives."""
Roof = tuple[float, float, float]
"""TFLOP/s, GB/s, launch us."""
MEASURED_WITH: dict[str, Any] = {
    "timer": "cuda_graph", "cache": "cold", "regime": "burst", "launch": "graph",
    "data": {"distribution": "normal(0, 1)", "seed": 0},
}  # fmt: skip


def record(
    run: str, op: str, workload: Workload, work: Work, *, provider: str = "triton", times_us: Sequence[float] = (),
    share: float = 0.8, status: Status = Status.OK, detail: str = "", device: Roof = (989, 3350, 0),
    **how: Any,
) -> Record:  # fmt: skip
    """One record; without times, the time at a share of a roof of (TFLOP/s, GB/s, launch us)."""
    tflops, gb_per_s, launch_us = device
    roof_us = launch_us + max(work.flops / (tflops * 1e6), work.bytes / (gb_per_s * 1e3))
    times = tuple(times_us) or (roof_us / share,)
    case = {
        "id": f"{op}/{provider}/{workload.key}", "op": op, "provider": provider, "phase": workload.phase,
        "dtype": workload.dtype, "technique": workload.technique, "axes": dict(workload.axes),
        "source": list(workload.source), "weight_dtype": workload.weight_dtype, "kv_dtype": workload.kv_dtype,
        "scale": workload.scale,
    }  # fmt: skip
    return Record(
        run=run, case=case, status=status, detail=detail, times_us=times if status is Status.OK else (),
        work={"flops": work.flops, "bytes": work.bytes, "overhead_bytes": 0, "counting": work.counting},
        **{**MEASURED_WITH, **how},
    )  # fmt: skip


def matmul(run: str, m: int, n: int = 4096, k: int = 4096, dtype: str = "bfloat16", **options: Any) -> Record:
    """One matmul; decode up to 64 rows."""
    workload = Workload(
        axes={"M": m, "N": n, "K": k}, dtype=dtype, phase="decode" if m <= 64 else "prefill",
        source=("llama-3.1-8b: o_proj, tp 1",),
    )  # fmt: skip
    return record(run, "matmul", workload, matmul_work(m, n, k, dtype=dtype), **options)


def attention(
    run: str, batch: int, q_len: int, kv_len: int, dtype: str = "bfloat16", window: int | None = None,
    technique: str = "kv_cache", kv_dtype: str = "", scale: str = "", **options: Any,
) -> Record:  # fmt: skip
    """One attention of 32 query and 8 KV heads; decode where there is one query token."""
    heads = {"q_heads": 32, "kv_heads": 8, "head_dim": 128}
    axes = {"batch": batch, "q_len": q_len, "kv_len": kv_len, **heads, **({"window": window} if window else {})}
    decode = q_len == 1
    workload = Workload(
        axes=axes, dtype=dtype, phase="decode" if decode else "prefill", technique=technique,
        kv_dtype=kv_dtype, scale=scale,
    )  # fmt: skip
    pairs = unmasked_pairs(q_len, kv_len, causal=True, window=window or 0)
    work = attention_work(
        batch=batch, q_heads=32, kv_heads=8, q_len=q_len, pairs=batch * pairs, kv_tokens=batch * kv_len,
        head_dim=128, v_head_dim=128, dtype=dtype, kv_dtype=kv_dtype,
    )  # fmt: skip
    return record(run, "attention_decode" if decode else "attention_prefill", workload, work, **options)


def roofs(
    run: str, tflops: Mapping[str, float], gb_per_s: float, launch_us: float, timer: str = "cuda_graph"
) -> list[Record]:
    """What `bench peaks` writes: compute per dtype, read bandwidth, and an empty launch."""
    made = []
    for dtype, rate in tflops.items():
        flops = 10**12
        workload = Workload(axes={"M": 8192}, dtype=dtype, phase="prefill")
        made.append(
            record(run, "peak_matmul", workload, Work(flops, 10**8), times_us=(flops / rate / 1e6,), timer=timer)
        )
    size = 10**9
    workload = Workload(axes={"M": size}, dtype="float32", phase="prefill")
    made.append(record(run, "peak_read", workload, Work(0, size), times_us=(size / gb_per_s / 1e3,), timer=timer))
    made.append(record(run, "empty_launch", workload, Work(0, 0), times_us=(launch_us,), timer=timer))
    return made


def cpu_run(run: str) -> list[Record]:
    """Forty cases of a CPU with roofs of its own, 0.15 TFLOP/s and 20 GB/s."""
    device = (0.15, 20.0, 1.0)
    how: dict[str, Any] = {"timer": "cpu_wall", "launch": "call", "device": device}
    made = roofs(run, {"float32": 0.15}, 20.0, 1.0, timer="cpu_wall")
    for k in (512, 1024, 2048):
        for i, m in enumerate((1, 4, 16, 64, 256, 1024)):
            made.append(matmul(run, m, k, k, "float32", provider="torch", share=0.5 + 0.07 * i, **how))
    for length in (256, 1024, 4096, 16384):
        for batch in (1, 2, 4, 8):
            made.append(attention(run, batch, 1, length, "float32", provider="torch", share=0.7, **how))
    for length in (128, 256, 512, 1024, 2048, 4096):
        made.append(attention(run, 1, length, length, "float32", provider="torch", share=0.55, **how))
    return made


def write(path: Path, run: str, environment: Environment, records: Sequence[Record]) -> Path:
    """Appends a run to `path`/records.jsonl (or to a file) and gives the file."""
    file = path if path.suffix == ".jsonl" else path / "records.jsonl"
    with RecordWriter(file, run, environment) as writer:
        for each in records:
            writer.append(each)
    return file


def classified(directory: Path, *runs: tuple[Environment, Sequence[Record]]) -> Classified:
    """The points of some runs, each in its own file."""
    paths = [write(directory / r[0].run, r[0].run, environment, r) for environment, r in runs]
    return points(load(paths))
