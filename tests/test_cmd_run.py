"""`bench run`: real commands on the CPU, their files, exit codes and streams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_cases import Provider, in_process, matmul_case, raising
from typer.testing import CliRunner, Result

from bench import cmd_run, selection, timing
from bench.__main__ import app
from bench.case import Case
from bench.record import Environment, Record, Status, read_records
from bench.stopping import median_interval
from kernels import matmul
from kernels.spec import Op, UnsupportedError

QUESTION = ("matmul", "--provider", "torch", "--set", "M=1,16", "--set", "N=256", "--set", "K=256")
FAST = ("--no-peaks", "--device", "cpu", "--case-seconds", "0.02")


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A cache of 1 MiB, so that rotation takes little memory, no warming, the CPU to itself, and no worker."""
    monkeypatch.setattr(cmd_run, "environment", lambda device: Environment(device_name="small", l2_bytes=2**20))
    monkeypatch.setattr(timing, "warm", lambda *given: 0)
    monkeypatch.setattr(cmd_run, "isolated", in_process)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def with_providers(monkeypatch: pytest.MonkeyPatch, **providers: Provider) -> None:
    """Makes matmul the only op, by these providers."""
    op: Op = replace(matmul.OP, providers=providers)
    monkeypatch.setattr(selection, "OPS", (op,))
    monkeypatch.setattr(selection, "op_named", lambda name, own: op)


def run_of(*providers: str, output: Path, extra: Sequence[str] = ()) -> Result:
    named = [option for provider in providers for option in ("--provider", provider)]
    sizes = ("--set", "M=4", "--set", "N=64", "--set", "K=64")
    return bench("run", "matmul", *sizes, *named, *FAST, "-o", str(output), *extra)


def zeros(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
    return torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)


def record(status: Status) -> Record:
    times = (1.0,) if status is Status.OK else ()
    return Record(run="r", case={"id": "x"}, status=status, detail="" if times else "why", times_us=times)


