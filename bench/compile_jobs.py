"""What `bench compile` compiles: ops x shape buckets x configurations, and one such job as compile records.

A shape bucket is what chooses other code: dtype, alignment, rows of a decode step, head width. Leaves the compiler to
`bench.compile`, processes and files to the command.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import triton

from bench.case import Case, merged
from bench.compile import Compiled, compile_case
from bench.compiled import CompileRecord, listing_name
from bench.cubin import listing
from bench.launched import ENGAGED
from bench.op_file import load_ops
from bench.ttgir import deepest_buffer, loops_of
from kernels.attention_variants import variant_of
from kernels.quantisation import least_arch
from kernels.quantised_cache import quantised_kv
from kernels.quantised_matmuls import with_weights
from kernels.registry import OPS, op_named
from kernels.spec import Op, Workload

PROVIDER = "triton"
ALIGNED, RAGGED = 8192, 8190
"""Sizes whose bfloat16 rows are, and are not, whole pieces of 16 bytes."""
VARIANTS = (
    {"head_dim": 128, "window": 1024},
    {"head_dim": 64, "window": 128, "sinks": 1},
    {"head_dim": 128, "window": 4096, "softcap": 50},
    {"head_dim": 256, "window": 4096, "sinks": 1, "softcap": 50},
)
"""Gemma 3's, gpt-oss', Gemma 2's, and all at the widest head."""
SIZES: Mapping[str, tuple[Mapping[str, int], ...]] = {
    "matmul": tuple(
        {"M": ALIGNED, "N": N, "K": K} for N, K in ((ALIGNED, ALIGNED), (RAGGED, ALIGNED), (RAGGED, RAGGED))
    ),
    "matmul_decode": (
        *({"M": M, "N": ALIGNED, "K": ALIGNED} for M in (1, 16, 64)),
        *({"M": M, "N": RAGGED, "K": RAGGED} for M in (1, 16, 64)),
    ),
    "matmul_weight_only": tuple({"M": M, "N": ALIGNED, "K": ALIGNED} for M in (16, 64, ALIGNED)),
    "grouped_matmul": tuple(
        {"M": M, "N": size, "K": size, "experts": 128, "top_k": 8}
        for M, size in ((16, 2048), (256, 2048), (4096, 2048), (16, 2046))
    ),
    "quantise_fp8": ({"M": 4096, "K": ALIGNED},),
    "rms_norm": tuple({"M": M, "K": K} for M, K in ((4096, ALIGNED), (4096, 128), (16, 2 * ALIGNED))),
    "add_rms_norm": tuple({"M": M, "K": K} for M, K in ((4096, ALIGNED), (16, 2 * ALIGNED))),
    "residual_add": tuple({"M": M, "K": ALIGNED} for M in (16, 4096)),
    "silu_mul": tuple({"M": M, "K": ALIGNED} for M in (16, 4096)),
    "gate_up_silu": (
        *({"M": M, "N": ALIGNED, "K": ALIGNED} for M in (16, 64, ALIGNED)),
        *({"M": M, "N": RAGGED, "K": RAGGED} for M in (16, ALIGNED)),
    ),
    "attention_prefill": (
        *({"q_len": 4096, "head_dim": head_dim} for head_dim in (64, 80, 128, 256)),
        *({"q_len": 4096, **variant} for variant in VARIANTS),
    ),
    "attention_decode": (
        *({"kv_len": 8192, **variant} for variant in VARIANTS),
        {"kv_len": 8192, "q_len": 8, "kv_heads": 4, **VARIANTS[-1]},
        *({"kv_len": 8192, "head_dim": head_dim} for head_dim in (64, 80, 128, 256)),
        *(
            {"kv_len": 8192, "head_dim": head_dim, "q_len": q_len, "kv_heads": 4}
            for q_len in (4, 8)
            for head_dim in (64, 128, 256)
        ),
    ),
    "attention_paged_decode": (
        *({"kv_len": 8192, "head_dim": head_dim} for head_dim in (64, 80, 128, 256)),
        *({"kv_len": 8192, "page_size": 256, "q_len": q_len} for q_len in (1, 16)),
    ),
    "attention_paged_prefill": (
        *({"q_len": 4096, "head_dim": head_dim} for head_dim in (64, 128, 256)),
        {"q_len": 4096, "page_size": 256},
    ),
    "attention_prefix_decode": tuple(
        {"batch": batch, "kv_len": 512, "prefix_len": 8192, "head_dim": head_dim}
        for batch, head_dim in ((2, 128), (16, 64), (16, 128), (16, 256))
    ),
    "attention_varlen": (
        *({"q_len": 4096, "head_dim": head_dim} for head_dim in (64, 128, 256)),
        {"q_len": 1, "kv_len": 8192},
    ),
    "attention_mixed": (
        *({"q_len": q_len, "kv_len": 8192} for q_len in (1, 5, 512)),
        *({"q_len": 1, "kv_len": 8192, "head_dim": head_dim} for head_dim in (64, 80, 256)),
    ),
    "attention_mla_decode": tuple(
        {"batch": 16, "kv_len": 8192, "q_heads": q_heads, "page_size": page_size}
        for q_heads, page_size in ((16, 64), (32, 64), (128, 64), (16, 1), (128, 16))
    ),
    "kv_append": tuple({"batch": 64, "kv_len": 8192, "head_dim": head_dim} for head_dim in (80, 128)),
}
"""Op -> sizes of one workload a bucket. An op that is not here is compiled for its check workloads."""
SCALED: Mapping[str, tuple[str, ...]] = {
    "matmul": ("block128",),
    "matmul_decode": ("block128",),
    "quantise_fp8": ("tensor", "block128"),
}
"""Op -> granularities of scales that choose other code than the usual ones."""
STORED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "attention_decode": (("float8_e4m3fn", "head"), ("int8", "head")),
}
"""Op -> storage and scales of its KV cache that choose other code, for its first dtype."""
WEIGHTS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "matmul_weight_only": (("uint4", 32), ("uint4", 128), ("int8", 0), ("float8_e4m3fn", 0))
}
"""Op -> storage of weights, and length of groups, beside the usual one, for its first dtype."""
Outcome = list[tuple[CompileRecord, str]]
"""Of a case: the record and the listing of each kernel that it launches."""
HINT = re.compile(r"(?:evictionPolicy|cacheModifier|eviction_policy|cache_modifier) = (?!none|evict_normal)(\w+)")
"""As Triton up to 3.7 and from 3.9 on writes it."""
HINT_IN_PTX = r"::{0}\b|\b(?:ld|st)\.global(?:\.\w+|::\w+)*\.{0}\b|\bcp\.async\.{0}\b"
"""L1::evict_first, ld.global.L1::no_allocate.cg, cp.async.ca."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One configuration of one case for one arch; an Op holds functions, so another process is sent its name."""

    op: str
    workload: Workload
    arch: int
    config: Any
    default: bool
    op_files: tuple[Path, ...] = ()


