"""kv_append: what lands where and what stays, by loops; what is refused; and no FLOPs, all the way to the figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import synthetic
import torch
from typer.testing import CliRunner

from analysis.__main__ import app
from bench.check import check_case
from bench.record import Record
from kernels import kv_append
from kernels.kv_append import OP
from kernels.spec import Inputs, Workload


def drawn(*lens: int, q_len: int = 2) -> Inputs:
    """A cache of 9 rows, 3 KV heads of 8, for sequences of these lengths with their new tokens."""
    axes = {"batch": len(lens), "q_len": q_len, "kv_len": 9, "kv_heads": 3, "head_dim": 8}
    return OP.make_inputs(Workload(axes=axes, dtype="float32", phase="decode", kv_lens=lens), "cpu", 5)


def by_loops(kv_new: torch.Tensor, kv_cache: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    out = kv_cache.clone()
    for b in range(kv_new.shape[0]):
        for token in range(kv_new.shape[1]):
            out[b, int(positions[b]) + token] = kv_new[b, token]
    return out


def test_new_rows_land_behind_each_sequences_own_and_all_else_stays() -> None:
    inputs = drawn(9, 2, 5)
    assert inputs["positions"].tolist() == [7, 0, 3]
    expected = by_loops(**inputs)
    before = inputs["kv_cache"].clone()
    for answer in (OP.reference(**inputs), OP.eager(**inputs)):
        assert torch.equal(answer, expected.to(answer.dtype))
        assert torch.equal(inputs["kv_cache"], before), "truth and yardstick leave the cache alone"
    assert OP.providers["torch"](**inputs) is inputs["kv_cache"]
    assert torch.equal(inputs["kv_cache"], expected)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("place", [(0, 0), (1, 8), (2, 4)])
def test_a_stray_write_is_caught(place: tuple[int, int], sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth is that of the cache before: judged against the cache after, a stray row would be right."""
    if sampled:
        monkeypatch.setattr(kv_append, "CHECK_IN_FULL", 0)

    def strays(**inputs: Any) -> torch.Tensor:
        out = kv_append.kv_append_torch(**inputs)
        out[place] += 1
        return out

    assert check_case(OP, kv_append.kv_append_torch, drawn(9, 2, 5)).problem == ""
    assert "max error" in check_case(OP, strays, drawn(9, 2, 5)).problem


def test_a_row_that_is_not_written_is_caught() -> None:
    assert "max error" in check_case(OP, lambda kv_new, kv_cache, positions: kv_cache, drawn(9, 2, 5)).problem


@pytest.mark.parametrize("positions", [(-1, 0), (0, 8)])
def test_rows_outside_the_cache_are_refused_before_anything_runs(positions: tuple[int, int]) -> None:
    inputs = drawn(9, 9) | {"positions": torch.tensor(positions, dtype=torch.int32)}
    with pytest.raises(ValueError, match=r"positions must lie in 0\.\.7 \(a cache of 9 rows less 2 new ones\), got"):
        check_case(OP, kv_append.kv_append_torch, inputs)


def test_a_length_that_does_not_hold_the_new_tokens_is_unsupported() -> None:
    axes = {"batch": 2, "q_len": 3, "kv_len": 9, "kv_heads": 1, "head_dim": 8}
    short = Workload(axes=axes, dtype="float32", phase="decode", kv_lens=(9, 2))
    assert "2 cannot hold q_len=3" in (OP.unsupported(short, "torch") or "")


def test_described_sizes_are_a_decode_step_or_a_prompt() -> None:
    for q_len, phase in ((1, "decode"), (16, "decode"), (17, "prefill")):
        sizes = {"batch": 1, "q_len": q_len, "kv_len": 0, "kv_heads": 8, "head_dim": 128}
        described = OP.describe_axes(sizes, "bfloat16", ())
        assert (described.phase, described.axes["kv_len"], described.technique) == (phase, q_len, "kv_cache")


def records(run: str, slower: float) -> list[Record]:
    """A step of 64 sequences, 262,144 bytes in and out, and a prompt of 8,192 tokens, 67 MB, at 0.8 of an H100."""
    made = []
    for q_len, batch in ((1, 64), (8192, 1)):
        sizes = {"batch": batch, "q_len": q_len, "kv_len": 0, "kv_heads": 8, "head_dim": 128}
        workload = OP.describe_axes(sizes, "bfloat16", ())
        work = OP.work(workload)
        time_us = slower * (3.0 + work.bytes / 2.75e6) / 0.8
        made.append(synthetic.record(run, OP.name, workload, work, times_us=(time_us,)))
    return [*made, *synthetic.roofs(run, {"bfloat16": 794.5}, 2750, 3.0)]


def test_a_case_without_flops_goes_through_the_whole_analysis(tmp_path: Path) -> None:
    """Intensity 0, bytes over time as its only rate, overhead- or memory-bound; log axes leave it out and say so."""
    files = [synthetic.write(tmp_path / run, run, synthetic.H100, records(run, s)) for run, s in (("a", 1), ("b", 2))]
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["roofline", str(files[0]), "-o", str(out)])
    assert (result.exit_code, result.stderr) == (0, "")
    points = pd.read_csv(out / "points.csv")
    points = points[points["op"] == OP.name].sort_values("q_len")
    assert points["intensity_flops_per_byte"].tolist() == [0, 0] and points["tflops_per_s"].tolist() == [0, 0]
    assert points["class"].tolist() == ["overhead-bound", "memory-bound"]
    assert points["bytes"].tolist() == [2 * 262_144, 2 * 33_554_432]
    assert points["gb_per_s"].iloc[1] == pytest.approx(0.8 * 67_108_864 / (3.0 + 67_108_864 / 2.75e6) / 1e3, rel=1e-3)
    assert "2 points without a positive intensity" in (out / "roofline.svg").read_text(encoding="utf-8")
    compared = CliRunner().invoke(app, ["compare", *map(str, files), "-o", str(tmp_path / "compared"), "--json"])
    assert compared.exit_code == 1 and compared.stdout.count('"SLOW"') >= 2, compared.output
