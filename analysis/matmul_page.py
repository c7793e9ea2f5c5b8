"""The page of matmul techniques: storage formats, crossings, a whole decode layer, tensor parallelism, experts.

The arithmetic is left to `analysis.matmul_techniques`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis import panels
from analysis.matmul_techniques import (
    BATCHES,
    FORMATS,
    SQUARE,
    Format,
    crossing,
    decode_layer,
    expert_layer,
    experts_hit,
    layer_works,
    total_us,
    weights_us,
)
from analysis.peaks import MEASURED, table
from analysis.tables import Table, markdown, number
from analysis.techniques import CACHED, DEVICE, DTYPE, intensity, total
from kernels.models import model_named

MODEL, EXPERTS = "llama-3.1-70b", "qwen3-30b-a3b"
TP_SIZES, TP_BATCH = (1, 2, 4, 8), 16
COLOURS = ("#000000", "#0072B2", "#CC79A7", "#009E73", "#D55E00")
"""Okabe-Ito: told apart with any common colour blindness."""
STYLES, WIDTHS = ("-", "-", "--", "-", "-"), (1.4, 4.0, 2.4, 1.2, 1.4)
"""Formats of 8 bits lie on one another until arithmetic bounds them."""
ROWS = tuple(2**i for i in range(11))
TIMES_US = (200, 500, 1000, 2000)
SIZE_IN, DPI = (12.6, 5.2), 110
ABOUT = (
    f"**Nothing here was measured.** Work is counted by the rules of `kernels/work.py`: stored bytes with scales, "
    f"{DTYPE} outputs. Attainable is T0 + max(FLOPs/P, bytes/BW) of each launch under the published measured roofs of "
    f"the {DEVICE}, P that of the compute dtype; '-' where no measured roof of it is published. Scales: fp8 and int8 "
    "W8A8 one a token and one an output channel, W8A16 one a channel, W4A16 one of 16 bits for 128 weights.",
)


def formats() -> pd.DataFrame:
    """The four projections of a layer in each format at each batch."""
    model, made = model_named(MODEL), []
    for form in FORMATS:
        for batch in BATCHES:
            works = layer_works(model, form, batch)
            plain = total_us(layer_works(model, FORMATS[0], batch), FORMATS[0].compute)
            us = total_us(works, form.compute)
            made.append({
                "format": form.name, "batch": batch, "bytes": total(works).bytes,
                "intensity_flops_per_byte": intensity(works), "attainable_us": us,
                "times_as_fast": plain / us if plain and us else None,
            })  # fmt: skip
    return pd.DataFrame(made)


def _crossings() -> list[tuple[str, ...]]:
    def unscaled(form: Format) -> Format:
        return Format(name=form.name, compute=form.compute, activations=form.activations, weights=form.weights)

    ridges = [table()[DEVICE].ridge(form.compute) for form in FORMATS]
    return [
        (form.name, number(ridge), str(crossing(unscaled(form))), str(crossing(form)))
        for form, ridge in zip(FORMATS, ridges, strict=True)
    ]


def _layers() -> list[tuple[str, ...]]:
    model = model_named(MODEL)
    rows: list[tuple[str, ...]] = []
    for batch in BATCHES:
        kinds = decode_layer(model, batch)
        times = {kind: total_us(works, DTYPE) or 0.0 for kind, works in kinds.items()}
        whole, weights = sum(times.values()), weights_us(model)
        launches = sum(map(len, kinds.values()))
        rows.append((str(batch), *map(number, times.values()), str(launches), number(whole), number(weights),
                     f"{whole / weights:.2f}"))  # fmt: skip
    return rows


def _sharded() -> list[tuple[str, ...]]:
    model = model_named(MODEL)
    rows: list[tuple[str, ...]] = []
    for tp in TP_SIZES:
        works = layer_works(model, FORMATS[0], TP_BATCH, tp)
        us = total_us(works, DTYPE) or 0.0
        floor = len(works) * MEASURED[DEVICE].launch_us
        rows.append((str(tp), number(total(works).bytes / 1e6), number(intensity(works)), number(us),
                     f"{100 * floor / us:.0f} %"))  # fmt: skip
    return rows


def _experts() -> list[tuple[str, ...]]:
    model = model_named(EXPERTS)
    rows: list[tuple[str, ...]] = []
    for tokens in BATCHES:
        works = expert_layer(model, tokens)
        rows.append((str(tokens), f"{experts_hit(model, tokens):.1f}", number(total(works).bytes / 1e6),
                     number(intensity(works)), number(total_us(works, DTYPE))))  # fmt: skip
    return rows


def _table(title: str, columns: Sequence[str], rows: list[tuple[str, ...]]) -> Table:
    return Table(title=title, columns=tuple(columns), rows=rows, numeric=frozenset(columns[1:]))


def page(rows: pd.DataFrame) -> str:
    """`matmul.md`."""
    told = list(
        zip(
            rows["format"], rows["batch"].map(str), (rows["bytes"] / 1e6).map(number),
            rows["intensity_flops_per_byte"].map(number), rows["attainable_us"].map(number),
            rows["times_as_fast"].map(number), strict=True,
        )
    )  # fmt: skip
    parts = [
        "# Matmul techniques of LLM serving", "", *ABOUT, "", "![Intensity and time against rows](matmul.png)", "",
        markdown(_table(f"The projections of one layer of {MODEL}",
                        ("format", "batch", "MB", "FLOP/byte", "attainable us", "times bfloat16's"), told)),
        markdown(_table(f"Rows at which K = N = {SQUARE} crosses the datasheet's ridge",
                        ("format", "ridge", "M without scales", "M with scales"), _crossings())),
        markdown(_table(f"A decode step in one layer of {MODEL}, bfloat16, {CACHED:,} keys a sequence, attainable us",
                        ("batch", "matmuls", "attention, append", "norms, RoPE, SiLU", "launches", "sum",
                         "weights / bandwidth", "ratio"), _layers())),
        markdown(_table(f"Tensor parallel: the projections at batch {TP_BATCH} on one GPU, bfloat16, without the "
                        "all-reduces", ("TP", "MB", "FLOP/byte", "attainable us", "of it launches"), _sharded())),
        markdown(_table(f"Experts of one layer of {EXPERTS}, uniform routing, bfloat16",
                        ("tokens", "experts read", "MB", "FLOP/byte", "attainable us"), _experts())),
        "Made by `python -m analysis techniques -o reports/techniques`.",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def figure() -> Figure:
    """Intensity of one matmul, and attainable time of a layer's, against rows."""
    made = Figure(figsize=SIZE_IN, dpi=DPI, layout="constrained")
    FigureCanvasAgg(made)
    left, right = made.subplots(1, 2)
    model = model_named(MODEL)
    _draw(left, lambda form, m: intensity([form.work(m, SQUARE, SQUARE)]), "useful FLOP per compulsory byte")
    for compute, style in ((DTYPE, ":"), ("float8_e4m3fn", "-.")):
        ridge = table()[DEVICE].ridge(compute)
        left.axhline(ridge, color="#808080", linewidth=1, linestyle=style, label=f"ridge of {compute}: {ridge:.0f}")
    left.set_title(f"One matmul, K = N = {SQUARE}", fontsize=10)
    _draw(right, lambda form, m: total_us(layer_works(model, form, m), form.compute), "attainable us")
    right.set_yticks(TIMES_US, labels=[f"{us:,}" for us in TIMES_US])
    right.minorticks_off()
    right.set_title(f"The four projections of a layer of {MODEL}", fontsize=10)
    left.legend(fontsize=8, frameon=False)
    right.legend(fontsize=8, frameon=False)
    return made


def _draw(axes: Axes, value: Callable[[Format, int], Any], label: str) -> None:
    for form, colour, style, width in zip(FORMATS, COLOURS, STYLES, WIDTHS, strict=True):
        values = [value(form, m) for m in ROWS]
        if None not in values:
            axes.plot(ROWS, values, color=colour, linestyle=style, linewidth=width, label=form.name)
    axes.set(xscale="log", yscale="log", xlabel="rows M (tokens of a step)", ylabel=label)
    axes.set_xticks(ROWS[::2], labels=[str(m) for m in ROWS[::2]])
    axes.minorticks_off()
    axes.grid(color="#dddddd", linewidth=0.6)


def outputs(directory: Path) -> dict[Path, Callable[[], str | bytes]]:
    """The files, and what makes each."""
    rows = formats()
    return {
        directory / "matmul.md": lambda: page(rows),
        directory / "matmul.csv": lambda: rows.to_csv(index=False, lineterminator="\n"),
        directory / "matmul.png": lambda: panels.png(figure()),
    }
