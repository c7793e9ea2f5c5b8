"""bench.ttgir: which argument each load of a loop reads, through which buffer, and what a trip multiplies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.ttgir import deepest_buffer, loops_of

DATA = Path(__file__).parent / "data" / "ttgir"
"""Lines of real kernels, put together: a pipelined copy, descriptors made by host and device, specialised warps."""


def text(name: str) -> str:
    return (DATA / f"{name}.ttgir").read_text(encoding="utf-8")


def load(argument: str, kind: str, nbytes: int, slots: int, role: str = "") -> dict[str, Any]:
    return {"argument": argument, "kind": kind, "bytes": nbytes, "slots": slots, "role": role}


def test_pointers_are_followed_to_the_argument_and_its_own_name() -> None:
    """x: 16 x 128 x 2 bytes into registers; w: 64 x 128 x 1 into 4 slots, by a pointer that the loop carries."""
    [loop] = loops_of(text("copy"), {"x": "resident", "w": "streamed"})
    assert loop["loads"] == [load("x", "ldg", 4096, 0, "resident"), load("w", "cp.async", 8192, 4, "streamed")]
    assert (loop["warps"], loop["flops"]) == (4, 2 * 16 * 128 * 64)
    assert deepest_buffer([loop]) == 4


def test_descriptors_of_host_and_device_are_followed_in_the_innermost_loop_alone() -> None:
    [loop] = loops_of(text("tma"), {})
    assert loop["loads"] == [load("b", "tma", 16_384, 3), load("q", "tma", 8192, 1)]
    assert loop["flops"] == 2 * 64 * 64 * 128


def test_each_partition_of_specialised_warps_has_its_own_loop_and_warps() -> None:
    producer, consumer, other = loops_of(text("specialised"), {"a": "resident"})
    assert producer == {"warps": 4, "flops": 0, "loads": [load("a", "tma", 16_384, 1, "resident")]}
    assert other == {"warps": 1, "flops": 0, "loads": [load("a", "tma", 16_384, 3, "resident")]}, "by what it captured"
    assert consumer == {"warps": 8, "flops": 2 * 128 * 64 * 32, "loads": []}


def test_code_without_loops_has_none() -> None:
    straight = "module {\ntt.func public @_k(%x: !tt.ptr<f32>) {\n%v = tt.load %x : tensor<8x!tt.ptr<f32>>\n}\n}\n"
    assert loops_of(straight, {}) == [] and deepest_buffer([]) == 0
