"""The page of attention techniques: what each buys in bytes, intensity and attainable time; with CSV and figure.

The arithmetic is left to `analysis.techniques`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis import matmul_page, panels, technique_lines
from analysis.files import write_all
from analysis.peaks import MEASURED, table
from analysis.tables import Table, markdown, number, percent
from analysis.techniques import (
    DEVICE,
    DTYPE,
    LONG,
    PAGE,
    RESERVED,
    Gain,
    attainable_us,
    cached_bytes,
    gains,
    intensity,
    kv_bytes_per_token,
    padded_of_useful,
    tokens_in,
    total,
    unused_of_pages,
    unused_of_reservation,
)
from kernels.models import model_named
from kernels.work import MLA_LATENT, MLA_ROPE

BUDGET_BYTES = 20e9
EXAMPLE = 1000
"""Keys of the sequence that pages are explained with."""
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "gemma-3-27b", "deepseek-v3")
BEFORE, AFTER = "#8a8a8a", "#0072B2"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Okabe-Ito: told apart with any common colour blindness."""
SIZE_IN, DPI = (12.6, 5.6), 110
ABOUT = (
    "**Nothing here was measured.** Work is counted by the rules of `kernels/work.py` at one layer of the model on one "
    "GPU, bfloat16, 64 sequences of 8,192 keys unless a row says otherwise; a new token each in decode. Attainable is "
    f"T0 + max(FLOPs/P, bytes/BW) of each launch under the published measured roofs of the {DEVICE}. "
    "Overhead bytes (block tables, partial results) are moved and not compulsory.",
)


def frame(rows: Sequence[Gain]) -> pd.DataFrame:
    """One row a technique, figures of before and after."""
    made = []
    for gain in rows:
        row: dict[str, object] = {"technique": gain.technique, "model": gain.model}
        for when, what, works in (
            ("before", gain.before, gain.works_before),
            ("after", gain.after, gain.works_after),
        ):
            work = total(works)
            row |= {
                when: what,
                f"flops_{when}": work.flops,
                f"bytes_{when}": work.bytes,
                f"overhead_bytes_{when}": work.overhead_bytes,
                f"intensity_flops_per_byte_{when}": intensity(works),
                f"attainable_us_{when}": attainable_us(works),
            }
        made.append(row)
    return pd.DataFrame(made)