@pytest.mark.usefixtures("small_machine")
def test_a_question_is_measured_written_and_told_as_one_json_document(tmp_path: Path) -> None:
    result = bench("run", *QUESTION, "--dtype", "bf16,fp32", *FAST, "-o", str(tmp_path), "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    records = read_records(tmp_path / "records.jsonl")
    ids = [f"matmul/torch/{dtype}/M={m},N=256,K=256" for dtype in ("bfloat16", "float32") for m in (1, 16)]
    assert [r.case["id"] for r in records] == [case["case_id"] for case in document["cases"]] == ids
    assert document["counts"] == {"OK": 4}
    assert (document["exit"], document["records"]) == (0, str(tmp_path / "records.jsonl"))
    for one, told in zip(records, document["cases"], strict=True):
        assert (told["status"], told["time_us"]) == ("OK", median_interval(one.times_us)[0])
        assert one.environment == Environment(device_name="small", l2_bytes=2**20)
    assert len({r.run for r in records}) == 1
    assert result.stderr.splitlines() == [f"[{n}/4] {case_id}" for n, case_id in enumerate(ids, start=1)]


@pytest.mark.usefixtures("small_machine")
def test_a_second_run_into_a_directory_is_appended_as_a_run_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when both start in the same second."""
    moment = datetime.now(UTC)
    monkeypatch.setattr(cmd_run, "datetime", SimpleNamespace(now=lambda zone: moment))
    for _ in range(2):
        assert bench("run", *QUESTION, *FAST, "-o", str(tmp_path)).exit_code == 0
    records = read_records(tmp_path / "records.jsonl")
    assert len(records) == 4
    assert [r.run for r in records] == [records[0].run] * 2 + [records[2].run] * 2
    assert records[0].run != records[2].run
    assert [p.name for p in tmp_path.iterdir()] == ["records.jsonl"]


@pytest.mark.usefixtures("small_machine")
def test_without_output_a_run_gets_a_directory_named_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = bench("run", *QUESTION, *FAST)
    [path] = tmp_path.glob("reports/run-*/records.jsonl")
    assert path.parent.name == f"run-{read_records(path)[0].run}"
    assert str(path.relative_to(tmp_path)) in result.stdout


@pytest.mark.usefixtures("small_machine")
def test_output_may_have_any_name(tmp_path: Path) -> None:
    """F16: accents, spaces and CJK characters."""
    directory = tmp_path / "résultats du 3 目録"
    result = bench("run", *QUESTION, *FAST, "-o", str(directory), "--json")
    assert json.loads(result.stdout)["records"] == str(directory / "records.jsonl")
    assert len(read_records(directory / "records.jsonl")) == 2


@pytest.mark.usefixtures("small_machine")
def test_an_output_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "records.jsonl").write_text('{"run": "r1", "sch')
    for output, told in ((tmp_path / "file", "file"), (torn, "the last line is cut off")):
        result = bench("run", *QUESTION, *FAST, "-o", str(output))
        assert (result.exit_code, result.stdout) == (2, "")
        assert told in result.stderr
    assert (torn / "records.jsonl").read_text() == '{"run": "r1", "sch'


@pytest.mark.usefixtures("small_machine")
def test_one_of_three_that_fails_ends_with_4_all_with_3_and_both_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L04, R22."""
    boom = raising(RuntimeError("boom [x]\nmore"))
    with_providers(monkeypatch, good=matmul.matmul_torch, wrong=zeros, bad=boom, worse=raising(MemoryError()))
    some = run_of("good", "wrong", "bad", output=tmp_path / "some")
    assert some.exit_code == 4
    assert "1 OK, 1 INCORRECT, 1 FAILED; records: " in some.stdout
    assert "1 FAILED: RuntimeError: boom [x]\n" in some.stdout
    every = run_of("bad", "worse", output=tmp_path / "every")
    assert every.exit_code == 3
    assert "0 OK, 1 FAILED, 1 OUT_OF_MEMORY; records: " in every.stdout
    told = json.loads(run_of("bad", output=tmp_path / "told", extra=["--json"]).stdout)
    assert (told["counts"], told["exit"]) == ({"OK": 0, "FAILED": 1}, 3)
    assert (told["cases"][0]["detail"], told["cases"][0]["time_us"]) == ("RuntimeError: boom [x]", None)
    statuses = [r.status for r in read_records(tmp_path / "some" / "records.jsonl")]
    assert statuses == [Status.OK, Status.INCORRECT, Status.FAILED]


@pytest.mark.usefixtures("small_machine")
def test_what_is_unsupported_or_skipped_is_no_failure_beside_something_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_providers(monkeypatch, good=matmul.matmul_torch, cannot=raising(UnsupportedError("no such build")))
    assert run_of("good", "cannot", output=tmp_path).exit_code == 0
    alone = run_of("cannot", output=tmp_path)
    assert alone.exit_code == 3
    assert "1 UNSUPPORTED: no such build" in alone.stdout


@pytest.mark.parametrize(
    ("roofs", "asked", "code"),
    [
        ("", "OK", 0),
        ("", "OK SKIPPED UNSUPPORTED", 0),
        ("", "SKIPPED UNSUPPORTED", 3),
        ("", "FAILED FAILED", 3),
        *(("", f"OK {bad}", 4) for bad in ("INCORRECT", "FAILED", "CRASHED", "TIMEOUT", "OUT_OF_MEMORY")),
        ("OK OK", "FAILED FAILED", 3),
        ("OK OK", "SKIPPED", 3),
        ("OK FAILED", "OK", 4),
        ("OK", "OK", 0),
    ],
)
def test_exit_code(roofs: str, asked: str, code: int) -> None:
    """Roofs measured beside the cases: a run has measured nothing when only they are OK."""
    records = [record(Status(status)) for status in (roofs + " " + asked).split()]
    assert cmd_run.exit_code(records, roofs=len(roofs.split())) == code


@pytest.mark.usefixtures("small_machine")
def test_roofs_come_first_and_are_records_of_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def one_roof(device: str, cache_bytes: int) -> list[Case]:
        asked.append((device, cache_bytes))
        return [matmul_case(name="roof")]

    monkeypatch.setattr(cmd_run, "roof_cases", one_roof)
    fast = [option for option in FAST if option != "--no-peaks"]
    result = bench("run", *QUESTION, *fast, "-o", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    records = read_records(tmp_path / "records.jsonl")
    assert asked == [("cpu", 2**20)]
    assert [r.case["provider"] for r in records] == ["roof", "torch", "torch"]
    assert len({r.run for r in records}) == 1
    assert result.stderr.splitlines()[0].startswith("[1/3] matmul/roof/")


@pytest.mark.usefixtures("small_machine")
def test_the_layers_of_a_model_on_one_of_eight_gpus_run(tmp_path: Path) -> None:
    selected = ("--model", "llama-3.1-70b", "--tp", "8", "--match", "matmul.*torch.*M=1,N=1280,")
    result = bench("run", *selected, *FAST, "-o", str(tmp_path))
    records = read_records(tmp_path / "records.jsonl")
    assert result.exit_code == 0, result.stderr
    assert records
    assert {(r.case["axes"]["N"], r.case["axes"]["K"]) for r in records} == {(1280, 8192)}
    assert {r.status for r in records} == {Status.OK}


@pytest.mark.usefixtures("small_machine")
def test_the_way_of_timing_is_asked_for_by_options_and_stands_in_every_record(tmp_path: Path) -> None:
    how = ("--cache", "hot", "--sustained", "--inputs", "zeros", "--nvtx")
    assert bench("run", *QUESTION, *FAST, *how, "-o", str(tmp_path)).exit_code == 0
    for record in read_records(tmp_path / "records.jsonl"):
        assert (record.cache, record.regime, record.data["distribution"]) == ("hot", "sustained", "zeros")
        assert record.asked == {"cache": "hot", "regime": "sustained", "timer": "auto", "inputs": "zeros"}


@pytest.mark.usefixtures("small_machine")
def test_going_on_in_another_way_measures_again(tmp_path: Path) -> None:
    for cache, already in (("cold", 0), ("hot", 0), ("cold", 2), ("hot", 2)):
        result = bench("run", *QUESTION, *FAST, "--cache", cache, "--resume", "-o", str(tmp_path))
        assert (result.exit_code, f"{already} of 2 already there" in result.stderr) == (0, True), result.stderr
    assert [r.cache for r in read_records(tmp_path / "records.jsonl")] == ["cold"] * 2 + ["hot"] * 2


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--cache", "warm", "unknown cache 'warm'; known: cold, hot"),
        ("--inputs", "ones", "unknown inputs 'ones'; known: normal, zeros"),
        ("--timer", "nsys", "unknown timer 'nsys'; known: auto, graph, event, cupti"),
        ("--timer", "cupti", "--timer cupti needs a GPU: a CPU has one clock, which is --timer auto"),
        ("--timer", "graph", "--timer graph needs a GPU"),
    ],
)
def test_a_way_of_timing_that_there_is_not_is_wrong_usage(tmp_path: Path, option: str, value: str, told: str) -> None:
    result = bench("run", *QUESTION, *FAST, option, value, "-o", str(tmp_path))
    assert (result.exit_code, result.stdout, told in result.stderr) == (2, "", True), result.stderr
    assert not list(tmp_path.iterdir())
