"""What attention techniques buy: golden values worked by hand, and the files of the page."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from analysis import technique_lines
from analysis.__main__ import app
from analysis.techniques import (
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
from analysis.techniques_report import frame, write_techniques
from kernels.attention import padded_width
from kernels.models import model_named
from kernels.work import Work


def gain(technique: str, after: str) -> Gain:
    [found] = [g for g in gains() if g.technique == technique and after in g.after]
    return found


def test_20_gb_of_kv_for_70b() -> None:
    """80 layers x 2 x 8 heads x 128 x 2 bytes = 327,680 a token: 61 thousand tokens with GQA, 7.6 thousand as MHA."""
    llama = model_named("llama-3.1-70b")
    assert kv_bytes_per_token(llama) == 80 * 2 * 8 * 128 * 2 == 327_680
    assert tokens_in(20e9, llama) == 61_035
    assert tokens_in(20e9, llama, 64) == 7_629


def test_latent_and_window() -> None:
    """61 layers x 576 x 2; Gemma's 10 global layers keep all, its 52 others 1,024 keys, 2 x 16 x 128 x 2 bytes each."""
    assert kv_bytes_per_token(model_named("deepseek-v3")) == 61 * 576 * 2
    assert kv_bytes_per_token(model_named("deepseek-v3"), 128) == 61 * 128 * (192 + 128) * 2
    gemma = model_named("gemma-3-27b")
    assert cached_bytes(gemma, 32_768) == (10 * 32_768 + 52 * 1024) * 2 * 16 * 128 * 2
    assert cached_bytes(gemma, 512) == 62 * 512 * 2 * 16 * 128 * 2


def test_bytes_before_and_after_by_hand() -> None:
    """KV of 64 x 8,192 keys: 2 x 8 heads x 128 x 2 bytes = 4,096 B a key; Q and O: 64 x 64 x 128 x 2 x 2 bytes."""
    q_and_o = 64 * 64 * 128 * 2 * 2
    mha = gain("kv_cache", "(GQA)")
    assert total(mha.works_after).bytes == 64 * 8192 * 4096 + q_and_o
    assert total(mha.works_before).bytes == 8 * 64 * 8192 * 4096 + q_and_o
    cascade = gain("prefix", "cascade")
    assert total(cascade.works_after).bytes == (4096 + 64 * 4096) * 4096 + 2 * q_and_o
    ragged = gain("continuous", "own lengths")
    assert total(ragged.works_after).bytes == (8 * 8192 + 56 * 1024) * 4096 + q_and_o
    window = gain("window", "1024")
    assert total(window.works_after).bytes == 64 * 1024 * 2 * 16 * 128 * 2 + 64 * 32 * 128 * 2 * 2
    assert total(window.works_after).flops == 2 * 64 * 32 * 1024 * 256
    fp8 = gain("quantised_kv", "float8")
    assert total(fp8.works_after).bytes == 64 * 8192 * 2048 + q_and_o


def test_intensity_rises_with_the_draft_and_the_latent() -> None:
    """A draft of 4 does 4 times the FLOPs over the same cache; absorbed MLA reads 1,152 bytes for 278,528 FLOPs."""
    draft = gain("speculative", "verifies 4")
    assert len(draft.works_before) == 4
    assert intensity(draft.works_after) == pytest.approx(4 * intensity(draft.works_before), rel=0.01)
    mla = gain("mla", "latent")
    flops, latent = 64 * 8192 * 2 * 128 * (576 + 512), 64 * 8192 * 576 * 2
    assert intensity(mla.works_after) == pytest.approx(flops / (latent + 64 * 128 * (576 + 512) * 2))


def test_chunks_do_the_same_work_and_read_the_prefix_again() -> None:
    """16 chunks of 512 end at 512, 1,024, .. 8,192: they read 136 x 512 keys, the prompt at once 16 x 512."""
    chunked = gain("chunked", "512")
    assert total(chunked.works_after).flops == total(chunked.works_before).flops
    more = total(chunked.works_after).bytes - total(chunked.works_before).bytes
    assert more == (136 - 16) * 512 * 4096


