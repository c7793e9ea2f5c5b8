"""Named sets of cases, and the sets that a question on the command line asks for.

Sizes are chosen here; the shapes that a model implies come from `kernels.models`. Which of the cases really run is
left to `bench.case.select` and to the time budget of a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.case import Case, merged
from bench.technique_suite import techniques
from kernels.attention_layers import attention_decode_workloads, attention_prefill_workloads
from kernels.models import MODELS, Model, matmul_workloads, model_named, tp_sizes
from kernels.spec import DECODE_ROWS, Op, Workload, dtype_named, stored_as
from kernels.work import MLA_LATENT, MLA_ROPE, storage_bytes

ByOp = dict[str, list[Workload]]
"""Op name -> workloads."""

KV_LIMIT_BYTES = 64 * 10**9
"""Most bytes of keys and values a case may hold: what a GPU of 80 GB has room for beside the rest."""

MAY_BE_ZERO = ("kv_len", "prefix_len", "kv_heads", "causal", "window", "sinks", "softcap")
"""Axes whose 0 says something: no keys, as many as the queries' side has, or a mask that is off."""

LLAMA_HEADS = {"q_heads": 32, "kv_heads": 8, "head_dim": 128}
TP_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a model is run at: matmul rows, prompt lengths, and decode batches times cached lengths in tokens."""

    rows: tuple[int, ...]
    prompts: tuple[int, ...]
    batches: tuple[int, ...]
    cached: tuple[int, ...]


ALL_SIZES = Sizes(
    rows=(1, 8, 16, 32, 64, 128, 512, 2048, 8192),
    prompts=(1024, 2048, 4096, 8192, 16384, 32768),
    batches=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    cached=(1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
)
# Every model at every TP size is thousands of shapes: these keep the ends of each range and some between.
FEW_SIZES = Sizes(
    rows=(1, 16, 64, 512, 8192),
    prompts=(1024, 4096, 16384),
    batches=(1, 16, 64, 256),
    cached=(1024, 8192, 32768, 131072),
)


def suite_workloads(name: str) -> ByOp:
    """Workloads of the suite by op name; one key implied by two models is one workload with both sources.

    * smoke: a few tiny sizes of each op, seconds on two CPU cores.
    * quick: Llama-3.1-8B shapes, two to four minutes on two CPU cores.
    * standard: Llama-3.1-8B and 70B on one GPU, bfloat16. A decode whose keys and values pass `KV_LIMIT_BYTES`
      (64 GB) is left out: see `fits_kv_limit`.
    * techniques: every technique of LLM serving, at shapes of Llama-3.1 and DeepSeek-V3.
    * full: standard, techniques, every model at TP 1, 2, 4 and 8 where it divides (fewer sizes each), and variants of
      dtype, heads, mask and lengths that no listed model has.

    Raises:
        ValueError: an unknown suite; the message names the known ones.
    """
    if name not in _BUILDERS:
        raise ValueError(f"unknown suite {name!r}; known: {', '.join(SUITES)}")
    return _joined(_BUILDERS[name]())


def suite_cases(name: str, ops: Iterable[Op]) -> list[Case]:
    """Every provider of each of `ops` at the suite's workloads of that op. Raises ValueError for an unknown suite."""
    by_op = suite_workloads(name)
    return [
        Case(op, provider, workload) for op in ops for workload in by_op.get(op.name, []) for provider in op.providers
    ]


def model_workloads(model_name: str, tp: int, dtypes: Sequence[str]) -> ByOp:
    """The sizes of `standard` for one model on one GPU of a tensor-parallel group.

    Raises:
        ValueError: an unknown model or dtype, or a `tp` the model does not divide over.
    """
    model = model_named(model_name)
    return _joined(part for dtype in map(dtype_named, dtypes) for part in _of_model(model, tp, dtype, ALL_SIZES))


def question_workloads(
    op: Op, sets: Mapping[str, Sequence[int]], dtypes: Sequence[str], source: tuple[str, ...]
) -> list[Workload]:
    """Every combination of the sizes set for each axis, the op's default where an axis is not set.

    Raises:
        ValueError: an axis or a dtype that the op does not have, an axis without default that is not set, or a size
            of 0 that leaves no work.
    """
    for axis in sets:
        if axis not in op.axes:
            raise ValueError(f"{op.name} has no axis {axis!r}; its axes: {', '.join(op.axes)}")
        if 0 in sets[axis] and axis not in MAY_BE_ZERO:
            raise ValueError(f"{op.name}: {axis}=0 leaves no work to measure; wanted {axis} of at least 1")
    sizes: list[Sequence[int]] = []
    for axis, default in op.axes.items():
        if axis not in sets and default is None:
            raise ValueError(f"{op.name} needs a size for axis {axis!r}; its axes: {', '.join(op.axes)}")
        sizes.append(sets[axis] if axis in sets or default is None else (default,))
    return merged(
        replace(op.describe_axes(dict(zip(op.axes, combination, strict=True)), dtype, source), **fields)
        for dtype, fields in [_storage(op, name) for name in dtypes]
        for combination in itertools.product(*sizes)
    )


