"""The serving report: which rows nothing beats, the tutorial's verdicts, and the files."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from analysis.serving.deployment import host_of
from analysis.serving.pareto import CHOICES, CLIENTS, GPUS, _frontier, grid, pareto_figure, write_report
from analysis.serving.tutorial import claims

REPORT = Path(__file__).parents[1] / "reports" / "serving"


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return grid()


def test_frontier_by_hand() -> None:
    """(100, 10), (50, 30) and (20, 40) beat each other in one rate; (50, 20) and (10, 40) are beaten; another GPU
    has a frontier of its own."""
    rows = pd.DataFrame(
        [("m", "a", 100, 10), ("m", "a", 50, 20), ("m", "a", 50, 30), ("m", "a", 20, 40), ("m", "a", 10, 40),
         ("m", "b", 5, 5)],
        columns=["model", "gpu", "tokens_per_s_user", "tokens_per_s_gpu"],
    )  # fmt: skip
    assert _frontier(rows).tolist() == [True, False, True, True, False, True]


def test_grid_holds_only_what_fits(rows: pd.DataFrame) -> None:
    """DeepSeek-V3's 671 GB of fp8 fit 8 H200 and not 8 H100; 70B fp8 fits no single H100."""
    assert set(rows["model"]) == {model for model, _, _ in CHOICES}
    deep = rows[rows["model"] == "deepseek-v3"]
    assert set(deep["gpu"]) == {GPUS[1]} and set(deep["tp"]) == {8} and len(deep) <= len(CLIENTS)
    llama = rows[(rows["model"] == "llama-3.1-70b") & (rows["gpu"] == GPUS[0])]
    assert llama["tp"].min() == 2
    whole = rows[rows["engine"] != "vllm"]  # vLLM starts what fits at its mean length
    assert (whole["concurrency"] <= whole["max_concurrency"]).all()


def test_cost_is_the_rate_of_a_gpu_turned_round(rows: pd.DataFrame) -> None:
    """$2.50 / 3,600 s over tokens/s/GPU, a million times."""
    expected = 2.5 / 3600 * 1e6 / rows["tokens_per_s_gpu"].to_numpy()
    assert rows["usd_per_mtok_output"].to_numpy() == pytest.approx(expected)


def test_figure_has_plain_numbers_and_dollars(rows: pd.DataFrame) -> None:
    """Ticks are 1, 2 and 5 of a decade; the right axis is $2.50 / 3,600 s over the left one, a million times."""
    figure = pareto_figure(rows)
    figure.draw_without_rendering()
    for axes in figure.axes:
        [dollars] = axes.child_axes
        low, high = axes.get_ylim()
        assert sorted(dollars.get_ylim()) == pytest.approx([2500 / 3.6 / high, 2500 / 3.6 / low])
        for axis in (axes.xaxis, axes.yaxis, dollars.yaxis):
            shown = [label.get_text() for label in axis.get_ticklabels(which="both")]
            assert len(shown) >= 2 and all(re.fullmatch(r"[\d,]*\.?\d+", text) for text in shown), shown
    assert [axes.get_title() for axes in figure.axes] == [model for model, _, _ in CHOICES]


def test_tutorial_is_judged() -> None:
    told = {claim.said: claim for claim in claims()}
    assert told["70B in fp16 takes 140 GB"].ours == "141.1 GB"
    assert told["the ridge of an H100 is 295 FLOP/byte"].verdict == "right"
    assert "61,035 tokens" in told["one request takes 20 GB of KV"].verdict  # 20e9 / 327,680
    assert told["E2E = TTFT + output x TPOT"].verdict.startswith("wrong by one TPOT")
    assert len(told) == 12


def test_report_is_written_and_the_committed_one_is_current(tmp_path: Path) -> None:
    assert write_report(tmp_path) == []
    for name in ("README.md", "tutorial.md", "crossovers.md", "elasticity.md", "grid.csv"):
        assert (tmp_path / name).read_text() == (REPORT / name).read_text(), name
    assert (tmp_path / "pareto.png").stat().st_size > 20_000


def test_the_index_tells_the_host_constants_that_its_rows_were_made_with() -> None:
    """Of each engine of the grid, those of the committed file; none of them is all zeros."""
    text = (REPORT / "README.md").read_text(encoding="utf-8")
    for engine in {engine for _, _, engine in CHOICES}:
        host = host_of(engine)
        assert host.all_reduce_us > 0
        told = f"{engine}: Host (us): 0 a step, {host.all_reduce_us:g} an all-reduce, {host.sequence_us:g} a sequence"
        assert told in text


def test_committed_validation_is_current() -> None:
    from typer.testing import CliRunner

    from analysis.__main__ import app

    done = CliRunner().invoke(app, ["validate"])
    shown = done.stdout.split("## Cross-validated")[0]
    assert (REPORT / "validation.md").read_text().split("## Cross-validated")[0].strip() in shown
