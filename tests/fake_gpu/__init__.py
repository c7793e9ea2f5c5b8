"""A GPU that is only a timeline, with the calls of torch.cuda, Proton and NVML on it, for the real harness to run on.

It has head latency, gaps between nodes, overlap of dependent launches, a cache, clocks that move, events that resolve
half a microsecond, streams, and errors that stay. Every call is bound to the signature of the real function, and an
order that torch would not take fails.
"""

from __future__ import annotations

from fake_gpu.proton import FakeProton
from fake_gpu.timeline import HEAD_US, RESOLUTION_US, Timeline
from fake_gpu.torch_cuda import FakeGpu, launches_on

__all__ = ["HEAD_US", "RESOLUTION_US", "FakeGpu", "FakeProton", "Timeline", "launches_on"]