def test_attainable_time_pays_a_launch_each() -> None:
    """3.0 us and the larger of FLOPs at 794.5 TFLOP/s and bytes at 2.75 TB/s: 2,750,000 bytes take 1 us."""
    small = Work(flops=0, bytes=2_750_000)
    assert attainable_us((small,)) == pytest.approx(4.0)
    assert attainable_us((small, small)) == pytest.approx(8.0)
    assert attainable_us((Work(flops=794_500_000 * 5, bytes=1),)) == pytest.approx(8.0)


def test_unused_room() -> None:
    """1,000 keys take 63 pages of 16, 1,008 slots; of 131,072 reserved ones 1,000 are used."""
    assert unused_of_pages(1000) == pytest.approx(8 / 1008)
    assert unused_of_pages(1024) == 0
    assert unused_of_reservation(1000) == pytest.approx(1 - 1000 / 131_072)


def test_mla_prefill_is_padded_as_the_kernel_pads() -> None:
    """(256 + 128) / (192 + 128); heads of 128 are not padded."""
    deepseek = model_named("deepseek-v3")
    assert padded_of_useful(deepseek) == pytest.approx(1.2) and padded_of_useful(model_named("llama-3.1-70b")) == 1
    assert padded_width(deepseek.head_dim) == 256 and padded_width(deepseek.v_head_dim) == 128


def test_lines_by_hand() -> None:
    """Intensities of one layer of llama-3.1-70b over 8,192 keys of 4,096 bytes each; Q and O of a token: 32,768 bytes.

    A draft of 16 masks 15 + 14 + .. = 120 of 16 x 8,192 pairs. A chunk of the whole prompt is the prompt, causal.
    """
    ends = {line.grows: (line.intensities[0], line.intensities[-1]) for line in technique_lines.lines()}
    pair, keys, token = 4 * 64 * 128, 8192 * 4096, 64 * 128 * 2 * 2
    plain = pair * 8192 / (keys + token)
    assert ends["sequences"] == pytest.approx((plain, plain))
    assert ends["query heads a KV head"] == pytest.approx(
        (pair * 8192 / (8 * keys + token), pair * 8192 / (keys / 8 + token))
    )
    assert ends["tokens a draft"] == pytest.approx((plain, pair * (16 * 8192 - 120) / (keys + 16 * token)))
    whole = pair * 8192 * 8193 / 2 / (keys + 8192 * token)
    assert ends["tokens a chunk of a prompt of 8,192"][1] == pytest.approx(whole)
    shared = pair * 256 * 8192 / ((4096 + 256 * 4096) * 4096 + 2 * 256 * token)
    assert ends["sequences that share 4,096 of 8,192 keys"][1] == pytest.approx(shared)
    latent = 64 * 8192 * 2 * 128 * 1088 / (64 * 8192 * 1152 + 64 * 128 * 1088 * 2)
    assert ends["heads a GPU, one latent"][1] == pytest.approx(latent)


def test_every_technique_of_attention_has_a_row() -> None:
    wanted = {"kv_cache", "paged", "continuous", "chunked", "prefix", "speculative", "window", "quantised_kv", "mla"}
    assert {g.technique for g in gains()} == wanted
    rows = frame(gains())
    more = rows[rows["flops_after"] > rows["flops_before"]]
    assert more["technique"].tolist() == ["mla"]
    assert more["flops_after"].item() / more["flops_before"].item() == pytest.approx((576 + 512) / (192 + 128))
    assert rows.notna().all(axis=None)


def test_the_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["techniques", "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "README.md", "techniques.csv", "techniques.png", "trajectories.csv", "trajectories.png",
        "matmul.md", "matmul.csv", "matmul.png",
    }  # fmt: skip
    assert len(pd.read_csv(tmp_path / "out" / "techniques.csv")) == len(gains())
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| llama-3.1-70b | 327,680 | 2,621,440 | 10.74 | 61,035 | 7,629 |" in text
    assert "keys of 192 and values of 128, which take 0.29 of the FLOPs" in text
    assert "pads 192 to the next power of two, 1.2 times the useful tensor work" in text
    document = json.loads(CliRunner().invoke(app, ["techniques", "--json"]).stdout)
    assert len(document) == len(gains())
    (tmp_path / "bad" / "README.md").mkdir(parents=True)
    assert len(write_techniques(tmp_path / "bad")) == 1
    assert CliRunner().invoke(app, ["techniques", "-o", str(tmp_path / "bad")]).exit_code == 4
