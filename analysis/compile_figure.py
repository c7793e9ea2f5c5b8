"""The figure of compiled kernels: cycles of each pipe of an SM, stacked, one bar a kernel, the binding pipe marked.

Prefill is drawn per million useful FLOP, decode per KB of what it streams, so that kernels of other tiles compare.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.compile_labels import short_labels
from analysis.compiled import Kernel

PIPES = {"tensor": "#0072B2", "mufu": "#D55E00", "fp32": "#009E73", "alu": "#E69F00", "issue": "#BBBBBB"}
"""Okabe-Ito: told apart with any common colour blindness."""
BARS_IN, ROW_IN, HEAD_IN, FOOT_IN, LEGEND_IN, ENDS_IN, LETTER_IN = 7.1, 0.185, 0.15, 0.65, 0.6, 1.0, 0.064
DPI, COLOURS = 100, 64
MFLOP, KB = 1e6, 1024
WORDS = {
    "MFLOP": "cycles of an SM per MFLOP; at the end: ceilings on the tensor peak, overlapped / in turn",
    "KB": "cycles of an SM per KB streamed; at the end: instructions per KB",
}


def pipes_figure(kernels: Sequence[Kernel], title: str) -> Figure:
    """Draws the main kernel of each case: one panel of those that multiply most, one of those that stream.

    Args:
        kernels: of one arch and one dtype; a later launch of a case (a reduction) is left out.
        title: the heading.
    """
    main = [kernel for kernel in kernels if kernel.record.launch == 0 and kernel.loop]
    decode = [kernel for kernel in main if kernel.record.case["phase"] == "decode" and kernel.trip_bytes]
    other = [kernel for kernel in main if kernel not in decode and kernel.flops]
    panels = [(part, unit) for part, unit in ((other, "MFLOP"), (decode, "KB")) if part]
    heights = [HEAD_IN + ROW_IN * len(part) + FOOT_IN for part, _ in panels]
    label_in = LETTER_IN * max([len(name) for part, _ in panels for name in _names(part)], default=0)
    width_in = label_in + BARS_IN + ENDS_IN
    figure = Figure(figsize=(width_in, LEGEND_IN + max(sum(heights), 1.0)), dpi=DPI)
    FigureCanvasAgg(figure)
    height = figure.get_figheight()
    figure.text(0.5, 1 - 0.08 / height, title, ha="center", va="top", fontsize=12, parse_math=False)
    handles = [Patch(color=colour, label=pipe) for pipe, colour in PIPES.items()]
    dot = Line2D([], [], linestyle="none", marker="o", markersize=4, color="black", label="the pipe that binds")
    figure.legend(
        handles=[*handles, dot], loc="upper center", bbox_to_anchor=(0.5, 1 - 0.3 / height), ncols=6, fontsize=8,
        frameon=False,
    )  # fmt: skip
    if not panels:
        figure.text(0.5, 0.4, "nothing to draw: no kernel has a loop", ha="center", fontsize=12)
    top = height - LEGEND_IN
    for (part, unit), needed in zip(panels, heights, strict=True):
        bottom = top - needed + FOOT_IN
        box = (label_in / width_in, bottom / height, BARS_IN / width_in, ROW_IN * len(part) / height)
        _draw(figure.add_axes(box), part, unit)
        top -= needed
    return figure


def _draw(axes: Axes, kernels: Sequence[Kernel], unit: str) -> None:
    scales = [MFLOP / kernel.flops if unit == "MFLOP" else KB / kernel.trip_bytes for kernel in kernels]
    longest = 0.0
    for place, (kernel, scale) in enumerate(zip(kernels, scales, strict=True)):
        cycles = {"tensor": kernel.cycles.tensor} | kernel.cycles.others
        left = 0.0
        for pipe, colour in PIPES.items():
            wide = cycles[pipe] * scale
            axes.barh(place, wide, left=left, height=0.72, color=colour, linewidth=0)
            if pipe == kernel.cycles.binding:
                axes.plot(left + wide / 2, place, marker="o", markersize=3.2, color="black")
            left += wide
        longest = max(longest, left)
        axes.text(left, place, f" {_end(kernel, unit)}", va="center", fontsize=6.5)
    axes.set_yticks(range(len(kernels)), _names(kernels), fontsize=6.5)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set(ylim=(len(kernels) - 0.4, -0.6), xlim=(0, longest * 1.02))
    axes.set_xlabel(WORDS[unit], fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _names(kernels: Sequence[Kernel]) -> list[str]:
    return [
        f"{kernel.record.case['op']} {label}".strip()
        for kernel, label in zip(kernels, short_labels(kernels), strict=True)
    ]


def _end(kernel: Kernel, unit: str) -> str:
    if unit == "KB":
        return f"{kernel.mix.instructions * kernel.warps * KB / kernel.trip_bytes:.0f}"
    overlapped, serial = kernel.ceilings
    if overlapped is None or serial is None:
        return "the issuing warp alone" if kernel.is_part else "no tensor cores"
    return f"{overlapped:.2f} / {serial:.2f}"
