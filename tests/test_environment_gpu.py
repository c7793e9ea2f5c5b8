"""bench.environment on a GPU, with torch's properties and NVML faked: every field from who reports it."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml as real_nvml
import pytest
import torch

from bench.environment import environment

MIB = 2**20
H100: dict[Any, Any] = {
    "nvmlDeviceGetUUID": "GPU-11111111-2222-3333-4444-555555555555",
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetMemoryBusWidth": 5120,
    "nvmlDeviceIsMigDeviceHandle": 0,
    ("nvmlDeviceGetMaxClockInfo", real_nvml.NVML_CLOCK_SM): 1980,
    ("nvmlDeviceGetMaxClockInfo", real_nvml.NVML_CLOCK_MEM): 2619,
}
A30 = H100 | {
    "nvmlDeviceGetUUID": "GPU-99999999-2222-3333-4444-555555555555",
    "nvmlDeviceGetEnforcedPowerLimit": 165_000,
    ("nvmlDeviceGetMaxClockInfo", real_nvml.NVML_CLOCK_SM): 1440,
}


class FakeNvml(types.ModuleType):
    """NVML over tables of answers by key ("GPU-...", "MIG-...", PCI address); a missing answer is refused.

    Every call is bound to the real function's signature, so a call that NVML would not take fails here too.
    """

    class NVMLError(Exception):
        """What NVML raises."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = real_nvml.NVML_CLOCK_SM, real_nvml.NVML_CLOCK_MEM

    def __init__(self, devices: dict[str, dict[Any, Any]], lacks: tuple[str, ...] = ()) -> None:
        super().__init__("pynvml")
        self.devices, self.lacks = devices, lacks

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in self.lacks or not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            inspect.signature(getattr(real_nvml, name)).bind(*arguments)
            return self.answer(name, *arguments)

        return call

    def answer(self, name: str, *arguments: Any) -> Any:
        if name == "nvmlInit":
            return None
        if name == "nvmlSystemGetDriverVersion":
            return "580.65.06"
        if name in ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId"):
            if arguments[0] not in self.devices:
                raise self.NVMLError("Not Found")
            return arguments[0]
        if name == "nvmlDeviceGetHandleByIndex":
            pytest.fail("matched by index")
        table = self.devices[arguments[0]]
        key = (name, *arguments[1:]) if arguments[1:] else name
        if key not in table:
            raise self.NVMLError("Not Supported")
        return table[key]


def properties(**changes: Any) -> types.SimpleNamespace:
    """torch's properties of an H100 SXM, as far as read here."""
    values: dict[str, Any] = {
        "name": "NVIDIA H100 80GB HBM3",
        "major": 9,
        "minor": 0,
        "multi_processor_count": 132,
        "total_memory": 85_024_112_640,
        "L2_cache_size": 52_428_800,
        "memory_bus_width": 5120,
        "memory_clock_rate": 2_619_000,
        "uuid": "11111111-2222-3333-4444-555555555555",
        "pci_domain_id": 0,
        "pci_bus_id": 0x1B,
        "pci_device_id": 0,
    }
    return types.SimpleNamespace(**{k: v for k, v in (values | changes).items() if v is not None})


def on_gpu(monkeypatch: pytest.MonkeyPatch, nvml: types.ModuleType | None, **changes: Any) -> Any:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties(**changes))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return environment("cuda")


