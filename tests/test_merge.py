"""`bench merge`: several records files in one, with nothing lost, nothing twice and nothing unreadable let through."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bench.__main__ import app
from bench.record import Environment, Record, RecordWriter, Status, read_records

ONE, OTHER = Environment(device_name="NVIDIA H100", uuid="GPU-1"), Environment(device_name="NVIDIA H100", uuid="GPU-2")


def shard(directory: Path, run: str, environment: Environment, times_us: dict[int, float]) -> Path:
    """A directory with a record for each M; a time of 0 is a failed case."""
    with RecordWriter(directory / "records.jsonl", run, environment) as writer:
        for m, time_us in times_us.items():
            case = {
                "id": f"matmul/torch/M={m}",
                "op": "matmul",
                "provider": "torch",
                "phase": "decode",
                "dtype": "int8",
            }
            end = (Status.OK, "", (time_us,)) if time_us else (Status.FAILED, "why: µs → 日本語", ())
            writer.append(Record(run=run, case=case, status=end[0], detail=end[1], times_us=end[2]))
    return directory


def merge(*runs: Path, output: Path) -> Result:
    return CliRunner().invoke(app, ["merge", *map(str, runs), "-o", str(output)])


def test_every_record_is_there_under_its_own_runs_header(tmp_path: Path) -> None:
    first = shard(tmp_path / "1", "r1", ONE, {1: 0.1 + 0.2, 2: 0})
    second = shard(tmp_path / "2", "r2", OTHER, {3: 2.5})
    result = merge(first, second / "records.jsonl", output=tmp_path / "all")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"3 records of 2 runs: {tmp_path / 'all' / 'records.jsonl'}\n"
    merged = read_records(tmp_path / "all" / "records.jsonl")
    assert merged == [r for run in (first, second) for r in read_records(run / "records.jsonl")]
    assert [r.environment for r in merged] == [ONE, ONE, OTHER]
    assert merged[0].times_us == (0.1 + 0.2,)


def test_shards_into_one_directory_and_two_runs_of_a_case_stay_apart(tmp_path: Path) -> None:
    """The same case of two runs is two measurements."""
    shard(tmp_path / "1", "r1", ONE, {1: 1.0})
    both = shard(tmp_path / "1", "r2", ONE, {1: 2.0, 2: 3.0})
    assert merge(both, output=tmp_path / "all").exit_code == 0
    merged = read_records(tmp_path / "all" / "records.jsonl")
    assert [(r.run, r.times_us) for r in merged] == [("r1", (1.0,)), ("r2", (2.0,)), ("r2", (3.0,))]


def test_of_a_record_that_is_there_twice_the_last_stays_and_that_is_told(tmp_path: Path) -> None:
    """F12: a file given twice, and a case twice in one run."""
    run = shard(tmp_path / "1", "r1", ONE, {1: 1.0, 2: 2.0})
    copy = shard(tmp_path / "copy", "r1", ONE, {1: 9.0})
    result = merge(run, run, copy, output=tmp_path / "all")
    assert result.exit_code == 0
    assert result.stderr == "3 of 5 records were there twice: the last one stays\n"
    assert result.stdout.startswith("2 records of 1 runs: ")
    merged = read_records(tmp_path / "all" / "records.jsonl")
    assert {r.case["id"]: r.times_us for r in merged} == {"matmul/torch/M=1": (9.0,), "matmul/torch/M=2": (2.0,)}
    assert len(merged) == 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read"),
        ("", "empty"),
        ('{"run": "r1", "sch', "records.jsonl:1: the line is cut off"),
        ("x\ny\n", "records.jsonl:1: not JSON"),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_written(tmp_path: Path, content: str | None, told: str) -> None:
    good, bad = shard(tmp_path / "good", "r1", ONE, {1: 1.0}), tmp_path / "bad"
    bad.mkdir()
    if content is not None:
        (bad / "records.jsonl").write_text(content)
    result = merge(good, bad, output=tmp_path / "all")
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr and str(bad) in result.stderr
    assert not (tmp_path / "all").exists()


def test_an_output_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    run = shard(tmp_path / "1", "r1", ONE, {1: 1.0})
    before = (run / "records.jsonl").read_bytes()
    result = merge(run, output=run)
    assert result.exit_code == 2 and "is there already" in result.stderr
    assert (run / "records.jsonl").read_bytes() == before


def test_one_run_with_two_environments_is_refused(tmp_path: Path) -> None:
    result = merge(
        shard(tmp_path / "1", "r1", ONE, {1: 1.0}),
        shard(tmp_path / "2", "r1", OTHER, {2: 1.0}),
        output=tmp_path / "all",
    )
    assert result.exit_code == 2 and "run r1 has two environments" in result.stderr


def test_hot_and_cold_of_one_case_in_one_run_are_two_measurements(tmp_path: Path) -> None:
    """T24: told apart by what was asked for, not by how the cache was kept in the end."""
    case = {"id": "matmul/torch/M=1", "op": "matmul", "provider": "torch", "phase": "decode", "dtype": "int8"}
    with RecordWriter(tmp_path / "1" / "records.jsonl", "r1", ONE) as writer:
        for cache, time_us in (("cold", 3.0), ("hot", 2.0), ("cold", 4.0)):
            asked = {"cache": cache, "timer": "auto"}
            writer.append(Record(run="r1", case=case, status=Status.OK, times_us=(time_us,), asked=asked, cache="hot"))
    assert merge(tmp_path / "1", output=tmp_path / "all").exit_code == 0
    merged = read_records(tmp_path / "all" / "records.jsonl")
    assert [(r.asked["cache"], r.times_us) for r in merged] == [("hot", (2.0,)), ("cold", (4.0,))]
