"""Matmul techniques against bytes, crossings and sums worked by hand, and the page that tells them."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import matmul_page
from analysis.matmul_techniques import (
    FORMATS,
    crossing,
    decode_layer,
    expert_layer,
    experts_hit,
    layer_works,
    seconds_us,
    total_us,
    weights_us,
)
from analysis.techniques import intensity, total
from analysis.techniques_report import write_techniques
from kernels.models import model_named

BY_NAME = {form.name: form for form in FORMATS}
SEVENTY, QWEN = model_named("llama-3.1-70b"), model_named("qwen3-30b-a3b")
WEIGHTS = 8192 * (10240 + 8192 + 57344 + 28672)
"""Of one layer: QKV of 64 + 2 x 8 heads of 128, O, gate and up, down."""


def test_the_projections_of_a_layer_read_their_weights_as_stored() -> None:
    """One row: the weights, then 8192 x 3 + 28672 values in and 10240 + 8192 + 57344 + 8192 out, 2 bytes each."""
    activations = 2 * (3 * 8192 + 28672 + 10240 + 8192 + 57344 + 8192)
    assert total(layer_works(SEVENTY, BY_NAME["bfloat16"], 1)).bytes == 2 * WEIGHTS + activations
    four_bits = total(layer_works(SEVENTY, BY_NAME["int4 W4A16"], 1))
    assert four_bits.bytes == WEIGHTS // 2 + 2 * WEIGHTS // 128 + activations, "a scale of 2 bytes for 128 weights"
    assert four_bits.flops == 2 * WEIGHTS


def test_both_operands_of_w8a8_have_scales() -> None:
    """[16, 8192] x [8192, 1024]: one scale of 4 bytes a token and a channel."""
    work = BY_NAME["fp8 W8A8"].work(16, 1024, 8192)
    assert work.bytes == 16 * 8192 + 8192 * 1024 + 2 * 16 * 1024 + 4 * (16 + 1024)


@pytest.mark.parametrize(
    ("name", "rows"), [("bfloat16", 319), ("fp8 W8A8", 332), ("int8 W8A16", 160), ("int4 W4A16", 83)]
)
def test_rows_that_cross_the_ridge(name: str, rows: int) -> None:
    """2 M 8192 / (4 M + w 8192) = 295.2 in bfloat16, w bytes a weight: 318.2, 159.1, and with 1/64 for scales 82.0.

    fp8: 2 M 8192 / (3 M + 8192 + 4 (M + 8192) / 8192) = 590.7: 331.4.
    """
    assert crossing(BY_NAME[name]) == rows
    assert crossing(BY_NAME[name], k=16, n=16) == 0, "8 x M FLOPs a byte of activations never get there"


def test_a_decode_layer_is_its_weights_and_what_a_step_does_besides() -> None:
    """One sequence: four norms' rows and weights; 72 heads turned in place; 28,672 gates and as many ups."""
    kinds = decode_layer(SEVENTY, 1)
    glue = [work.bytes for work in kinds["norms, RoPE, SiLU"]]
    assert glue == [4 * 2 * 8192 + 2 * 8192] * 2 + [2 * 2 * 72 * 128, 3 * 2 * 28672]
    assert weights_us(SEVENTY) == pytest.approx(2 * WEIGHTS / 2.75e12 * 1e6)
    attention, append = kinds["attention"]
    assert attention.bytes == 2 * (2 * 8192 + 8192 * 2 * 1024)
    assert append.bytes == 2 * 2 * 2 * 1024
    matmuls = total_us(kinds["matmuls"], "bfloat16")
    assert matmuls == pytest.approx(4 * 3.0 + total(kinds["matmuls"]).bytes / 2.75e6)


def test_golden_16_tokens_of_top_8_read_82_of_128_experts() -> None:
    assert experts_hit(QWEN, 16) == pytest.approx(82.4, abs=0.05)
    assert experts_hit(QWEN, 1) == pytest.approx(8)
    works = expert_layer(QWEN, 1)
    assert total(works).bytes == pytest.approx(2 * 8 * (3 * 768 * 2048 + 2048 + 2 * 768 + 768 + 2048))
    assert total(works).flops == 2 * 8 * 3 * 768 * 2048


def test_a_dtype_without_a_measured_roof_has_no_time() -> None:
    assert seconds_us(BY_NAME["int8 W8A8"].work(16, 64, 64), "int8") is None
    assert total_us(layer_works(SEVENTY, BY_NAME["int8 W8A8"], 16), "int8") is None


def test_the_page_tells_every_format_at_every_batch(tmp_path: Path) -> None:
    assert write_techniques(tmp_path) == []
    text = (tmp_path / "matmul.md").read_text(encoding="utf-8")
    for form in FORMATS:
        assert [line.split("|")[2].strip() for line in text.splitlines() if line.startswith(f"| {form.name} |")][
            :4
        ] == ["1", "16", "64", "256"]
    assert "| int4 W4A16 | 295.3 | 80 | 83 |" in text
    assert (tmp_path / "matmul.png").stat().st_size > 10_000
    rows = matmul_page.formats()
    assert rows["intensity_flops_per_byte"][0] == pytest.approx(intensity(layer_works(SEVENTY, FORMATS[0], 1)))


def test_the_committed_page_is_what_the_code_makes() -> None:
    committed = Path(__file__).parents[1] / "reports" / "techniques" / "matmul.md"
    assert committed.read_text(encoding="utf-8") == matmul_page.page(matmul_page.formats())
