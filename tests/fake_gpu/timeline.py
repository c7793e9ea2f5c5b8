"""What a fake GPU's time is made of: streams that run kernels one after another, a cache, and a clock that moves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

HEAD_US, RESOLUTION_US, FLUSH_US, HOST_US, CALL_US = 6.0, 0.5, 80.0, 2.0, 0.5
STICKY = "CUDA error: an illegal memory access was encountered"


@dataclass(kw_only=True)
class Timeline:
    """The device's state and its laws.

    Attributes:
        kernel_us: of a launch at full speed and out of DRAM.
        gap_us: between two kernels of a stream, which a programmatic dependent launch (`pdl`) does not have.
        host_us: what the host takes to launch one; `call_us` for any other call.
        event_us: what a stream takes to record an event.
        l2_bytes: of the cache, of which the least recently used goes first; 0 is none.
        hot: share of the time that a launch takes whose streamed bytes the cache holds.
        speed: of the clock, after so many microseconds of the device's time.
        breaks_at: the launch from which on every call is an error that stays.
    """

    kernel_us: float
    gap_us: float = 0.0
    head_us: float = HEAD_US
    host_us: float = HOST_US
    call_us: float = CALL_US
    event_us: float = 0.0
    l2_bytes: int = 0
    hot: float = 0.4
    pdl: bool = False
    speed: Callable[[float], float] = lambda us: 1.0
    breaks_at: int = 10**12
    host_now_us: float = 0.0
    synchronised_us: float = 0.0
    launched: int = 0
    ready_us: dict[str, float] = field(default_factory=lambda: {"default": 0.0})
    ran: list[tuple[str, int]] = field(default_factory=list)
    held: OrderedDict[int, int] = field(default_factory=OrderedDict)
    on_kernel: Callable[[float], None] = lambda us: None

    @property
    def device_us(self) -> float:
        """When the last stream is done."""
        return max(self.ready_us.values())

    def call(self, us: float | None = None) -> None:
        """The host makes a call, which fails when an error has stayed."""
        self.host_now_us += self.call_us if us is None else us
        if self.launched >= self.breaks_at:
            raise RuntimeError(f"{STICKY}\nCompile with TORCH_USE_CUDA_DSA")

    def run(self, us: float, stream: str = "default") -> None:
        """Something of a length on a stream, when that is free and the host has asked for it."""
        start = max(self.ready_us.setdefault(stream, 0.0), self.host_now_us)
        self.ready_us[stream] = start + us

    def kernel(self, number: int, stream: str = "default", buffer: tuple[int, int] | None = None) -> None:
        """A kernel; behind another one after the gap. `buffer` is the address and size of what it streams."""
        self.launched += 1
        behind = self.ready_us.setdefault(stream, 0.0) > self.host_now_us
        us = self.kernel_us * (self.hot if buffer and self.touch(*buffer) else 1.0) / self.speed(self.device_us)
        self.run(us + (self.gap_us if behind and not self.pdl else 0.0), stream)
        self.on_kernel(us)
        self.ran.append((stream, number))

    def touch(self, address: int, size: int) -> bool:
        """Reads a buffer through the cache; whether it was held."""
        held = self.held.pop(address, 0) >= size
        if size <= self.l2_bytes:
            self.held[address] = size
        while sum(self.held.values()) > self.l2_bytes:
            self.held.popitem(last=False)
        return held

    def flush(self) -> None:
        """A write of more than the cache."""
        self.held.clear()
        self.run(FLUSH_US)
        self.ran.append(("flush", -1))

    def wait(self) -> None:
        """The host waits for all streams."""
        self.host_now_us = self.synchronised_us = max(self.host_now_us, self.device_us)
