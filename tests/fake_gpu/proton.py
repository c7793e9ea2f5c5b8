"""Triton's profiler over a fake GPU: real signatures, the real file, and the ways in which CUPTI is known to fail."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import triton
from triton import profiler as real

from bench.cupti import DISCARDED
from fake_gpu.torch_cuda import FakeGpu

REAL = {name: inspect.signature(getattr(real, name)) for name in ("start", "finalize", "scope")}


class FakeProton:
    """Stands for `triton.profiler`.

    Attributes:
        loses: kernels of a sample that no record tells of.
        no_time: kernels have their start for their end.
        refuses: the message with which CUPTI refuses to start.
        is_off: `start` returns None, as under `proton script.py`.
        torn: what is written is cut off.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu) -> None:
        self.gpu, self.open, self.scopes = gpu, "", list[tuple[str, list[float]]]()
        self.loses, self.no_time, self.refuses, self.is_off, self.torn = 0, False, "", False, False
        self.started = self.finalized = 0
        self.inside: list[float] | None = None
        monkeypatch.setattr(triton, "profiler", self)
        gpu.time.on_kernel = self.kernel

    def kernel(self, us: float) -> None:
        if self.inside is not None:
            self.inside.append(us)

    def start(self, *given: Any, **named: Any) -> int | None:
        call = REAL["start"].bind(*given, **named)
        assert call.arguments["backend"] == "cupti", "the backend that has kernels' own times"
        assert call.arguments["data"] == "tree", "the trace has another file"
        self.started += 1
        if self.refuses:
            raise RuntimeError(self.refuses)
        if self.is_off:
            return None
        assert not self.open, "CUPTI has one subscriber"
        self.open, self.scopes = call.arguments["name"], []
        return 0

    def finalize(self, *given: Any, **named: Any) -> None:
        call = REAL["finalize"].bind(*given, **named)
        self.finalized += 1
        if self.refuses:
            raise RuntimeError("Could not load `libcuda.so.1`")
        assert self.open, "no session is open"
        assert self.gpu.time.synchronised_us >= self.gpu.time.device_us, "kernels are still running"
        text = json.dumps(self.tree())
        path = Path(f"{self.open}.{call.arguments['output_format']}")
        path.write_text(text[: len(text) // 2] if self.torn else text, encoding="utf-8")
        self.open = ""

    @contextmanager
    def scope(self, *given: Any, **named: Any) -> Iterator[None]:
        name = REAL["scope"].bind(*given, **named).arguments["name"]
        if name == DISCARDED:
            assert self.gpu.time.host_now_us >= self.gpu.time.device_us, "older kernels would end inside"
        self.inside = []
        yield
        self.scopes.append((name, self.inside))
        self.inside = None

    def tree(self) -> list[Any]:
        """As Proton writes it: https://github.com/triton-lang/triton, third_party/proton/test/examples/cuda.json."""
        children = [{**node(name), "children": self.kernels(name, times)} for name, times in self.scopes]
        root = {**node("ROOT"), "children": children, "metrics": {"count": 0, "time (ns)": 0}}
        return [root, {"CUDA": {"0": {"arch": "90", "bus_width": 6144, "clock_rate": 1980000, "num_sms": 132}}}]

    def kernels(self, name: str, times: list[float]) -> list[dict[str, Any]]:
        """Those of a scope in two nodes, one under a scope of the kernel's own."""
        kept = times if name == DISCARDED else times[self.loses :]
        parts = [kept[::2], kept[1::2]]
        made = [{**node(f"kernel{i}"), "metrics": self.metrics(part)} for i, part in enumerate(parts) if part]
        return [*made[:1], *({**node("inner"), "children": [other]} for other in made[1:])]

    def metrics(self, times: list[float]) -> dict[str, Any]:
        """What a kernel's node holds."""
        total_ns = 0 if self.no_time else round(1000 * sum(times))
        return {"count": len(times), "time (ns)": total_ns, "device_id": "0", "device_type": "CUDA"}


def node(name: str) -> dict[str, Any]:
    """A frame without kernels."""
    return {"frame": {"name": name, "type": "function"}, "metrics": {}, "children": []}