def _storage(op: Op, name: str) -> tuple[str, dict[str, Any]]:
    """The compute dtype, and what else of a workload a dtype means as case ids spell it."""
    fields = stored_as(name)
    dtype = fields.pop("dtype")
    if dtype not in op.dtypes:
        raise ValueError(f"{op.name} has no dtype {dtype!r}; it has: {', '.join(op.dtypes)}")
    if "kv_dtype" in fields and "k_scale" not in op.roles:
        raise ValueError(f"{op.name} takes no {fields['kv_dtype']} KV cache")
    return dtype, fields | ({"technique": "quantised_kv"} if "kv_dtype" in fields else {})


def kv_bytes(workload: Workload) -> int:
    """Bytes of the keys and values that an attention workload allocates; 0 for any other."""
    axes = workload.axes
    if "kv_len" not in axes:
        return 0
    tokens = axes["batch"] * axes["kv_len"] + axes.get("prefix_len", 0)
    if "head_dim" in axes:
        elements = tokens * axes["kv_heads"] * (axes["head_dim"] + axes.get("v_head_dim", axes["head_dim"]))
    else:
        elements = tokens * (MLA_LATENT + MLA_ROPE)
    return int(storage_bytes(elements, workload.kv_dtype or workload.dtype))


def fits_kv_limit(workload: Workload) -> bool:
    """Whether keys and values stay within `KV_LIMIT_BYTES`."""
    return kv_bytes(workload) <= KV_LIMIT_BYTES


def _joined(parts: Iterable[Mapping[str, Sequence[Workload]]]) -> ByOp:
    by_op: ByOp = {}
    for part in parts:
        for op_name, workloads in part.items():
            by_op.setdefault(op_name, []).extend(workloads)
    return {op_name: merged(workloads) for op_name, workloads in by_op.items()}


def _of_model(model: Model, tp: int, dtype: str, sizes: Sizes) -> list[ByOp]:
    decode = attention_decode_workloads(model, tp, sizes.batches, sizes.cached, dtype)
    return [
        matmul_workloads(model, tp, sizes.rows, dtype),
        {"attention_prefill": attention_prefill_workloads(model, tp, sizes.prompts, dtype)},
        {"attention_decode": [w for w in decode if fits_kv_limit(w)]},
    ]


def _smoke() -> list[ByOp]:
    source = "smoke: tiny, no model's"
    prefill = [_prefill(source, q_len=n, kv_len=n, q_heads=4, kv_heads=2, head_dim=64) for n in (64, 128)]
    decode = [_decode(source, batch=n, kv_len=256, q_heads=4, kv_heads=2, head_dim=64) for n in (1, 2)]
    return [
        {"matmul": [_matmul(128, 256, 256, dtype, source) for dtype in ("bfloat16", "float32")]},
        {"matmul_decode": [_matmul(m, 256, 256, "bfloat16", source) for m in (1, 8)]},
        {"attention_prefill": prefill},
        {"attention_decode": decode},
    ]


def _quick() -> list[ByOp]:
    model = model_named("llama-3.1-8b")
    attention_matmuls = ("qkv_proj", "o_proj")
    batches_and_cached = (((1,), (1024, 4096, 8192, 16384)), ((4,), (1024, 4096)), ((16,), (512, 1024)))
    return [
        matmul_workloads(model, 1, (128, 256, 512, 1024), "bfloat16", only=attention_matmuls),
        matmul_workloads(model, 1, (128, 512), "bfloat16", only=("gate_up_proj", "down_proj")),
        matmul_workloads(model, 1, (128, 512), "float32", only=("o_proj",)),
        matmul_workloads(model, 1, (1, 8, 32, 64), "bfloat16", only=(*attention_matmuls, "down_proj")),
        matmul_workloads(model, 1, (1, 16), "bfloat16", only=("gate_up_proj",)),
        matmul_workloads(model, 1, (1, 16), "float32", only=("o_proj",)),
        {"attention_prefill": attention_prefill_workloads(model, 1, (128, 256, 512, 1024), "bfloat16")},
        *(
            {"attention_decode": attention_decode_workloads(model, 1, batches, cached, "bfloat16")}
            for batches, cached in batches_and_cached
        ),
    ]


