"""What each matmul technique of LLM serving buys at one layer of a model: bytes, intensity, crossing, attainable time.

Every figure is `kernels.work` applied to a published model's shape; none is measured. Bytes are of the stored widths,
with scales; arithmetic runs at the roof of the compute dtype. Attention is left to `analysis.techniques`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.peaks import MEASURED, MeasuredSet, table
from analysis.serving.step import distinct_experts
from analysis.techniques import CACHED, DEVICE, DTYPE, attention
from kernels.models import Model, projections, sharded
from kernels.work import Work, grouped_matmul_work, kv_append_work, matmul_work

BATCHES = (1, 16, 64, 256)
SQUARE = 8192
"""K and N of the matmul whose crossing is told."""
GROUP = 128
"""Weights along K that share a scale, where a format has groups."""
FLOAT_BYTES, HALF_BYTES = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a matmul's operands are stored and multiplied.

    Attributes:
        name: as workloads' techniques and storage are named.
        compute: dtype of the tensor cores.
        activations, weights: stored dtypes.
        scaled: what has scales: "" nothing; "token" rows of activations and channels of weights, float32; "group"
            groups of 128 weights, 16 bits; "channel" channels of weights, 16 bits.
    """

    name: str
    compute: str
    activations: str
    weights: str
    scaled: str = ""

    def scale_bytes(self, m: int, n: int, k: int) -> int:
        """Of all scales of one matmul."""
        each = {"": 0, "token": FLOAT_BYTES * (m + n), "group": HALF_BYTES * n * -(-k // GROUP), "channel": 2 * n}
        return each[self.scaled]

    def work(self, m: int, n: int, k: int) -> Work:
        """Of [M, K] x [K, N] with a bfloat16 output."""
        return matmul_work(
            m, n, k, dtype=self.activations, weight_dtype=self.weights, out_dtype=DTYPE,
            extra_bytes=self.scale_bytes(m, n, k),
        )  # fmt: skip


FORMATS = (
    Format(name="bfloat16", compute=DTYPE, activations=DTYPE, weights=DTYPE),
    Format(
        name="fp8 W8A8", compute="float8_e4m3fn", activations="float8_e4m3fn", weights="float8_e4m3fn", scaled="token"
    ),
    Format(name="int8 W8A8", compute="int8", activations="int8", weights="int8", scaled="token"),
    Format(name="int8 W8A16", compute=DTYPE, activations=DTYPE, weights="int8", scaled="channel"),
    Format(name="int4 W4A16", compute=DTYPE, activations=DTYPE, weights="int4", scaled="group"),
)


def layer_works(model: Model, form: Format, m: int, tp: int = 1) -> list[Work]:
    """The four projections of one dense layer on one of `tp` GPUs, a launch each."""
    return [form.work(m, n, k) for name, n, k in projections(model, tp) if name != "lm_head"]


def crossing(form: Format, k: int = SQUARE, n: int = SQUARE) -> int:
    """The least M at which arithmetic takes as long as bytes, by the datasheet's roofs; 0 where no M does."""
    m = np.arange(1, 4 * SQUARE)
    ridge = table()[DEVICE].ridge(form.compute)
    scales = np.array([form.scale_bytes(int(rows), n, k) for rows in m])
    work = matmul_work(m, n, k, dtype=form.activations, weight_dtype=form.weights, out_dtype=DTYPE, extra_bytes=scales)
    above = np.flatnonzero(work.flops / work.bytes >= ridge)
    return int(m[above[0]]) if len(above) else 0


def seconds_us(work: Work, compute: str, roofs: MeasuredSet = MEASURED[DEVICE]) -> float | None:
    """T0 + max(FLOPs/P, bytes/BW); None where the set has no roof of the compute dtype."""
    if compute not in roofs.tflops:
        return None
    return float(
        roofs.launch_us + max(work.flops / (roofs.tflops[compute] * 1e6), work.bytes / (roofs.dram_gb_per_s * 1e3))
    )


def total_us(works: Sequence[Work], compute: str) -> float | None:
    """Launches one after another."""
    times = [seconds_us(work, compute) for work in works]
    return None if None in times else float(sum(time for time in times if time is not None))


def decode_layer(model: Model, batch: int, kv_len: int = CACHED) -> dict[str, list[Work]]:
    """What one decode step launches in a dense layer on one GPU, in bfloat16: kind -> works.

    Norms add the residual in the same launch: two rows read, two written. RoPE turns queries and keys in place.
    """
    shard, width = sharded(model, 1), HALF_BYTES * batch
    heads = shard.q_heads + shard.kv_heads
    glue = [
        *[4 * width * model.hidden + HALF_BYTES * model.hidden] * 2,
        2 * width * heads * model.head_dim,
        3 * width * shard.intermediate,
    ]
    append = kv_append_work(batch=batch, tokens=batch, kv_heads=shard.kv_heads, head_dim=model.head_dim, dtype=DTYPE)
    return {
        "matmuls": layer_works(model, FORMATS[0], batch),
        "attention": [attention(model, batch=batch, kv_len=kv_len), append],
        "norms, RoPE, SiLU": [Work(flops=0, bytes=moved) for moved in glue],
    }


def weights_us(model: Model, roofs: MeasuredSet = MEASURED[DEVICE]) -> float:
    """The bytes of a layer's weights over the DRAM's bandwidth: what batch 1 is usually estimated by."""
    weights = sum(HALF_BYTES * n * k for name, n, k in projections(model, 1) if name != "lm_head")
    return float(weights / (roofs.dram_gb_per_s * 1e3))


def experts_hit(model: Model, tokens: int) -> float:
    """Expected distinct experts of one layer: E (1 - (1 - k/E)^T) with uniform routing."""
    return float(distinct_experts(model, np.array([float(tokens)]))[0])


def expert_layer(model: Model, tokens: int) -> list[Work]:
    """Gate-up and down of the routed experts, bfloat16, with the expected number of experts read."""
    rows, hit, columns = tokens * model.experts_active, experts_hit(model, tokens), model.expert_intermediate
    return [
        grouped_matmul_work(rows, n, k, experts_hit=hit, dtype=DTYPE)
        for n, k in ((2 * columns, model.hidden), (model.hidden, columns))
    ]
