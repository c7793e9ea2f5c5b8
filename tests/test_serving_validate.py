"""The serving predictor against real engines: what may enter a prediction, and how large its errors are."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from analysis.__main__ import app
from analysis.serving import fit
from analysis.serving.deployment import ENGINES, Host, constants, host_of
from analysis.serving.engine_facts import ASSUMED, FACTS
from analysis.serving.validate import NEEDED, RUNS, by_set, deployment_of, read, steps_of, summary, validated

PREDICTED = ["tpot_ms", "ttft_ms", "capacity", "speed_of_light_tpot_ms"]


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return read(RUNS)


@pytest.fixture(scope="module")
def rows(runs: pd.DataFrame) -> pd.DataFrame:
    return validated(runs, steps_of(runs))


def label(**other: Any) -> dict[str, Any]:
    return {
        "system": "h100_sxm", "model_path": "meta-llama/Llama-3.1-8B-Instruct", "backend": "trtllm",
        "gemm_quant": "bf16?", "tp_size": 1.0, "inferencemax_lengths_x0.9": False, **other,
    }  # fmt: skip


def test_comparison_columns_change_no_prediction(tmp_path: Path, runs: pd.DataFrame, rows: pd.DataFrame) -> None:
    bare = tmp_path / "bare.csv"
    runs[list(NEEDED)].to_csv(bare, index=False)
    alone = read(bare)
    again = validated(alone, steps_of(alone))
    pd.testing.assert_frame_equal(again[PREDICTED], rows[PREDICTED])
    assert again["peer_error_percent"].isna().all() and rows["peer_error_percent"].notna().any()


def test_measurements_and_the_order_of_runs_change_no_prediction(runs: pd.DataFrame, rows: pd.DataFrame) -> None:
    other = runs.assign(silicon_tpot_ms=1.0, silicon_ttft_ms=1.0, id="x").sample(frac=1, random_state=0)
    pd.testing.assert_frame_equal(validated(other, steps_of(other)).loc[rows.index, PREDICTED], rows[PREDICTED])


def test_one_run_is_predicted_as_it_is_among_all(runs: pd.DataFrame, rows: pd.DataFrame) -> None:
    one = runs.iloc[[200]]
    pd.testing.assert_frame_equal(validated(one, steps_of(one))[PREDICTED], rows.iloc[[200]][PREDICTED])


def test_errors_keep_the_targets(rows: pd.DataFrame) -> None:
    overall, sets = summary(rows), by_set(rows)
    assert overall.mean_ape_percent <= 11 and overall.median_ape_percent <= 8
    assert sets["h100 Llama-3.1-8B-Instruct bf16? trtllm"].mean_ape_percent <= 7.5
    assert sets["h200 Llama-3.1-70B fp8 trtllm"].mean_ape_percent <= 5
    assert overall.mean_ape_percent_on_peer_rows < overall.peer_mean_ape_percent
    assert overall.rows == 465 and 0 < overall.rows_flagged < 40


def test_kernels_alone_are_near_the_study(runs: pd.DataFrame) -> None:
    """The study's predictor, with nothing fitted, has 11.7 % over what is not flagged: host constants explain little
    more than the TP and the engine."""
    rows = validated(runs, steps_of(runs), fit.hosts([0.0] * 4))
    assert summary(rows).mean_ape_percent < 13


def test_flagged_is_what_beats_the_speed_of_light(rows: pd.DataFrame) -> None:
    assert (rows["flagged"] == (rows["silicon_tpot_ms"] < rows["speed_of_light_tpot_ms"])).all()
    assert (rows["speed_of_light_tpot_ms"] < rows["tpot_ms"]).all()


def test_memory_explains_the_run_that_waited_six_minutes(rows: pd.DataFrame) -> None:
    """70B fp8 on one H200, 128 requests of 922 + 7,373 tokens at 163,840 bytes: 1.36 GB each, 174 GB in all."""
    row = rows[rows["silicon_ttft_ms"] > 3e5].iloc[0]
    assert row["memory_limited"] and 30 <= row["capacity"] <= 45
    assert row["ttft_ms"] == pytest.approx(row["silicon_ttft_ms"], rel=0.6)
    assert row["tpot_ms"] == pytest.approx(row["silicon_tpot_ms"], rel=0.15)


@pytest.mark.speed
def test_all_runs_take_less_than_five_seconds(runs: pd.DataFrame) -> None:
    started = time.perf_counter()
    validated(runs, steps_of(runs))
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"system": "b200"}, "unknown system 'b200'; known: h100_sxm, h200_sxm"),
        ({"gemm_quant": "fp4"}, "unknown gemm_quant 'fp4'"),
        ({"backend": "tgi"}, "unknown backend 'tgi'"),
        ({"model_path": "a/gpt-2"}, "unknown model 'gpt-2'"),
        ({"tp_size": 3}, "tp 3 does not divide"),
    ],
)
def test_unknown_label_is_refused(changed: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part.replace("(", r"\(")):
        deployment_of(label(**changed))


def test_label_tells_the_cache() -> None:
    assert deployment_of(label()).kv_dtype == "bfloat16"
    assert deployment_of(label(**{"inferencemax_lengths_x0.9": "True"})).kv_dtype == "float8_e4m3fn"
    assert deployment_of(label(gemm_quant="fp8", backend="vllm")).kv_dtype == "bfloat16"
    assert deployment_of(label(gemm_quant="fp8")).kv_dtype == "float8_e4m3fn"


def test_missing_column_is_named(tmp_path: Path, runs: pd.DataFrame) -> None:
    path = tmp_path / "a.csv"
    runs.drop(columns=["osl"]).to_csv(path, index=False)
    with pytest.raises(ValueError, match="no column osl"):
        read(path)
    done = CliRunner().invoke(app, ["validate", "--e2e", str(path)])
    assert done.exit_code == 2 and "no column osl" in done.stderr


def test_columns_may_come_in_any_order_and_bare(tmp_path: Path, runs: pd.DataFrame, rows: pd.DataFrame) -> None:
    """No comparison column, no engine version, columns shuffled, and a byte order mark as spreadsheets write it."""
    path = tmp_path / "a.csv"
    shuffled = runs[list(NEEDED)].sample(frac=1, axis=1, random_state=3).iloc[:60]
    shuffled.to_csv(path, index=False, encoding="utf-8-sig")
    done = CliRunner().invoke(app, ["validate", "--e2e", str(path), "--json"])
    assert done.exit_code == 0, done.stderr
    told = [row["tpot_ms"] for row in json.loads(done.stdout)["rows"]]
    assert told == pytest.approx(rows["tpot_ms"].iloc[:60].tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"model_path": "acme/Unknown-9B"}, "run second: unknown model 'unknown-9b'"),
        ({"system": "b200_sxm"}, "run second: unknown system 'b200_sxm'"),
        ({"tp_size": 3}, "run second: llama-3.1-8b: tp 3 does not divide"),
        ({"concurrency": 0}, "run second (of 1) has no concurrency of 1 or more"),
        ({"isl": "many"}, "run second (of 1) has no isl of 1 or more"),
        ({"gemm_quant": None}, "run second (of 1) has no gemm_quant"),
        ({"silicon_tpot_ms": "fast"}, "run second (of 1) has no number in silicon_tpot_ms"),
    ],
)
def test_run_that_cannot_be_predicted_is_named(tmp_path: Path, changed: dict[str, Any], part: str) -> None:
    good = label(concurrency=8, isl=1024, osl=128, silicon_ttft_ms=100.0, silicon_tpot_ms=8.0)
    path = tmp_path / "a.csv"
    pd.DataFrame([{"id": "first", **good}, {"id": "second", **good, **changed}]).to_csv(path, index=False)
    done = CliRunner().invoke(app, ["validate", "--e2e", str(path)])
    assert done.exit_code == 2 and part in done.stderr


@pytest.mark.parametrize(
    ("content", "code", "part"),
    [(b"", 2, "no table"), (bytes(range(256)), 2, "no table"), (",".join(NEEDED).encode(), 3, "no runs")],
)
def test_file_without_runs_is_told_as_such(tmp_path: Path, content: bytes, code: int, part: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    done = CliRunner().invoke(app, ["validate", "--e2e", str(path)])
    assert done.exit_code == code and part in done.stderr and "a.csv" in done.stderr


def test_run_without_a_measurement_or_a_second_token_has_no_error(tmp_path: Path, runs: pd.DataFrame) -> None:
    path = tmp_path / "a.csv"
    some = runs[list(NEEDED)].iloc[:3].assign(silicon_ttft_ms=None)
    some["silicon_tpot_ms"] = [np.nan, 1.0, 20.0]
    some["osl"] = [128, 1, 128]
    some["inferencemax_lengths_x0.9"] = None
    some.to_csv(path, index=False)
    told = json.loads(CliRunner().invoke(app, ["validate", "--e2e", str(path), "--json"]).stdout)
    assert [row["error_percent"] is None for row in told["rows"]] == [True, True, False]
    assert [row["tpot_ms"] is None for row in told["rows"]] == [False, True, False]
    assert told["overall"]["rows"] == 3 and told["overall"]["mean_ape_percent"] > 0


def test_command_writes_json_and_files(tmp_path: Path, runs: pd.DataFrame) -> None:
    path = tmp_path / "a.csv"
    runs.iloc[::40].to_csv(path, index=False)
    done = CliRunner().invoke(app, ["validate", "--e2e", str(path), "--json", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["overall"]["rows"] == len(told["rows"]) == 12
    assert sum(s["rows"] for s in told["sets"].values()) == 12
    assert {"mean_ape_percent", "median_ape_percent", "rows_flagged"} <= told["overall"].keys()
    assert "cross_validated_over_sets" in told["fitted"]
    assert (tmp_path / "out" / "validation.md").read_text().startswith("# Predicted and measured TPOT")
    assert len(pd.read_csv(tmp_path / "out" / "validation.csv")) == 12


def test_committed_constants_are_what_the_fit_gives(runs: pd.DataFrame) -> None:
    """At the committed constants no single one can be moved to lower the error that the fit minimises."""
    steps = steps_of(runs)
    flagged = validated(runs, steps, fit.hosts([0.0] * 4))["flagged"]
    kept = ~flagged & (flagged.groupby(steps["set"]).transform("mean") <= fit.MOSTLY)

    def error(values: list[float]) -> float:
        rows = validated(runs[kept], steps[kept], fit.hosts(values))
        return float(rows["error_percent"].abs().groupby(rows["set"]).mean().mean())

    here = [
        constants()["vllm"]["all_reduce_us"], constants()["vllm"]["sequence_us"],
        constants()["sglang"]["sequence_us"], constants()["trtllm"]["eager_layer_us"],
    ]  # fmt: skip
    least = error(here)
    for i in range(4):
        for factor in (0.7, 1.4):
            moved = [v * factor if i == j else v for j, v in enumerate(here)]
            assert error(moved) > least


def test_fit_finds_constants_that_made_the_measurements(runs: pd.DataFrame) -> None:
    some = runs[runs["backend"] != "sglang"].iloc[::6]
    steps = steps_of(some)
    true = fit.hosts([9.0, 40.0, 0.0, 700.0])
    made = some.assign(silicon_tpot_ms=validated(some, steps, true)["tpot_ms"])
    found = fit.fitted(made, steps, pd.Series(False, index=some.index))
    assert found["vllm"].all_reduce_us == pytest.approx(9.0, rel=0.02)
    assert found["vllm"].sequence_us == pytest.approx(40.0, rel=0.02)
    assert found["trtllm"].eager_layer_us == pytest.approx(700.0, rel=0.02)


def test_every_engine_has_facts_with_a_source() -> None:
    """A page that says so, or that it is assumed; the table of the committed report is this one."""
    assert {fact.engine for fact in FACTS} == set(ENGINES)
    for fact in FACTS:
        assert fact.where == ASSUMED or re.fullmatch(r"https://[\w./-]+", fact.where), fact
    committed = (RUNS.parents[2] / "reports" / "serving" / "validation.md").read_text()
    assert all(f"| {fact.engine} | {fact.what} | {fact.where} |" in committed for fact in FACTS)


def test_engine_without_constants_has_none() -> None:
    assert host_of("unheard") == Host()
    assert np.isfinite(host_of("vllm").sequence_us)