def buckets(op: Op) -> list[Workload]:
    """One workload for each shape bucket of an op."""
    if op.name not in SIZES:
        return merged(op.check_workloads)
    defaults = {axis: size for axis, size in op.axes.items() if size is not None}
    plain = [
        workload
        for dtype in op.dtypes
        for sizes in SIZES[op.name]
        for workload in (op.describe_axes(defaults | dict(sizes), dtype, ("of a shape bucket",)),)
        if not op.unsupported(workload, PROVIDER)
    ]
    other = [dataclasses.replace(w, scale=scale) for scale in SCALED.get(op.name, ()) for w in plain if w.scale]
    scaled = [w for w in other if not op.unsupported(w, PROVIDER)]
    first = [w for w in plain if w.dtype == op.dtypes[0] and not variant_of(w.axes)]
    stored = [quantised_kv(w, *how) for how in STORED.get(op.name, ()) for w in first]
    stored += [with_weights(w, *how) for how in WEIGHTS.get(op.name, ()) for w in first]
    return plain + scaled + stored


def jobs(ops: Sequence[Op], archs: Sequence[int], op_files: Sequence[Path] = ()) -> list[Job]:
    """Every op x bucket x configuration x arch, the configuration that the op would choose first."""
    return [
        Job(
            op=op.name,
            workload=workload,
            arch=arch,
            config=config,
            default=place == 0,
            op_files=() if op in OPS else tuple(op_files),
        )
        for arch in archs
        for op in ops
        if PROVIDER in op.providers
        for workload in buckets(op)
        if arch >= least_arch(workload)
        for place, config in enumerate(op.configs(workload, arch) or (None,))
    ]