def _standard() -> list[ByOp]:
    models = (model_named("llama-3.1-8b"), model_named("llama-3.1-70b"))
    return [part for model in models for part in _of_model(model, 1, "bfloat16", ALL_SIZES)]


def _full() -> list[ByOp]:
    every_model = [
        part
        for model in MODELS
        for tp in TP_SIZES
        if tp in tp_sizes(model)
        for part in _of_model(model, tp, "bfloat16", FEW_SIZES)
    ]
    variants = [
        {"matmul": _square_matmuls()},
        {"attention_prefill": _prefill_variants()},
        {"attention_decode": [w for w in _decode_variants() if fits_kv_limit(w)]},
    ]
    return [*_standard(), *techniques(), *every_model, *variants]


def _square_matmuls() -> list[Workload]:
    dtypes = ("bfloat16", "float16", "tfloat32", "float32")
    return [
        _matmul(n, n, n, dtype, "square, no model's: one dtype against another")
        for dtype in dtypes
        for n in (1024, 2048, 4096, 8192)
    ]


def _prefill_variants() -> list[Workload]:
    groups = [
        _prefill(f"variant: {kv_heads} KV heads for 32 query heads", q_len=n, kv_len=n, kv_heads=kv_heads)
        for kv_heads in (32, 8, 1)
        for n in (1024, 4096, 16384)
    ]
    batched = [
        _prefill("variant: several prompts at once", batch=batch, q_len=n, kv_len=n)
        for batch in (2, 4, 16)
        for n in (512, 2048)
    ]
    two_way = [_prefill("variant: no mask", q_len=n, kv_len=n, causal=0) for n in (1024, 4096, 16384)]
    chunks = [
        _prefill("variant: a chunk on top of what is cached", "chunked", q_len=q_len, kv_len=kv_len)
        for q_len in (512, 2048)
        for kv_len in (4096, 16384, 65536)
    ]
    return [*groups, *batched, *two_way, *chunks]


def _decode_variants() -> list[Workload]:
    groups = [
        _decode(f"variant: {kv_heads} KV heads for 32 query heads", batch=batch, kv_len=n, kv_heads=kv_heads)
        for kv_heads in (32, 8, 1)
        for batch in (1, 16, 64)
        for n in (1024, 8192, 32768)
    ]
    drafted = [
        _decode("variant: drafted tokens verified at once", "speculative", batch=batch, q_len=q_len, kv_len=8192)
        for q_len in (2, 4, 8, 16)
        for batch in (1, 16, 64)
    ]
    evenly_spread = tuple(1024 * (i + 1) for i in range(16))
    one_long = (65536, *(1024,) * 31)
    ragged = [
        _decode(f"variant: {what}", "continuous", kv_lens, batch=len(kv_lens), kv_len=max(kv_lens))
        for what, kv_lens in (("lengths spread evenly", evenly_spread), ("one long, the others short", one_long))
    ]
    return [*groups, *drafted, *ragged]


def _matmul(m: int, n: int, k: int, dtype: str, source: str) -> Workload:
    phase = "decode" if m <= DECODE_ROWS else "prefill"
    return Workload(axes={"M": m, "N": n, "K": k}, dtype=dtype, phase=phase, source=(source,))


def _prefill(source: str, technique: str = "dense", **axes: int) -> Workload:
    """Causal, one prompt, the heads of Llama-3.1-8B, bfloat16, unless `axes` says otherwise."""
    axes = {"batch": 1, "causal": 1, **LLAMA_HEADS, **axes}
    return Workload(axes=axes, dtype="bfloat16", phase="prefill", technique=technique, source=(source,))


def _decode(source: str, technique: str = "kv_cache", kv_lens: tuple[int, ...] = (), **axes: int) -> Workload:
    """One token a sequence, the heads of Llama-3.1-8B, bfloat16, unless `axes` says otherwise."""
    axes = {"q_len": 1, **LLAMA_HEADS, **axes}
    return Workload(axes=axes, dtype="bfloat16", phase="decode", technique=technique, source=(source,), kv_lens=kv_lens)


_BUILDERS: dict[str, Callable[[], list[ByOp]]] = {
    "smoke": _smoke,
    "quick": _quick,
    "standard": _standard,
    "techniques": techniques,
    "full": _full,
}
SUITES: tuple[str, ...] = tuple(_BUILDERS)
