"""The figure: what may stand on one line, what log axes cannot show, and labels that never cover one another.

Ids like P08 in docstrings name the known mistake with plots or files that a test guards against.
"""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from synthetic import Classified, classified

from analysis import panels, plots
from analysis.roof_lines import FlatRoof, View, label_heights
from analysis.trajectories import trajectories
from bench.record import Record
from kernels.spec import Workload
from kernels.work import Work

ROOT = Path(__file__).parents[1]


def h100_records(run: str = "h100") -> list[Record]:
    """Four dtypes, decode and prefill, two providers, measured roofs, one overhead-bound and one invalid case."""
    measured = {"bfloat16": 800.0, "float16": 810.0, "float8_e4m3fn": 1400.0, "tfloat32": 400.0}
    records = synthetic.roofs(run, measured, 2800, 1.5)
    for dtype, provider, m in itertools.product(measured, ("triton", "torch"), (1, 8, 64, 512, 4096)):
        share = 0.8 if provider == "triton" else 0.7
        roof = (measured[dtype], 2800.0, 1.5)
        records.append(synthetic.matmul(run, m, dtype=dtype, provider=provider, share=share, device=roof))
    records += [synthetic.attention(run, batch, 1, 4096, share=0.6) for batch in (1, 4, 16)]
    records.append(synthetic.matmul(run, 16, 16, 16, times_us=(1.6, 1.7, 1.8, 1.65, 1.9, 2.0, 2.3)))
    records.append(synthetic.matmul(run, 2048, 2048, 2048, times_us=(5.0,)))
    return records


def texts(figure: Figure, *kinds: str) -> list[Text]:
    """The figure's texts of some kinds, all when none is named."""
    found = [t for t in figure.findobj(Text) if isinstance(t, Text) and t.get_text().strip() and t.get_visible()]
    return [t for t in found if not kinds or t.get_gid() in kinds]


def boxes(figure: Figure, found: Sequence[Text]) -> list[tuple[str, Bbox]]:
    """Where texts stand, in pixels."""
    figure.canvas.draw()
    return [(t.get_text(), t.get_window_extent()) for t in found]


def overlapping(placed: Sequence[tuple[str, Bbox]]) -> list[tuple[str, str]]:
    """Pairs of texts of which one covers the other; half a pixel of touching is none."""
    shrunk = [(text, box.padded(-0.5)) for text, box in placed]
    return [(a, b) for (a, one), (b, other) in itertools.combinations(shrunk, 2) if one.overlaps(other)]


def drawn_points(figure: Figure) -> np.ndarray:
    """All points of all scatter plots."""
    clouds = [c for axes in figure.axes for c in axes.collections if isinstance(c, PathCollection)]
    return np.concatenate([np.asarray(c.get_offsets()) for c in clouds]) if clouds else np.empty((0, 2))


@pytest.fixture
def h100(tmp_path: Path) -> Classified:
    return classified(tmp_path, (synthetic.H100, h100_records()))


@pytest.fixture
def several(tmp_path: Path) -> Classified:
    h200 = [synthetic.matmul("h200", m, device=(989, 4800, 0)) for m in (1, 16, 256, 4096)]
    return classified(
        tmp_path,
        (synthetic.H100, h100_records()),
        (synthetic.H200, h200),
        (synthetic.CPU, synthetic.cpu_run("cpu")),
        (synthetic.UNKNOWN, [synthetic.matmul("unknown", m) for m in (1, 256)]),
    )


def test_labels_of_roofs_cover_neither_each_other_nor_the_legend_and_stay_inside(several: Classified) -> None:
    frame, devices = several
    figure = plots.roofline_figure(frame, devices, "several", ["run a, taken 2026-03-01"])
    for axes in figure.axes:
        legend = axes.get_legend()
        assert legend is not None
        labels = [t for t in axes.texts if t.get_gid() in ("roof-label", "size-label")]
        assert overlapping(boxes(figure, [*labels, *legend.get_texts()])) == []
        inside = axes.get_window_extent()
        assert legend.get_window_extent().x0 >= inside.x1
        for text, box in boxes(figure, [t for t in axes.texts if t.get_gid() != "dram-label"]):
            assert inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1, text


def test_no_text_leaves_the_picture_and_no_panel_covers_the_next(several: Classified) -> None:
    frame, devices = several
    figure = plots.roofline_figure(frame, devices, "several", ["a note that is long " * 40])
    placed = boxes(figure, [t for t in texts(figure) if t.get_gid() != "dram-label"])
    picture = figure.bbox
    for text, box in placed:
        assert picture.x0 <= box.x0 and box.x1 <= picture.x1 and picture.y0 <= box.y0 and box.y1 <= picture.y1, text
    titles = [axes.title for axes in figure.axes]
    assert overlapping(boxes(figure, [*texts(figure, "caption"), *titles])) == []