@cache
def own_ops(files: tuple[Path, ...]) -> tuple[Op, ...]:
    """A user's ops, imported once a process: before a job is unpickled whose configuration is of a class of theirs."""
    return load_ops(files)


def case_of(job: Job) -> Case:
    """The case that a job compiles."""
    return Case(op_named(job.op, own_ops(job.op_files)), PROVIDER, job.workload)


def run_job(job: Job) -> Outcome:
    """What a job came to."""
    return outcome_of(case_of(job), job.arch, job.config, default=job.default)


def outcome_of(case: Case, arch: int, config: Any, *, default: bool) -> Outcome:
    """The record and the listing of each kernel that a case launches; one record that says why where there is none."""
    asked = _asked(case, arch, config, default)
    try:
        compiled = compile_case(case, arch, config)
    except Exception as error:  # a user's wrapper may raise anything: one case of many
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        return failed(case, arch, config, default=default, why=why)
    texts = [listing(kernel.sass) for kernel in compiled]
    return [
        (_record(asked, case.op.roles, place, kernel, text), text)
        for place, (kernel, text) in enumerate(zip(compiled, texts, strict=True))
    ]


def failed(case: Case, arch: int, config: Any, *, default: bool, why: str) -> Outcome:
    """The record of a case without a kernel, with the first line that says why."""
    first = next((line for line in why.splitlines() if line.strip()), "no message").strip()
    return [(CompileRecord(**_asked(case, arch, config, default), error=first, triton=triton.__version__), "")]


def _asked(case: Case, arch: int, config: Any, default: bool) -> dict[str, Any]:
    told = ("id", "op", "provider", "phase", "dtype", "axes")
    return {
        "case": {name: value for name, value in case.to_json().items() if name in told},
        "config": dataclasses.asdict(config) if _is_record(config) else {"config": str(config or "")},
        "default": default,
        "arch": arch,
    }


def _is_record(config: Any) -> bool:
    return dataclasses.is_dataclass(config) and not isinstance(config, type)


def _record(
    asked: Mapping[str, Any], roles: Mapping[str, str], place: int, kernel: Compiled, text: str
) -> CompileRecord:
    loops = loops_of(kernel.ttgir, roles)
    return CompileRecord(
        **asked,
        launch=place,
        kernel=kernel.kernel,
        registers=kernel.registers,
        stack_bytes=kernel.stack_bytes,
        spill_loads=kernel.spill_loads,
        spill_stores=kernel.spill_stores,
        shared_bytes=kernel.shared_bytes,
        num_warps=kernel.num_warps,
        grid=kernel.grid,
        engaged=engaged(kernel, loops),
        loops=tuple(loops),
        cubin_sha256=kernel.cubin_sha256,
        listing=listing_name(text),
        seconds=kernel.seconds or None,
        triton=kernel.triton,
        ptxas=kernel.ptxas,
    )


def engaged(kernel: Compiled, loops: list[dict[str, Any]]) -> dict[str, bool]:
    """Option that the kernel's source or launch asks for -> whether the compiled kernel has it.

    What was asked for stands in Triton's first form of the kernel, where nothing is dropped yet.
    """
    asked: dict[str, bool] = {}
    if "tt.warp_specialize" in kernel.ttir:
        asked["warp_specialize"] = "ttg.warp_specialize(" in kernel.ttgir
    if "tt.descriptor_load" in kernel.ttir:
        asked["tma"] = ENGAGED["tma"] in kernel.ptx
    if kernel.pdl:
        asked["pdl"] = ENGAGED["pdl"] in kernel.ptx
    if kernel.num_stages > 1 and any(loop["flops"] for loop in loops):
        # A copy that is waited for before the next is issued needs one slot less than stages.
        asked["num_stages"] = deepest_buffer(loops) >= kernel.num_stages - 1
    for hint in sorted(set(HINT.findall(kernel.ttir))):
        asked[f"hint {hint}"] = re.search(HINT_IN_PTX.format(hint), kernel.ptx) is not None
    return asked
