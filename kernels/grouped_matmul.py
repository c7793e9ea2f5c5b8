"""grouped_matmul: Y[r] = X[r] @ W[expert of r], the experts' projections of a mixture of experts.

x [rows, K] holds the rows of expert 0, then those of expert 1, and so on; `offsets` [E] int32 says where each expert's
rows end, as torch's grouped products take it. Experts without a row are not read. M counts tokens: each visits `top_k`
of `experts`, so that rows = M top_k; which they are follows from the axes by `kernels.expert_routing`, evenly or
`skewed`. Bound: DRAM until an expert gets some 300 rows of bfloat16 on an H100, since each brings its own weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import torch

from kernels.expert_routing import expert_rows
from kernels.inputs import Sampler, torch_dtype
from kernels.matmul import CHECK_IN_FULL, SAMPLED_COLUMNS, SAMPLED_ROWS, spread
from kernels.spec import DECODE_ROWS, TRITON_ON_CPU, Inputs, Op, Workload
from kernels.work import Work, grouped_matmul_work

TORCH_BYTES = 16
"""Bytes that torch._grouped_mm wants rows of x and w and of its output in whole multiples of."""


def grouped_matmul_torch(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """`torch._grouped_mm`.

    Args:
        x: [rows, K].
        w: [E, K, N] of the same dtype, K-major.
        offsets: int32 [E], where each expert's rows end.

    Returns:
        [rows, N] of the same dtype.
    """
    return torch._grouped_mm(x, w, offs=offsets)


def grouped_matmul_eager(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """[rows, N]: one `torch.matmul` an expert that got a row."""
    out = x.new_empty(x.shape[0], w.shape[2])
    if x.is_meta:
        return out
    ends = offsets.tolist()
    for expert, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if end > start:
            out[start:end] = x[start:end] @ w[expert].to(x.dtype)
    return out


def grouped_matmul_reference(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The same in float64 from the inputs' own values; weights are widened expert by expert."""
    return grouped_matmul_eager(x.double(), w, offsets)


def grouped_matmul_triton(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, **how: Any) -> torch.Tensor:
    """The Triton kernel: see `kernels.grouped_matmul_triton.grouped_matmul`."""
    from kernels import grouped_matmul_triton as kernel

    return kernel.grouped_matmul(x, w, offsets, **how)


def rows_of(workload: Workload) -> tuple[int, ...]:
    """Rows of each expert."""
    a = workload.axes
    return expert_rows(a["M"], a["experts"], a["top_k"], skewed=bool(a["skewed"]))


def make_inputs(workload: Workload, device: torch.device | str, seed: int) -> Inputs:
    """x [rows, K], w [E, K, N] K-major, and offsets."""
    a, draw, dtype = workload.axes, Sampler(device, seed), torch_dtype(workload.dtype)
    return {
        "x": draw.normal((a["M"] * a["top_k"], a["K"]), dtype),
        "w": draw.normal((a["experts"], a["N"], a["K"]), dtype).transpose(1, 2),
        "offsets": torch.tensor(list(accumulate(rows_of(workload))), dtype=torch.int32, device=device),
    }


