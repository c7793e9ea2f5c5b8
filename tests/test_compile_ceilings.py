"""Compile ceilings on the roofline: matched by configuration and arch, drawn right of the ridge, never elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic
from compiled_kernels import DECODE, PREFILL, kernel, listing
from typer.testing import CliRunner

from analysis import plots
from analysis.__main__ import app
from analysis.compile_ceilings import CEILINGS, with_compile_ceilings
from analysis.compile_ticks import ticks_of
from bench.compiled import CompileWriter, listing_name
from bench.record import Environment, Record

NAME = synthetic.H100.device_name or ""
CONFIG = dict(PREFILL.config)
SERIAL = 2048 / (2048 + 1056)
"""Of PREFILL, by hand: see `analysis.pipes`."""


def attention(run: str = "h100", q_len: int = 4096, **how: Any) -> Record:
    return synthetic.attention(run, 1, q_len, q_len, **({"config": CONFIG} | how))


def matched(tmp_path: Path, *records: Record, archs: dict[str, int] | None = None) -> list[Any]:
    frame, _ = synthetic.classified(tmp_path, (synthetic.H100, records))
    found = with_compile_ceilings(frame, [kernel(PREFILL), kernel(DECODE)], {NAME: 90} if archs is None else archs)
    return list(zip(*(found[column].fillna(-1).tolist() for column in CEILINGS), strict=True))


def test_a_case_has_the_ceilings_of_the_kernel_of_its_configuration(tmp_path: Path) -> None:
    assert matched(tmp_path, attention()) == [(1, pytest.approx(SERIAL))]


def test_the_order_of_parameters_does_not_matter(tmp_path: Path) -> None:
    turned = dict(reversed(CONFIG.items()))
    assert matched(tmp_path, attention(config=turned)) == [(1, pytest.approx(SERIAL))]


@pytest.mark.parametrize(
    "how",
    [
        {"config": CONFIG | {"block_n": 64}},
        {"config": {}},
        {"dtype": "float16"},
        {"provider": "torch"},
        {"kv_dtype": "int8", "scale": "head"},
    ],
    ids=["configuration", "no configuration", "dtype", "provider", "storage"],
)
def test_another_kernel_has_none(tmp_path: Path, how: dict[str, Any]) -> None:
    assert matched(tmp_path, attention(**how)) == [(-1, -1)]


def test_another_arch_or_an_unknown_one_has_none(tmp_path: Path) -> None:
    assert matched(tmp_path / "a", attention(), archs={NAME: 100}) == [(-1, -1)]
    assert matched(tmp_path / "b", attention(), archs={}) == [(-1, -1)]


def test_ticks_stand_at_the_rightmost_point_under_the_datasheets_roof(tmp_path: Path) -> None:
    frame, devices = synthetic.classified(tmp_path, (synthetic.H100, [attention(q_len=n) for n in (4096, 8192, 32)]))
    found = with_compile_ceilings(frame, [kernel(PREFILL)], {NAME: 90})
    roof = devices[0].datasheet
    assert roof is not None
    right = float(found["intensity_flops_per_byte"].max())
    assert ticks_of(found, devices[0]) == [
        ("compile_overlapped", right, roof.tflops["bfloat16"]),
        ("compile_serial", right, pytest.approx(SERIAL * roof.tflops["bfloat16"])),
    ]
    left = found[found["intensity_flops_per_byte"] < roof.ridge("bfloat16")]
    assert len(left) == 1 and ticks_of(left, devices[0]) == []
    assert ticks_of(frame, devices[0]) == []


def test_the_figure_draws_them_and_says_in_its_legend_what_they_are(tmp_path: Path) -> None:
    frame, devices = synthetic.classified(tmp_path, (synthetic.H100, [attention()]))
    with_them = with_compile_ceilings(frame, [kernel(PREFILL)], {NAME: 90})
    for rows, count in ((with_them, 2), (frame, 0)):
        [axes] = plots.roofline_figure(rows, devices, "t").axes
        assert len([line for line in axes.lines if line.get_gid() == "ceiling"]) == count
        legend = axes.get_legend()
        assert legend is not None
        assert sum("ceiling" in text.get_text() for text in legend.get_texts()) == count


def test_the_command_takes_compile_records(tmp_path: Path) -> None:
    run = synthetic.write(tmp_path / "run", "h100", synthetic.H100, [attention()])
    text = listing("attention_prefill_d128")
    with CompileWriter(tmp_path / "made", Environment()) as writer:
        writer.append(replace(PREFILL, listing=listing_name(text)), text)
    result = CliRunner().invoke(app, ["roofline", str(run), "--compiled", str(tmp_path / "made")])
    assert result.exit_code == 0, result.stderr
    assert "compile ceiling" in (tmp_path / "run" / "roofline.svg").read_text(encoding="utf-8")
    missing = CliRunner().invoke(app, ["roofline", str(run), "--compiled", str(tmp_path / "nothing")])
    assert missing.exit_code == 2 and "compiled.jsonl" in missing.stderr
