"""What a page rests on: nothing of a run left out, nothing made up, and what to doubt named case by case."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic
from synthetic import classified

from analysis.frame import load
from analysis.page.provenance import KINDS, UNTOLD, provenance, warnings
from bench.record import Environment, Record, Status


def of(directory: Path, environment: Environment, *records: Record) -> dict[str, str]:
    """The one run's rows."""
    (rows,) = provenance(load([synthetic.write(directory, "r", environment, records)])).values()
    assert len(dict(rows)) == len(rows)  # no name stands twice
    return dict(rows)


def cautions(directory: Path, *records: Record) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for each in warnings(classified(directory, (synthetic.H100, records))[0]):
        found.setdefault(each.kind, []).append((each.case_id, each.text))
    return found


def one(m: int = 1, **how: Any) -> Record:
    return synthetic.matmul("r", m, **how)


NAME = "matmul/triton/bfloat16/M=1,N=4096,K=4096"


def test_everything_that_was_recorded_is_told(tmp_path: Path) -> None:
    environment = replace(
        synthetic.H100, commit="0123456789abcdef", dirty=True, driver="580.1", cuda="13.0", power_limit_w=700.0,
        packages={"flash-attn": "2.8"}, ecc=True, mig=False,
    )  # fmt: skip
    told = of(
        tmp_path, environment, one(source_sha256="ab12", times_us=(20.0,) * 7), one(2, cache="hot"),
        one(4, status=Status.SKIPPED, detail="no"),
    )  # fmt: skip
    assert told["commit"] == "0123456789abcdef with changes" and told["taken"] == "2026-03-01T10:00:00+00:00"
    assert (told["driver"], told["CUDA"], told["power limit, W"], told["ECC"], told["MIG"]) == (
        "580.1", "13.0", "700", "True", "False",
    )  # fmt: skip
    assert (told["torch"], told["triton"], told["packages"]) == ("2.13.0", "3.7.1", "flash-attn 2.8")
    assert told["maximum SM clock, MHz"] == "1980" and told["memory clock, MHz"] == "2619"
    assert told["records"] == "2 OK and 1 SKIPPED" and told["samples a case"] == "1 to 7"
    assert told["cache"] == "cold (1) and hot (1)" and told["timer"] == "cuda_graph"
    assert told["counting version"] == "1" and told["schema of the records"] == "1"
    assert told["inputs"] == "distribution=normal(0, 1); seed=0"
    assert told["kernel sources, SHA-256"] == "matmul ab12"
    assert told["to repeat"].startswith("at commit 0123456789ab, `python -m bench run matmul`")


def test_what_was_not_recorded_is_said_and_not_guessed(tmp_path: Path) -> None:
    told = of(tmp_path, Environment(device_type="cuda"), one())
    missing = ("taken", "commit", "torch", "triton", "driver", "CUDA", "maximum SM clock, MHz", "power limit, W")
    assert {name: told[name] for name in missing} == dict.fromkeys(missing, UNTOLD)
    assert told["kernel sources, SHA-256"] == UNTOLD and "ECC" not in told


def test_a_cpu_is_asked_for_no_driver(tmp_path: Path) -> None:
    told = of(tmp_path, synthetic.CPU, one(timer="cpu_wall"))
    assert "driver" not in told and told["threads"] == "2"
    assert "`python -m bench run matmul --device cpu`" in told["to repeat"]


def test_published_figures_are_told_to_be_so(tmp_path: Path) -> None:
    told = of(tmp_path, replace(synthetic.H100, note="published by somebody"), one(timer="published"))
    assert told["published"] == "figures of others, not measured by this suite"
    assert told["note"] == "published by somebody" and "python -m bench run" not in told["to repeat"]


def test_a_run_of_roofs_alone_and_each_run_apart(tmp_path: Path) -> None:
    roofs = synthetic.write(tmp_path / "a", "a", synthetic.H100, synthetic.roofs("a", {"bfloat16": 800}, 3000, 2))
    cases = synthetic.write(tmp_path / "b", "b", synthetic.H200, [synthetic.matmul("b", 1)])
    told = provenance(load([roofs, cases]))
    assert list(told) == ["a", "b"] and dict(told["a"])["to repeat"] == "`python -m bench peaks`"
    assert dict(told["b"])["device"] == "NVIDIA H200" and dict(told["b"])["records"] == "1 OK"


@pytest.mark.parametrize("kind", ["throttled", "contended", "gaps"])
def test_each_flag_is_a_caution(tmp_path: Path, kind: str) -> None:
    assert cautions(tmp_path, one(flags=(kind,)), one(2)) == {kind: [(NAME, KINDS[kind])]}


def test_a_time_that_is_not_to_be_believed_says_why(tmp_path: Path) -> None:
    found = cautions(tmp_path, one(flags=("suspect",)), one(8192, times_us=(1.0,)))
    assert [name for name, _ in found["invalid"]] == [NAME, "matmul/triton/bfloat16/M=8192,N=4096,K=4096"]
    assert "the run flagged this time suspect" in found["invalid"][0][1]
    assert "all SMs at their maximum clock" in found["invalid"][1][1]


def test_drift_is_told_with_its_size(tmp_path: Path) -> None:
    found = cautions(tmp_path, one(times_us=(20.0,) * 10 + (22.0,) * 10))
    assert found["drift"][0][1].startswith("+10.0 %: ")


def test_a_wide_interval_is_told_with_its_width(tmp_path: Path) -> None:
    # of six samples the interval is the extremes: (24 - 20) / 2 / 20 = 10 % of the median
    wide, narrow = (20.0, 20.0, 20.0, 20.0, 20.0, 24.0), (20.0, 20.0, 20.0, 20.0, 20.0, 21.9)
    assert list(cautions(tmp_path / "a", one(times_us=narrow))) == []
    assert cautions(tmp_path / "b", one(times_us=wide))["uncertain"][0][1].startswith("half-width 10 % of the median")


def test_nothing_to_doubt(tmp_path: Path) -> None:
    assert cautions(tmp_path, one()) == {}
    assert warnings(classified(tmp_path / "b", (synthetic.CPU, [one(status=Status.SKIPPED, detail="no")]))[0]) == []


@pytest.mark.speed
def test_a_hundred_thousand_points_take_seconds(tmp_path: Path) -> None:
    one_point = classified(tmp_path, (synthetic.H100, [one(flags=("throttled",))]))[0]
    many = one_point.iloc[[0] * 100_000].reset_index(drop=True)
    start = time.perf_counter()
    assert len(warnings(many)) == 100_000 and time.perf_counter() - start < 4
