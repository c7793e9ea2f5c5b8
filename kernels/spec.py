"""What an op says about itself: `Workload` (one size of one problem) and `Op` (the problem and who solves it).

Leaves counting to `kernels.work`, sizes of real models to `kernels.models`, and running to `bench`.
Nothing here imports torch: `bench list` and the analysis read workloads without it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels import work
from kernels.work import AXES, ELEMENT_BITS, Work

COMPUTE_DTYPES = ("bfloat16", "float16", "tfloat32", "float32", "float8_e4m3fn", "float8_e5m2", "int8")
DTYPE_ALIASES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "tf32": "tfloat32",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}
PHASES = ("prefill", "decode", "mixed")
TECHNIQUES = (
    "dense", "kv_cache", "paged", "continuous", "chunked", "prefix", "speculative", "window", "quantised_kv",
    "mla", "fp8", "int8", "int4", "fused_mlp", "moe", "lm_head", "sampling", "glue", "tensor_parallel",
)  # fmt: skip
SCALES = ("", "tensor", "head", "token", "channel", "block128")
DECODE_ROWS = work.DECODE_ROWS


class UnsupportedError(ValueError):
    """A provider cannot run this workload here; the message says why. Becomes the status UNSUPPORTED."""


def dtype_named(name: str) -> str:
    """The compute dtype for a name or a usual short form. Raises ValueError with the known names."""
    full = DTYPE_ALIASES.get(name, name)
    if full not in COMPUTE_DTYPES:
        raise ValueError(
            f"unknown dtype {name!r}; known: {', '.join(COMPUTE_DTYPES)} (short: {', '.join(DTYPE_ALIASES)})"
        )
    return full


def stored_as(name: str) -> dict[str, Any]:
    """The fields of a `Workload` that the dtype of a case id tells: `bf16.kv_fp8.head`, `fp8.block128`, `bf16.w_int4`.

    Raises:
        ValueError: a part that is no dtype, no storage after w_ or kv_, and no granularity of scales.
    """
    dtype, *parts = name.split(".")
    fields: dict[str, Any] = {"dtype": dtype_named(dtype)}
    for part in parts:
        if part.startswith(("w_", "kv_")):
            kind, _, storage = part.partition("_")
            fields["weight_dtype" if kind == "w" else "kv_dtype"] = DTYPE_ALIASES.get(storage, storage)
        else:
            one_of("granularity of scales", part, SCALES)
            fields["scale"] = part
    return fields


def one_of(kind: str, name: str, known: tuple[str, ...]) -> None:
    """Raises ValueError naming what is known when `name` is not among it."""
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(k for k in known if k)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One size of one problem.

    Attributes:
        axes: axis name -> size, only those that apply; kept in the order of `AXES`.
        dtype: compute dtype by torch's name (tfloat32 is float32 storage with TF32 multiplication).
        phase: prefill, decode or mixed; a name, never the reason for a class.
        technique: what of LLM serving it stands for.
        source: whose layer and why this size, "llama-3.1-8b: qkv_proj, tp 1"; several where models share a shape.
        weight_dtype, kv_dtype: storage where it differs from `dtype`.
        scale: granularity of quantisation scales.
        kv_lens: keys per sequence where sequences differ; `kv_len` is then the longest (the allocation).
        q_lens: new tokens per sequence where sequences differ; `q_len` is then the most of any.
    """

    axes: Mapping[str, int]
    dtype: str
    phase: str
    technique: str = "dense"
    source: tuple[str, ...] = ()
    weight_dtype: str = ""
    kv_dtype: str = ""
    scale: str = ""
    kv_lens: tuple[int, ...] = ()
    q_lens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for axis, size in self.axes.items():
            one_of("axis", axis, AXES)
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"axis {axis} must be a whole number >= 0, got {size!r}")
        one_of("dtype", self.dtype, COMPUTE_DTYPES)
        one_of("phase", self.phase, PHASES)
        one_of("technique", self.technique, TECHNIQUES)
        one_of("scale", self.scale, SCALES)
        for storage in (self.weight_dtype, self.kv_dtype):
            one_of("storage dtype", storage, ("", *ELEMENT_BITS))
        batch = self.axes.get("batch", 0)
        for name, lens in (("kv_lens", self.kv_lens), ("q_lens", self.q_lens)):
            longest = self.axes.get(name.removesuffix("s"), 0)
            if lens and (len(lens) != batch or min(lens) < 0 or max(lens) > longest):
                raise ValueError(
                    f"{name} needs one length for each of {batch} sequences, "
                    f"none under 0 or over {name.removesuffix('s')}={longest}; got {lens}"
                )
        # One problem has one key: causal=True is causal=1, and storage in the compute dtype goes without saying.
        object.__setattr__(self, "axes", {a: int(self.axes[a]) for a in AXES if a in self.axes})
        for storage in ("weight_dtype", "kv_dtype"):
            if getattr(self, storage) == self.dtype:
                object.__setattr__(self, storage, "")

    @property
    def stored(self) -> str:
        """Compute dtype, other storage and granularity of scales, as `stored_as` takes them: `bfloat16.w_int4`."""
        parts = ((".w_", self.weight_dtype), (".kv_", self.kv_dtype), (".", self.scale))
        return self.dtype + "".join(prefix + part for prefix, part in parts if part)

    @property
    def key(self) -> str:
        """dtype and sizes, the part of a case id after op and provider: `bfloat16.w_int4/M=1,N=4096,K=4096`."""
        sizes = ",".join(f"{axis}={size}" for axis, size in self.axes.items())
        return f"{self.stored}/{sizes}{_ragged_part('kv_lens', self.kv_lens)}{_ragged_part('q_lens', self.q_lens)}"