def validate(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> None:
    """Raises ValueError when offsets do not rise to the number of rows."""
    ends = offsets.tolist()
    if [*ends] != sorted(ends) or ends[0] < 0 or ends[-1] != len(x):
        raise ValueError(f"offsets must rise from 0 or more to {len(x)} rows, got {ends}")


def sample(inputs: Inputs) -> tuple[Inputs, Callable[[torch.Tensor], torch.Tensor]]:
    """The whole of a small product; rows and columns spread over a large one, and the experts that such rows have."""
    x, w, offsets = inputs["x"], inputs["w"], inputs["offsets"]
    if len(x) * w[0].numel() <= CHECK_IN_FULL // 8:
        return inputs, lambda out: out
    rows, columns = spread(len(x), SAMPLED_ROWS, x.device), spread(w.shape[2], SAMPLED_COLUMNS, x.device)
    ends = (rows[None, :] < offsets[:, None]).sum(1).to(torch.int32)
    return {"x": x[rows], "w": w[:, :, columns], "offsets": ends}, lambda out: out[rows][:, columns]


def configs(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The Triton kernel's configurations for this many rows an expert."""
    from kernels import grouped_matmul_triton as kernel

    return kernel.configs_for(kernel.problem_of(**_shapes(workload), arch=arch))


def bucket(workload: Workload, arch: int) -> tuple[Any, ...]:
    """The key of the Triton kernel's tuned table for this workload."""
    from kernels import grouped_matmul_triton as kernel

    return kernel.bucket_of(kernel.problem_of(**_shapes(workload), arch=arch))


def _shapes(workload: Workload) -> Inputs:
    inputs = make_inputs(workload, "meta", 0)
    return {name: inputs[name] for name in ("x", "w")}


def work(workload: Workload) -> Work:
    """2 rows N K FLOPs; x, y, and the weights of experts that got a row once. Offsets are overhead."""
    a, rows = workload.axes, rows_of(workload)
    hit = sum(count > 0 for count in rows)
    done = grouped_matmul_work(sum(rows), a["N"], a["K"], experts_hit=hit, dtype=workload.dtype)
    return Work(flops=done.flops, bytes=done.bytes, overhead_bytes=4 * a["experts"])


def unsupported(workload: Workload, provider: str) -> str | None:
    """More experts a token than there are, and rows that torch does not take."""
    a = workload.axes
    if not 1 <= a["top_k"] <= a["experts"] or a["skewed"] > 1:
        return f"wanted 1 <= top_k <= experts and skewed 0 or 1, got {a['top_k']}, {a['experts']} and {a['skewed']}"
    whole = TORCH_BYTES // torch_dtype(workload.dtype).itemsize
    if provider == "torch" and (a["N"] % whole or a["K"] % whole):
        return f"torch._grouped_mm wants N and K in whole {whole}, got N={a['N']} and K={a['K']}"
    return None


def describe_axes(axes: Mapping[str, int], dtype: str, source: tuple[str, ...]) -> Workload:
    """A workload of these sizes: decode up to 64 tokens, prefill above."""
    phase = "decode" if axes["M"] <= DECODE_ROWS else "prefill"
    return Workload(axes=axes, dtype=dtype, phase=phase, technique="moe", source=source)


def _check(M: int, N: int, K: int, experts: int, top_k: int, skewed: int = 0) -> Workload:
    axes = {"M": M, "N": N, "K": K, "experts": experts, "top_k": top_k, "skewed": skewed}
    return describe_axes(axes, "float16", ("ragged, for correctness",))


OP = Op(
    name="grouped_matmul",
    summary="Y[r] = X[r] @ W[expert of r], rows sorted by expert",
    axes={"M": None, "N": None, "K": None, "experts": 8, "top_k": 2, "skewed": 0},
    dtypes=("bfloat16", "float16"),
    make_inputs=make_inputs,
    reference=grouped_matmul_reference,
    eager=grouped_matmul_eager,
    providers={"triton": grouped_matmul_triton, "torch": grouped_matmul_torch},
    cuda_only=TRITON_ON_CPU,
    configs=configs,
    bucket=bucket,
    work=work,
    describe_axes=describe_axes,
    check_workloads=(
        _check(1, 64, 96, 5, 1),
        _check(3, 40, 72, 16, 2),
        _check(5, 33, 77, 3, 3),
        _check(40, 72, 136, 12, 2, skewed=1),
        _check(90, 48, 100, 3, 2, skewed=1),
        _check(150, 136, 64, 1, 1),
    ),
    roles={"x": "resident", "w": "streamed", "offsets": "resident"},
    unsupported=unsupported,
    sample=sample,
    validate=validate,
)