def test_gpu_is_recorded_with_units(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = on_gpu(monkeypatch, FakeNvml({H100["nvmlDeviceGetUUID"]: H100}))
    assert (seen.device_type, seen.device_name, seen.compute_capability) == ("cuda", "NVIDIA H100 80GB HBM3", "9.0")
    assert (seen.sm_count, seen.memory_bytes, seen.l2_bytes) == (132, 85_024_112_640, 50 * MIB)
    assert (seen.memory_bus_bits, seen.memory_clock_mhz, seen.max_sm_clock_mhz) == (5120, 2619, 1980)
    assert (seen.power_limit_w, seen.ecc, seen.mig, seen.driver) == (700.0, True, False, "580.65.06")
    assert seen.uuid == H100["nvmlDeviceGetUUID"]
    assert seen.note is None


def test_bus_and_clock_come_from_nvml_where_torch_lacks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml({H100["nvmlDeviceGetUUID"]: H100 | {"nvmlDeviceGetMemoryBusWidth": 5119}})
    seen = on_gpu(monkeypatch, nvml, memory_bus_width=None, memory_clock_rate=None)
    assert (seen.memory_bus_bits, seen.memory_clock_mhz) == (5119, 2619)


def test_modes_are_the_current_ones_not_the_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    table = H100 | {"nvmlDeviceGetEccMode": [0, 1], "nvmlDeviceGetMigMode": [1, 0]}
    seen = on_gpu(monkeypatch, FakeNvml({H100["nvmlDeviceGetUUID"]: table}))
    assert (seen.ecc, seen.mig) == (False, True)


def test_e10_nvml_device_is_found_by_uuid_not_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """E10: NVML counts the A30 first, CUDA the H100; its clocks and power must be the H100's."""
    nvml = FakeNvml({A30["nvmlDeviceGetUUID"]: A30, H100["nvmlDeviceGetUUID"]: H100})
    seen = on_gpu(monkeypatch, nvml)
    assert (seen.power_limit_w, seen.max_sm_clock_mhz) == (700.0, 1980)


def test_e10_pci_address_where_no_uuid_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml({"00000000:1a:00.0": A30, "00000000:1b:00.0": H100})
    for uuid in (None, "00000000-0000-0000-0000-000000000000"):
        seen = on_gpu(monkeypatch, nvml, uuid=uuid)
        assert (seen.power_limit_w, seen.max_sm_clock_mhz) == (700.0, 1980)


def test_e10_no_match_is_null_not_the_first_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = on_gpu(monkeypatch, FakeNvml({A30["nvmlDeviceGetUUID"]: A30}))
    assert (seen.driver, seen.power_limit_w, seen.max_sm_clock_mhz) == (None, None, None)
    assert "NVML knows no device GPU-11111111" in str(seen.note) and "00000000:1b:00.0" in str(seen.note)
    seen = on_gpu(monkeypatch, FakeNvml({}), uuid=None, pci_bus_id=None)
    assert "NVML knows no device without UUID or PCI address" in str(seen.note)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_w"),
        ("nvmlDeviceGetEccMode", "ecc"),
        ("nvmlDeviceGetMigMode", "mig"),
        ("nvmlDeviceGetUUID", "uuid"),
    ],
)
@pytest.mark.parametrize("how", ["refused", "unknown to this NVML"])
def test_e13_refused_query_is_null_and_the_rest_is_kept(
    monkeypatch: pytest.MonkeyPatch, query: str, field: str, how: str
) -> None:
    table = {key: value for key, value in H100.items() if key != query}
    nvml = FakeNvml({H100["nvmlDeviceGetUUID"]: table}, lacks=(query,) if how != "refused" else ())
    seen = on_gpu(monkeypatch, nvml)
    assert getattr(seen, field) is None
    assert seen.note == f"NVML refused {query}"
    assert seen.max_sm_clock_mhz == 1980


def test_without_nvidia_ml_py_the_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = on_gpu(monkeypatch, None)
    nulls = (seen.driver, seen.power_limit_w, seen.max_sm_clock_mhz, seen.ecc, seen.mig, seen.uuid)
    assert nulls == (None,) * 6
    assert "nvidia-ml-py is not installed: pip install nvidia-ml-py" in str(seen.note)
    assert (seen.sm_count, seen.memory_bus_bits) == (132, 5120)


def test_nvml_that_does_not_start_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml({})

    def refuse(name: str, *arguments: Any) -> None:
        raise FakeNvml.NVMLError("Driver Not Loaded")

    monkeypatch.setattr(nvml, "answer", refuse)
    assert "NVML does not start: Driver Not Loaded" in str(on_gpu(monkeypatch, nvml).note)


def test_mig_slice_is_said_and_power_is_the_whole_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = f"MIG-{properties().uuid}"
    mig = {
        "nvmlDeviceGetUUID": uuid,
        "nvmlDeviceIsMigDeviceHandle": 1,
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": "GPU-parent",
    }
    parent = {query: answer for query, answer in H100.items() if query != "nvmlDeviceGetMigMode"}
    nvml = FakeNvml({uuid: mig, "GPU-parent": parent})
    seen = on_gpu(monkeypatch, nvml, multi_processor_count=16)
    assert (seen.mig, seen.uuid, seen.sm_count, seen.power_limit_w) == (True, uuid, 16, 700.0)
    assert "MIG slice" in str(seen.note)


def test_torch_has_the_properties_read_here() -> None:
    stub = (Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text(encoding="utf-8")
    body = stub[stub.index("class _CudaDeviceProperties") :][:1500]
    for name in ("name", "multi_processor_count", "total_memory", "L2_cache_size", "memory_bus_width", "uuid"):
        assert f"    {name}: " in body
    assert "    memory_clock_rate: " in body