def test_labels_stand_left_of_every_diagonal(h100: Classified) -> None:
    """At the right end of a flat roof lie the points of prefill; left of the diagonals lies nothing."""
    frame, devices = h100
    figure = plots.roofline_figure(frame, devices, "h100")
    axes = figure.axes[0]
    labels = texts(figure, "roof-label")
    assert len(labels) == 7  # bfloat16 and float16 share the datasheet's roof
    for text, box in boxes(figure, labels):
        right, bottom = axes.transData.inverted().transform((box.x1, box.y0))
        assert right * 3.35 < bottom * 1.02, text


def test_only_roofs_of_plotted_dtypes_are_drawn(tmp_path: Path) -> None:
    frame, devices = classified(tmp_path, (synthetic.H100, [synthetic.matmul("r", m) for m in (1, 512)]))
    labels = [t.get_text() for t in texts(plots.roofline_figure(frame, devices, "h100"), "roof-label")]
    assert labels == ["bf16 989.4 TFLOP/s datasheet, ridge 295"]


def test_labels_of_close_roofs_are_pushed_apart() -> None:
    view = View(x_low=0.1, x_high=1e4, y_low=1, y_high=1e4, width_in=9, height_in=5)
    roofs = [
        FlatRoof(kind="measured", dtypes=("bfloat16",), tflops=rate, gb_per_s=3000.0) for rate in (700.0, 710.0, 715.0)
    ]
    heights = label_heights(roofs, view)
    assert heights[0] > 700
    assert all(high / low >= view.raised(1.0, 0.14) for low, high in itertools.pairwise(heights))


def test_colour_is_phase_hollow_is_overhead_and_a_cross_is_invalid(h100: Classified) -> None:
    frame, devices = h100
    clouds = [
        c for c in plots.roofline_figure(frame, devices, "x").axes[0].collections if isinstance(c, PathCollection)
    ]
    filled = {to_hex(np.asarray(c.get_facecolor())[0]) for c in clouds if len(np.asarray(c.get_facecolor()))}
    assert filled == {"#0072b2", "#d55e00"}
    hollow = [c for c in clouds if not len(np.asarray(c.get_facecolor()))]
    overhead = frame[frame["class"] == "overhead-bound"]
    assert len(overhead) and sum(len(np.asarray(c.get_offsets())) for c in hollow) == len(overhead)
    legend = plots.roofline_figure(frame, devices, "x").axes[0].get_legend()
    assert legend is not None
    words = [t.get_text() for t in legend.get_texts()]
    assert "hollow: overhead-bound" in words and "invalid: above what is possible" in words and "small: torch" in words


def test_two_gpus_never_share_a_panel_or_a_line(tmp_path: Path) -> None:
    """P08."""
    runs = [
        (e, [synthetic.matmul(n, m) for m in (1, 16, 512)]) for n, e in (("a", synthetic.H100), ("b", synthetic.H200))
    ]
    frame, devices = classified(tmp_path, *runs)
    figure = plots.roofline_figure(frame, devices, "two")
    assert [axes.get_title() for axes in figure.axes] == ["NVIDIA H100 80GB HBM3: 3 points", "NVIDIA H200: 3 points"]
    assert [len(line.sizes) for line in trajectories(frame)] == [3, 3]


def test_points_off_log_axes_are_left_out_and_counted(tmp_path: Path) -> None:
    """P03."""
    nothing = Workload(axes={"M": 7}, dtype="bfloat16", phase="decode")
    records = [
        synthetic.matmul("r", 1),
        synthetic.matmul("r", 2, times_us=(0.0,)),
        synthetic.record("r", "copy", nothing, Work(0, 10**9), times_us=(400.0,)),
    ]
    frame, devices = classified(tmp_path, (synthetic.H100, records))
    figure = plots.roofline_figure(frame, devices, "zero")
    assert len(drawn_points(figure)) == 1
    caption = texts(figure, "caption")[0].get_text()
    assert "2 points without a positive intensity and rate cannot stand on log axes: left out" in caption
    ElementTree.fromstring(panels.svg(figure))
    assert imread(io.BytesIO(panels.png(figure))).ndim == 3