def _ragged_part(name: str, lens: tuple[int, ...]) -> str:
    if not lens:
        return ""
    text = "+".join(map(str, lens))
    if len(lens) > 8:
        text = f"sum{sum(lens)}-{zlib.crc32(text.encode()):08x}"
    return f",{name}={text}"


TRITON_ON_CPU = {"triton": "interpreted kernels have no speed: the Triton provider is timed on a GPU"}
Inputs = dict[str, Any]
Outputs = Any
"""A tensor, or a tuple of tensors in the order of the reference's."""


def no_config(workload: Workload, arch: int) -> tuple[Any, ...]:
    """For ops without launch parameters of their own."""
    return ()


def everything(inputs: Inputs) -> tuple[Inputs, Callable[[Outputs], Outputs]]:
    """The sample that is the whole: for ops small enough to check in full."""
    return inputs, lambda outputs: outputs


def nothing_to_tell(provider: str, inputs: Inputs) -> Mapping[str, str]:
    """For ops whose providers hide no choice worth recording."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A problem, its truth, and its providers.

    Attributes:
        name: the op's name, as in a case id.
        summary: one line: the formula.
        axes: the axes a workload of this op must have, in order, with the default of each (None: must be given).
        dtypes: compute dtypes it is defined for.
        make_inputs: (workload, device, seed) -> inputs by name; device "meta" gives shapes alone.
        reference: **inputs -> outputs in float64, the truth.
        eager: **inputs -> outputs, plain torch in the same storage and compute precision: the yardstick of the
            error rule.
        providers: name -> callable of the same inputs.
        work: workload -> Work.
        describe_axes: (axes, dtype, source) -> Workload: fills defaults, sets phase and technique.
        workloads: what `standard` and the other suites draw from, by suite name.
        check_workloads: small and ragged ones, for the interpreter and the tests.
        roles: input name -> "streamed" (weights, KV: rotated for a cold cache) or "resident".
        writes: inputs that the op writes by its nature; every other one must come back unchanged.
        unsupported: (workload, provider) -> reason, or None.
        cuda_only: provider -> why it has nothing to measure on a CPU.
        configs: (workload, arch) -> launch configurations, the default first.
        bucket: (workload, arch) -> what that default may depend on beside the arch: `bench tune` chooses one
            configuration for each, and a kernel's tuned table has it as its key.
        sample: inputs -> (fewer inputs, how to cut outputs alike), for checking large cases; the reference must then
            run on the meta device too, since the outputs' whole shapes are compared with its.
        facts: (provider, inputs) -> what the provider really ran (an SDPA backend, a library).
        validate: raises ValueError when device data (a block table, lengths) is out of range.
    """

    name: str
    summary: str
    axes: Mapping[str, int | None]
    dtypes: tuple[str, ...]
    make_inputs: Callable[[Workload, Any, int], Inputs]
    reference: Callable[..., Outputs]
    eager: Callable[..., Outputs]
    providers: Mapping[str, Callable[..., Outputs]]
    work: Callable[[Workload], Work]
    describe_axes: Callable[[Mapping[str, int], str, tuple[str, ...]], Workload]
    check_workloads: tuple[Workload, ...]
    roles: Mapping[str, str]
    writes: tuple[str, ...] = ()
    unsupported: Callable[[Workload, str], str | None] = lambda workload, provider: None
    cuda_only: Mapping[str, str] = field(default_factory=dict)
    configs: Callable[[Workload, int], tuple[Any, ...]] = no_config
    bucket: Callable[[Workload, int], tuple[Any, ...]] = lambda workload, arch: (workload.dtype,)
    sample: Callable[[Inputs], tuple[Inputs, Callable[[Outputs], Outputs]]] = everything
    facts: Callable[[str, Inputs], Mapping[str, str]] = nothing_to_tell
    validate: Callable[..., None] = lambda **inputs: None
