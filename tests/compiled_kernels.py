"""Kernels for tests of what is made of compile records: real listings with the records they came with."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.compiled import Kernel, hot_code
from bench.compiled import CompileRecord

LISTINGS = Path(__file__).parent / "data" / "sass"
HEADS = {"batch": 1, "q_len": 4096, "kv_len": 4096, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "causal": 1}
LINEAR = {"M": 1, "N": 8192, "K": 8192}
SQUARE = {"M": 8192, "N": 8192, "K": 8192}


def load(argument: str, kind: str, nbytes: int, slots: int, role: str) -> dict[str, Any]:
    return {"argument": argument, "kind": kind, "bytes": nbytes, "slots": slots, "role": role}


def record(op: str, phase: str, axes: dict[str, int], **facts: Any) -> CompileRecord:
    """Of the default configuration in bfloat16 on sm_90."""
    sizes = ",".join(f"{axis}={size}" for axis, size in axes.items())
    case = {"id": f"{op}/triton/bfloat16/{sizes}", "op": op, "provider": "triton", "phase": phase, "axes": axes}
    defaults: dict[str, Any] = {"config": {}, "default": True, "arch": 90, "triton": "3.7.1", "grid": (1024, 1, 1)}
    return CompileRecord(case=case | {"dtype": "bfloat16"}, **(defaults | facts))


_keys = [load("k", "tma", 32_768, 2, "streamed"), load("v", "tma", 32_768, 2, "streamed")]
PREFILL = record(
    "attention_prefill", "prefill", HEADS, kernel="_attention_prefill_kernel", registers=194, shared_bytes=164_864,
    num_warps=8, config={"block_m": 128, "block_n": 128, "num_warps": 8, "num_stages": 2, "descriptors": "device"},
    engaged={"tma": True, "num_stages": True}, loops=({"warps": 8, "flops": 8_388_608, "loads": _keys},) * 2,
)  # fmt: skip
_half = load("a", "tma", 8192, 3, "resident")
_tiles = [_half, load("b", "tma", 16_384, 3, "streamed"), _half]
SPECIALISED = record(
    "matmul", "prefill", SQUARE, kernel="_matmul_kernel", registers=168, shared_bytes=131_544, num_warps=12,
    grid=(132, 1, 1), engaged={"warp_specialize": True, "tma": True},
    loops=(
        {"warps": 4, "flops": 0, "loads": _tiles},
        {"warps": 4, "flops": 1_048_576, "loads": []},
        {"warps": 4, "flops": 1_048_576, "loads": []},
    ),
)  # fmt: skip
_rows = [load("x", "cp.async", 4096, 4, "resident"), load("w", "cp.async", 16_384, 4, "streamed")]
DECODE = record(
    "matmul_decode", "decode", LINEAR, kernel="_matmul_decode_kernel", registers=64, shared_bytes=81_920, num_warps=4,
    grid=(256, 1, 1), config={"form": "tile", "block_n": 64, "block_k": 128, "pdl": False},
    engaged={"num_stages": True}, loops=({"warps": 4, "flops": 262_144, "loads": _rows},),
)  # fmt: skip


def listing(name: str) -> str:
    return gzip.decompress((LISTINGS / f"{name}.sass.gz").read_bytes()).decode()


def kernel(which: CompileRecord, text: str | None = None, **facts: Any) -> Kernel:
    """A kernel of a record, changed where facts say so, with its own listing or another."""
    names = {PREFILL.kernel: "attention_prefill_d128", SPECIALISED.kernel: "matmul_specialised"}
    changed = replace(which, **facts)
    return Kernel(changed, *hot_code(text or listing(names.get(which.kernel, "matmul_decode_tile")), changed))


def looping(*lines: str, name: str = "_k") -> str:
    """The listing of a kernel with one loop of these instructions."""
    code = [".text." + name + ":", ".L_x_1:", *(f"{line} ;" for line in lines), "@P0 BRA `(.L_x_1) ;", "EXIT ;"]
    return "\n".join(code) + "\n"