@pytest.mark.parametrize("kind", ["zero", "roofs alone", "no device"])
def test_nothing_to_draw_gives_a_placeholder(tmp_path: Path, kind: str) -> None:
    """P01."""
    records = {
        "zero": [synthetic.matmul("r", 1, times_us=(0.0,))],
        "roofs alone": synthetic.roofs("r", {"bfloat16": 700.0}, 2800, 2.0),
        "no device": [synthetic.matmul("r", 1)],
    }[kind]
    frame, devices = classified(tmp_path, (synthetic.H100, records))
    if kind == "no device":
        frame, devices = frame.iloc[:0], []
    figure = plots.roofline_figure(frame, devices, kind)
    assert [t.get_text() for t in texts(figure, "placeholder")] == ["nothing to draw: no measured point"]
    assert panels.png(figure).startswith(b"\x89PNG")


def test_error_bars_are_clamped_at_zero() -> None:
    """P07: rounded bounds on the wrong side of the median."""
    frame = pd.DataFrame(
        {"time_us": [1.0, 1.0], "low_us": [1.1, 0.5], "high_us": [0.9, 2.0], "tflops_per_s": [10.0] * 2}
    )
    below, above = plots.error_bars(frame)
    assert list(below) == [0.0, 5.0]
    assert list(above) == [0.0, 10.0]


def test_wide_intervals_are_drawn_from_the_slowest_to_the_fastest(tmp_path: Path) -> None:
    records = [synthetic.matmul("r", 512, times_us=(50.0, 100.0, 200.0))]
    frame, devices = classified(tmp_path, (synthetic.H100, records))
    figure = plots.roofline_figure(frame, devices, "bars")
    bars = [s for c in figure.axes[0].collections if isinstance(c, LineCollection) for s in c.get_segments()]
    rate = frame["tflops_per_s"].iloc[0]
    assert [tuple(segment[:, 1]) for segment in bars] == [pytest.approx((rate / 2, rate * 2))]


def test_an_absurd_time_does_not_squeeze_the_picture(tmp_path: Path) -> None:
    records = [synthetic.matmul("r", m) for m in (1, 512)] + [synthetic.matmul("r", 4096, times_us=(1e-6,))]
    frame, devices = classified(tmp_path, (synthetic.H100, records))
    axes = plots.roofline_figure(frame, devices, "absurd").axes[0]
    assert axes.get_ylim()[1] < 10_000
    assert axes.get_title() == "NVIDIA H100 80GB HBM3: 3 points, 1 above the picture"


def test_three_thousand_points_are_small_and_translucent(tmp_path: Path) -> None:
    few, devices = classified(tmp_path, (synthetic.H100, [synthetic.matmul("r", m) for m in (1, 64, 2048)]))
    many = pd.concat([few] * 1000, ignore_index=True)
    small, large = (plots.roofline_figure(f, devices, "n").axes[0].collections for f in (many, few))
    sizes = [[c.get_sizes()[0] for c in cs if isinstance(c, PathCollection)] for cs in (small, large)]
    assert max(sizes[0]) < 10 < min(sizes[1])
    assert all((c.get_alpha() or 1) <= 0.35 for c in small if isinstance(c, PathCollection))


def test_svg_has_text_as_text_no_date_and_is_the_same_twice(h100: Classified) -> None:
    frame, devices = h100
    one, other = (panels.svg(plots.roofline_figure(frame, devices, "the title $x_1$")) for _ in range(2))
    assert one == other
    assert b">the title $x_1$</text>" in one
    assert b"date" not in one.lower().replace(b"dated", b"")


def test_neither_display_nor_backend_matters(tmp_path: Path) -> None:
    """P04: a stale DISPLAY and an interactive backend."""
    synthetic.write(tmp_path, "r", synthetic.H100, [synthetic.matmul("r", 1)])
    for backend in ("TkAgg", "no_such_backend"):
        environment = os.environ | {"DISPLAY": "localhost:64.0", "MPLBACKEND": backend}
        command = [sys.executable, "-m", "analysis", "roofline", str(tmp_path)]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")
        (tmp_path / "roofline.png").unlink()


def test_the_caption_tells_device_peaks_source_and_run(h100: Classified) -> None:
    """A21."""
    frame, devices = h100
    caption = texts(plots.roofline_figure(frame, devices, "x", ["run h100, taken today"]), "caption")[0].get_text()
    assert "NVIDIA H100 80GB HBM3: recognised as H100 SXM5 80GB by its reported properties" in caption
    assert "NVIDIA H100 datasheet" in caption
    assert "measured on this device by python -m bench peaks, run h100" in caption
    assert "run h100, taken today" in caption