def page(rows: pd.DataFrame) -> str:
    """`README.md`."""
    texts = {
        "technique": rows["technique"], "model": rows["model"], "before": rows["before"], "after": rows["after"],
        "MB before": (rows["bytes_before"] / 1e6).map(number), "MB after": (rows["bytes_after"] / 1e6).map(number),
        "overhead MB after": (rows["overhead_bytes_after"] / 1e6).map(number),
        "FLOP/byte before": rows["intensity_flops_per_byte_before"].map(number),
        "FLOP/byte after": rows["intensity_flops_per_byte_after"].map(number),
        "attainable us before": rows["attainable_us_before"].map(number),
        "attainable us after": rows["attainable_us_after"].map(number),
    }  # fmt: skip
    parts = [
        "# Attention techniques of LLM serving", "", "Those of matmuls: [matmul.md](matmul.md).", "",
        *ABOUT, "", "![KV bytes and intensities](techniques.png)", "",
        "![Intensity as each technique's own size grows](trajectories.png)", "",
        markdown(_table("What each buys", texts, words=4)), markdown(_cache_table()),
        _room(), "", _expanded(), "",
        "Roofs: " + MEASURED[DEVICE].source + ".", "", "Made by `python -m analysis techniques -o reports/techniques`.",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _room() -> str:
    paged, reserved = percent(unused_of_pages(EXAMPLE)), percent(unused_of_reservation(EXAMPLE))
    return (
        "All layers keep every token, but in a sequence's GB windowed layers keep their window. Pages move no fewer "
        f"bytes; they buy room: of a sequence of {EXAMPLE:,} keys, pages of {PAGE} leave {paged} of its memory unused, "
        f"and a reservation for {RESERVED:,} leaves {reserved}."
    )


def _expanded() -> str:
    model = model_named("deepseek-v3")
    wide, values, rope = model.head_dim, model.v_head_dim, model.rope_head_dim
    return (
        f"MLA's prefill is not absorbed: each head has keys of {wide} and values of {values}, which take "
        f"{(wide + values) / (2 * MLA_LATENT + MLA_ROPE):.2f} of the FLOPs. Its kernel pads {wide} to the next power "
        f"of two, {number(padded_of_useful(model))} times the useful tensor work. Scores by two products, of "
        f"{wide - rope} and {rope} columns, as decode's are of {MLA_LATENT} and {MLA_ROPE}, would pad nothing; the "
        "kernel does not do that yet."
    )


def _cache_table() -> Table:
    models = [model_named(name) for name in MODELS]
    texts = {
        "model": pd.Series([m.name for m in models]),
        "KV bytes a token": pd.Series([f"{kv_bytes_per_token(m):,}" for m in models]),
        "with a KV head for each query head": pd.Series([f"{kv_bytes_per_token(m, m.q_heads):,}" for m in models]),
        f"GB of a sequence of {LONG:,}": pd.Series([number(cached_bytes(m, LONG) / 1e9) for m in models]),
        "tokens in 20 GB": pd.Series([f"{tokens_in(BUDGET_BYTES, m):,}" for m in models]),
        "as MHA": pd.Series([f"{tokens_in(BUDGET_BYTES, m, m.q_heads):,}" for m in models]),
    }
    return _table(f"KV cache, {DTYPE}", texts, words=1)


def _table(title: str, texts: dict[str, pd.Series[str]], *, words: int) -> Table:
    rows = list(zip(*(series.tolist() for series in texts.values()), strict=True))
    return Table(title=title, columns=tuple(texts), rows=rows, numeric=frozenset(list(texts)[words:]))


def figure(rows: pd.DataFrame) -> Figure:
    """KV bytes against heads, and the intensities before and after."""
    made = Figure(figsize=SIZE_IN, dpi=DPI, layout="constrained")
    FigureCanvasAgg(made)
    left, right = made.subplots(1, 2, width_ratios=(1, 1.5))
    _draw_heads(left)
    _draw_intensities(right, rows)
    return made


def _draw_heads(axes: Axes) -> None:
    for name, colour in zip(MODELS, COLOURS, strict=True):
        model = model_named(name)
        heads = [2**i for i in range(model.q_heads.bit_length()) if 2**i <= model.q_heads]
        axes.plot(heads, [kv_bytes_per_token(model, h) / 1e3 for h in heads], color=colour, linewidth=1, label=name)
        own = 1 if model.kv_lora_rank else model.kv_heads
        marker = "D" if model.kv_lora_rank else "o"
        axes.plot([own], [kv_bytes_per_token(model) / 1e3], marker=marker, color=colour, markersize=7)
    axes.set(xscale="log", yscale="log", xlabel="KV heads: 1 is MQA, the right end MHA", ylabel="KB of KV a token")
    axes.set_title("KV cache of a token, all layers, bfloat16\n(dot: as published; diamond: MLA's latent)", fontsize=10)
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64, 128], labels=["1", "2", "4", "8", "16", "32", "64", "128"])
    axes.minorticks_off()
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False)


def _draw_intensities(axes: Axes, rows: pd.DataFrame) -> None:
    before, after = rows["intensity_flops_per_byte_before"], rows["intensity_flops_per_byte_after"]
    places = range(len(rows) - 1, -1, -1)
    for y, old, new in zip(places, before, after, strict=True):
        axes.plot([old, new], [y, y], color="#bbbbbb", linewidth=2, zorder=1)
    axes.scatter(before, places, color=BEFORE, label="before", zorder=2)
    axes.scatter(after, places, color=AFTER, marker="D", s=26, label="after", zorder=3)
    ridge = table()[DEVICE].ridge(DTYPE)
    axes.axvline(ridge, color="black", linewidth=1, linestyle="--", label=f"ridge of the {DEVICE}: {ridge:.0f}")
    labels = [f"{t}: {after}" for t, after in zip(rows["technique"], rows["after"], strict=True)]
    axes.set_yticks(list(places), labels=labels, fontsize=7.5)
    axes.set(xscale="log", xlabel="useful FLOP per compulsory byte")
    axes.set_title("Intensity of the attention kernel", fontsize=10)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, -0.27), ncols=3, frameon=False)


def write_techniques(directory: Path) -> list[str]:
    """Writes both pages, three tables and their figures; a line for each that could not be."""
    rows, lines = frame(gains()), technique_lines.lines()
    return write_all(
        matmul_page.outputs(directory)
        | {
            directory / "README.md": lambda: page(rows),
            directory / "techniques.csv": lambda: rows.to_csv(index=False, lineterminator="\n"),
            directory / "techniques.png": lambda: panels.png(figure(rows)),
            directory / "trajectories.csv": lambda: technique_lines.frame(lines).to_csv(
                index=False, lineterminator="\n"
            ),
            directory / "trajectories.png": lambda: panels.png(technique_lines.figure(lines)),
        }
    )
