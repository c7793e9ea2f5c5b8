"""How far each attention technique carries a kernel: its intensity as the technique's own size grows, as counted.

The arithmetic of one launch is `analysis.techniques`; lines of measured cases are `analysis.trajectories`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis.peaks import table
from analysis.techniques import BATCH, CACHED, DEVICE, DTYPE, LONG, PREFIX, PROMPT, attention, intensity, shared_prefix
from kernels.models import Model, model_named
from kernels.work import Work, mla_decode_work

SIZE_IN, DPI = (8.4, 5.6), 110
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe-Ito: told apart with any common colour blindness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One technique.

    Attributes:
        technique: as workloads name it.
        model: whose layer, on one GPU.
        grows: what the sizes are.
        sizes: ascending.
        intensities: useful FLOP per compulsory byte at each.
    """

    technique: str
    model: str
    grows: str
    sizes: tuple[int, ...]
    intensities: tuple[float, ...]


def lines() -> list[Line]:
    """All of them; decode of 64 sequences of 8,192 keys unless the line says otherwise."""
    llama, gemma, deepseek = (model_named(name) for name in ("llama-3.1-70b", "gemma-3-27b", "deepseek-v3"))
    return [
        _line("kv_cache", llama, "sequences", (1, 256), lambda n: [attention(llama, batch=n)]),
        _line("kv_cache", llama, "query heads a KV head", (1, 64),
              lambda n: [attention(llama, kv_heads=llama.q_heads // n)]),
        _line("chunked", llama, f"tokens a chunk of a prompt of {PROMPT:,}", (16, PROMPT), lambda n: _chunks(llama, n)),
        _line("prefix", llama, f"sequences that share {PREFIX:,} of {CACHED:,} keys", (1, 256),
              lambda n: shared_prefix(llama, n)),
        _line("speculative", llama, "tokens a draft", (1, 16), lambda n: [attention(llama, q_len=n)]),
        _line("window", gemma, f"keys of {LONG:,} in the window", (256, LONG),
              lambda n: [attention(gemma, kv_len=LONG, window=n)]),
        _line("mla", deepseek, "heads a GPU, one latent", (16, 128), lambda n: [_latent(n)]),
    ]  # fmt: skip


def _line(technique: str, model: Model, grows: str, ends: tuple[int, int], works: Callable[[int], list[Work]]) -> Line:
    sizes = tuple(2**i for i in range(ends[0].bit_length() - 1, ends[1].bit_length()))
    counted = tuple(intensity(works(size)) for size in sizes)
    return Line(technique=technique, model=model.name, grows=grows, sizes=sizes, intensities=counted)


def _chunks(model: Model, tokens: int) -> list[Work]:
    return [attention(model, q_len=tokens, kv_len=end, batch=1) for end in range(tokens, PROMPT + 1, tokens)]


def _latent(heads: int) -> Work:
    keys = BATCH * CACHED
    return mla_decode_work(batch=BATCH, q_heads=heads, q_len=1, kv_tokens=keys, pairs=keys, dtype=DTYPE)


def frame(drawn: Sequence[Line]) -> pd.DataFrame:
    """One row a point: technique, model, grows, size, intensity_flops_per_byte."""
    return pd.DataFrame(
        [
            {"technique": line.technique, "model": line.model, "grows": line.grows, "size": size,
             "intensity_flops_per_byte": value}
            for line in drawn
            for size, value in zip(line.sizes, line.intensities, strict=True)
        ]
    )  # fmt: skip


def figure(drawn: Sequence[Line]) -> Figure:
    """Intensity against size, all lines, and the ridge."""
    made = Figure(figsize=SIZE_IN, dpi=DPI, layout="constrained")
    FigureCanvasAgg(made)
    axes: Axes = made.subplots()
    for line, colour in zip(drawn, COLOURS, strict=True):
        label = f"{line.technique} ({line.model}): {line.grows}"
        axes.plot(line.sizes, line.intensities, marker="o", markersize=4, linewidth=1.2, color=colour, label=label)
    ridge = table()[DEVICE].ridge(DTYPE)
    axes.axhline(ridge, color="black", linewidth=1, linestyle="--", label=f"ridge of the {DEVICE}: {ridge:.0f}")
    axes.set(xscale="log", yscale="log", xlabel="the size that grows", ylabel="useful FLOP per compulsory byte")
    axes.set_title("Intensity as each technique's own size grows, bfloat16", fontsize=10)
    ticks = [4**i for i in range(8)]
    axes.set_xticks(ticks, labels=[f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(color="#dddddd", linewidth=0.6)
    made.legend(fontsize=8, loc="outside lower center", ncols=2, frameon=False)
    return made
