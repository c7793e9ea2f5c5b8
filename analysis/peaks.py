"""Peaks per exact device: dense, with the clock the datasheet assumes, each with its source.

A device is recognised by what it reports (compute capability, SM count, bus width x memory clock, total memory),
and its driver name must agree; a device that is not recognised has no percentages, never another's peak.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.record import Environment

TABLE = Path(__file__).parent / "data" / "gpu_peaks.json"
DEFAULT_DEVICE = "H100 SXM5 80GB"
"""Records that name no device are drawn against this one, and say so."""
HOW_TO_ADD = (
    "no peaks for this device, so no percentages: add an entry to analysis/data/gpu_peaks.json "
    "(dense figures, SM count, clocks, bus, names, source) and run tests/test_peaks.py"
)
SHORT = {
    "float64": "fp64",
    "float32": "fp32",
    "tfloat32": "tf32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "int8": "int8",
}
CUDA_CORE_DTYPES = ("fp64", "fp32")
"""Computed outside the tensor cores: their datasheet figures assume the boost clock `vclk`, the others `clk`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """One device's dense datasheet peaks.

    Attributes:
        device: our name for the part, form factor and memory included.
        tflops: (dtype by torch's name, accumulate dtype) -> dense TFLOP/s.
        rates: the same key -> FLOP per clock per SM.
        dram_gb_per_s: 1e9 byte/s.
        tensor_clock_mhz: the clock that reproduces the datasheet's tensor figures.
        max_clock_mhz: the highest clock the driver reports, where a record has none of its own.
        names: the driver's names for it.
    """

    device: str
    tflops: Mapping[tuple[str, str], float]
    rates: Mapping[tuple[str, str], float]
    dram_gb_per_s: float
    l2_bytes: int
    sm_count: int
    compute_capability: str
    tensor_clock_mhz: int
    max_clock_mhz: int
    bus_bits: int
    memory_clock_mhz: int
    memory_gib: int
    names: tuple[str, ...]
    source: str

    def ridge(self, dtype: str) -> float:
        """FLOP per byte at which the compute roof meets the DRAM roof."""
        return self.tflops[dtype, accumulate_of(dtype)] * 1e3 / self.dram_gb_per_s

    def clock_bound_tflops(self, dtype: str, max_clock_mhz: int | None) -> float | None:
        """SMs x FLOP/clock/SM x the device's own maximum clock: more is physically impossible."""
        rate = self.rates.get((dtype, accumulate_of(dtype)))
        return rate and self.sm_count * rate * (max_clock_mhz or self.max_clock_mhz) / 1e6


def accumulate_of(dtype: str) -> str:
    """What tensor cores of this suite's kernels accumulate in."""
    return {"int8": "int32", "float64": "float64"}.get(dtype, "float32")


@cache
def table() -> dict[str, Peaks]:
    """All known devices by our name for them."""
    entries = json.loads(TABLE.read_text(encoding="utf-8"))
    return {device: _peaks(device, entry) for device, entry in entries.items()}


def _peaks(device: str, entry: Mapping[str, Any]) -> Peaks:
    return Peaks(
        device=device,
        tflops=_by_dtype(entry["ds"]),
        rates=_by_dtype(entry["rate"]),
        dram_gb_per_s=entry["bw"],
        l2_bytes=entry["l2"] << 20,
        sm_count=entry["sm"],
        compute_capability=entry["cc"],
        tensor_clock_mhz=entry["clk"],
        max_clock_mhz=entry["vclk"],
        bus_bits=entry["bus"],
        memory_clock_mhz=entry["mclk"],
        memory_gib=entry["memory_gib"],
        names=tuple(entry["names"]),
        source=entry["source"],
    )


def _by_dtype(figures: Mapping[str, float | None]) -> dict[tuple[str, str], float]:
    """Keyed by (dtype, accumulate). A null is a figure that no source gives."""
    keys = {name: (dtype, accumulate_of(dtype)) for dtype, name in SHORT.items()}
    keys |= {f"{name}_acc16": (dtype, "float16") for name, (dtype, _) in keys.items()}
    full = {keys[name]: float(value) for name, value in figures.items() if name in keys and value is not None}
    e5m2 = {("float8_e5m2", acc): value for (dtype, acc), value in full.items() if dtype == "float8_e4m3fn"}
    return full | e5m2


def match(environment: Environment) -> tuple[Peaks | None, str]:
    """The peaks of the device an environment describes, with one line that says how it was recognised or why not.

    Whatever the environment reports must agree; what it does not report decides nothing.
    """
    if environment.device_type != "cuda":
        return None, "a CPU has no datasheet peaks here: its roofs are measured (python -m bench peaks)"
    name = environment.device_name
    if environment.mig or "MIG" in (name or ""):
        return None, f"{name}: a MIG slice has a part of the card's SMs and bandwidth; {HOW_TO_ADD}"
    alike = [p for p in table().values() if _properties_agree(p, environment)]
    named = [p for p in alike if name in p.names]
    if len(named) == 1:
        return named[0], f"{name}: recognised as {named[0].device} by its reported properties; {named[0].source}"
    known = [p.device for p in table().values() if name in p.names]
    if known:
        return None, f"{name}: the driver's name says {known[0]}, its reported properties do not; {HOW_TO_ADD}"
    return None, f"{name or 'unnamed device'}: {HOW_TO_ADD}"


def _properties_agree(peaks: Peaks, environment: Environment) -> bool:
    e = environment
    if e.compute_capability not in (None, peaks.compute_capability) or e.sm_count not in (None, peaks.sm_count):
        return False
    if e.memory_bus_bits and e.memory_clock_mhz:
        ratio = e.memory_bus_bits * e.memory_clock_mhz / (peaks.bus_bits * peaks.memory_clock_mhz)
        if not 0.97 <= ratio <= 1.03:
            return False
    # The driver keeps up to a tenth for ECC and itself; a card is sold by its nominal GiB.
    return not e.memory_bytes or 0.9 <= e.memory_bytes / 2**30 / peaks.memory_gib <= 1.03


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSet:
    """A consistent set of measured roofs published for a device: one node's compute, bandwidth and launch floor."""

    tflops: Mapping[str, float]
    dram_gb_per_s: float
    launch_us: float
    source: str


MEASURED: Mapping[str, MeasuredSet] = {
    "H100 SXM5 80GB": MeasuredSet(
        tflops={"bfloat16": 794.5, "float16": 794.5, "float8_e4m3fn": 1402.6},
        dram_gb_per_s=2750.0,
        launch_us=3.0,
        source="compute: best sustained cuBLAS, stas00/ml-engineering (80.3 %, 70.9 %); bandwidth and launch floor: "
        "fit T0 + bytes/BW of the TensorRT-LLM decode GEMM rows of aiconfigurator-core 0.12.0, median error 2.7 %",
    ),
    "H200 SXM 141GB": MeasuredSet(
        tflops={"bfloat16": 794.5, "float16": 794.5, "float8_e4m3fn": 1453.4},
        dram_gb_per_s=3950.0,
        launch_us=4.2,
        source="compute: best sustained cuBLAS, stas00/ml-engineering (fp8 73.4 %; bf16 as on H100, the same SMs); "
        "bandwidth and launch floor: fit of the TensorRT-LLM decode GEMM rows of aiconfigurator-core 0.12.0",
    ),
}
