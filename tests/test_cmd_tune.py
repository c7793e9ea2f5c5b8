"""`bench tune` from end to end: a real compiler for sm_90, real worker processes, a clock told what a kernel takes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from op_files import calls
from small_cases import session as small_session
from toy_ops import OVER_SHARED, SPILLING, Config
from typer.testing import CliRunner, Result

from bench import cmd_tune
from bench import trial as trials
from bench.__main__ import app
from bench.case import Case
from bench.op_file import load_ops
from bench.record import Environment, Record, Status, read_records
from bench.run import Session
from bench.stopping import StopRule
from bench.trial import arch_of, compiled
from bench.tune import Bucket, Choice
from kernels import tuned
from kernels.spec import Op

TESTS = Path(__file__).parent
OP_FILE = '''"""The toy matmul with configurations of every fate; a worker's clock hears from it what a launch takes."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from bench import clock, timing, warming
from kernels import matmul
from toy_ops import OVER_SHARED, SPILLING, TOY, Config, toy_matmul

DEFAULT, WRONG, FAST, CRASHES, FIFTH = (Config(block_k=16, num_stages=n) for n in range(2, 7))
BREAKS_THE_COMPILER = Config(block_m=16)
TIMES_NS = {DEFAULT: 3_000_000, WRONG: 500_000, FAST: 1_500_000, FIFTH: 100_000}
CONFIGS = (DEFAULT, SPILLING, OVER_SHARED, BREAKS_THE_COMPILER, WRONG, FAST, CRASHES, FIFTH)
NOW_NS = [0]
if getattr(sys.modules["__main__"].__spec__, "name", "") == "bench.worker":
    for module in (clock, timing, warming):
        module.time = SimpleNamespace(perf_counter_ns=lambda: NOW_NS[0], perf_counter=lambda: NOW_NS[0] / 1e9)


def provider(a, b, *, allow_tf32=False, config=None):
    if a.device.type == "meta":
        return os.abort() if config == BREAKS_THE_COMPILER else toy_matmul(a, b, config=config)
    with Path(__file__).with_suffix(".calls").open("a") as file:
        file.write(f"{CONFIGS.index(config)} {os.getpid()}\\\\n")
    if config == CRASHES:
        os.abort()
    NOW_NS[0] += TIMES_NS[config]
    out = matmul.matmul_torch(a, b)
    return out * 2 if config == WRONG else out


OP = replace(
    TOY, name="fates", providers={"triton": provider}, configs=lambda workload, arch: CONFIGS, cuda_only={},
    bucket=lambda workload, arch: (workload.dtype, "small" if workload.axes["M"] < 100 else "large"),
)
'''.replace("\\\\n", "\\n")
QUESTION = ("--set", "M=64", "--set", "N=64", "--set", "K=32", "--dtype", "fp32")
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def fates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The op's file; workers find what it imports."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    file = tmp_path / "fates.py"
    file.write_text(OP_FILE, encoding="utf-8")
    return file


def on_h100() -> Session:
    """Kernels are compiled for an H100 and run on this CPU."""
    environment = Environment(device_name=H100, compute_capability="9.0", triton="3.7.1", l2_bytes=4096)
    rule = StopRule(min_s=0.0, budget_s=0.2)
    return replace(small_session(), environment=environment, rule=rule)


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("tune", *arguments))


def op_of(file: Path) -> Op:
    [op] = load_ops([file])
    return op


def test_every_fate_from_compiler_to_table(fates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spill, a dying compiler, a wrong result, a crash: none ends the run, none wins; a fifth is not measured.

    E14: nor does a configuration over the shared memory of a block.
    """
    monkeypatch.setattr(cmd_tune, "new_session", lambda device, seconds, seed: on_h100())
    out = tmp_path / "out"
    result = bench("--op-file", str(fates), *QUESTION, "-o", str(out), "--budget", "300", "--json")
    assert result.exit_code == 4, result.output
    document = json.loads(result.stdout)
    assert document["exit"] == 4 and document["not_tuned"] == []
    [chosen] = document["buckets"]
    fast = Config(block_k=16, num_stages=4)
    assert (chosen["op"], chosen["bucket"], chosen["config"]) == ("fates", ["float32", "small"], repr(fast))
    assert (chosen["default_us"], chosen["best_us"]) == (3000, 1500)

    records = read_records(out / "records.jsonl")
    told = [(r.config["num_stages"], r.config["block_k"], r.config["block_m"], str(r.status)) for r in records]
    assert told == [
        (2, 16, 64, "OK"),
        (3, 64, 128, "SKIPPED"),
        (8, 64, 128, "FAILED"),
        (2, 32, 16, "CRASHED"),
        (3, 16, 64, "INCORRECT"),
        (4, 16, 64, "OK"),
        (5, 16, 64, "CRASHED"),
        (2, 16, 64, "OK"),
    ]
    assert "spills on sm_90: _toy_matmul_kernel has" in records[1].detail and asdict(SPILLING) == records[1].config
    assert "does not compile" in records[2].detail and "shared memory" in records[2].detail
    assert asdict(OVER_SHARED) == records[2].config and "died of SIGABRT" in records[3].detail
    assert {number for number, _ in calls(fates)} == {0, 4, 5, 6}, "what spills or does not compile never ran"
    assert os.getpid() not in {process for _, process in calls(fates)}

    [(file, text)] = document["literals"].items()
    assert file == "tests/toy_ops.py" and text in (out / "tuned.txt").read_text(encoding="utf-8")
    space: dict[str, Any] = {"Config": Config}
    exec(text, space)
    monkeypatch.setattr(tuned, "device_key", lambda arch=None: (H100, "3.7.1"))
    op = op_of(fates)
    usual = op.configs(op.check_workloads[0], 90)
    assert tuned.tuned_first(space["TUNED"], ("float32", "small"), usual)[0] == fast
    assert tuned.tuned_first(space["TUNED"], ("float32", "large"), usual) == usual


def test_when_the_time_is_over_nothing_is_begun_and_what_is_left_is_told(
    fates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock of the test's own: ten seconds a bucket, and a budget of fifteen."""
    now = [0.0]

    def ten_seconds(bucket: Bucket, compiled: Any, session: Session, runner: Any, keep: Any) -> Choice:
        now[0] += 10
        keep(Record(run=session.run, case=bucket.case.to_json(), status=Status.SKIPPED, detail="test"))
        return Choice(bucket=bucket, config=None, why="the default is as fast", default_us=1.0, best_us=1.0)

    monkeypatch.setattr(cmd_tune, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(cmd_tune, "tune_bucket", ten_seconds)
    sizes = ("--set", "M=64,200", "--set", "N=64", "--set", "K=32", "--dtype", "fp32,bf16")
    result = bench("--op-file", str(fates), *sizes, "--device", "cpu", "--budget", "15", "-o", str(tmp_path / "out"))
    assert result.exit_code == 3, "nothing is OK"
    lines = result.stdout.splitlines()
    left = [line for line in lines if line.startswith("not tuned, the time was over: fates")]
    assert len(left) == 2 and lines[-1].startswith("2 tuned, 2 left; ")
    assert now == [20.0]


def test_compiling_stops_when_its_time_is_over_and_says_so(fates: Path) -> None:
    op = op_of(fates)
    workload = op.describe_axes({"M": 64, "N": 64, "K": 32}, "float32", ())
    cases = [Case(op, "triton", workload, config) for config in op.configs(workload, 90)]
    how: dict[str, Any] = {"jobs": 2, "timeout_s": 60.0}
    late = compiled(cases, on_h100(), [fates], print, in_time=lambda: False, **how)
    assert late == [trials.NOT_BEGUN] * len(cases)
    unknown = replace(on_h100(), environment=Environment(compute_capability="8.6"))
    assert [t.status for t in compiled(cases, unknown, [fates], print, in_time=lambda: True, **how)] == [Status.OK] * 8


def test_an_arch_whose_limits_nobody_knows_is_told_of(
    fates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = replace(on_h100(), environment=Environment(compute_capability="8.6"))
    monkeypatch.setattr(cmd_tune, "new_session", lambda device, seconds, seed: unknown)
    monkeypatch.setattr(cmd_tune, "compiled", lambda cases, *given, **how: [trials.NOT_BEGUN] * len(cases))
    result = bench("--op-file", str(fates), *QUESTION, "-o", str(tmp_path / "out"))
    assert result.exit_code == 3 and "what a block of sm_86 holds: spills are not looked for" in result.stderr
    assert "not tuned, the time was over: fates ('float32', 'small')" in result.stdout


def test_an_interrupt_keeps_what_was_chosen(fates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: Any) -> Choice:
        raise KeyboardInterrupt

    monkeypatch.setattr(cmd_tune, "tune_bucket", interrupted)
    result = bench("--op-file", str(fates), *QUESTION, "--device", "cpu", "-o", str(tmp_path / "out"))
    assert result.exit_code == 130 and "0 tuned, 1 left" in result.stdout


@pytest.mark.parametrize("arguments", [(), ("matmul", "--suite", "smoke"), ("--dtype", "bf16")])
def test_on_a_cpu_there_is_nothing_to_tune(arguments: tuple[str, ...]) -> None:
    result = bench(*arguments, "--device", "cpu")
    assert result.exit_code == 3 and result.stdout == ""
    assert "nothing to tune on" in result.stderr and "interpreted kernels have no speed" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--budget", "inf"), "--budget inf: wanted a number of seconds"),
        (("matmull",), "unknown op 'matmull'"),
        (("--op-file", str(TESTS / "data" / "scale.py"), "--set", "N=0"), "N=0 leaves no work"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], told: str) -> None:
    result = bench(*arguments, "--device", "cpu")
    assert result.exit_code == 2 and told in result.stderr


def test_the_arch_of_a_device() -> None:
    assert [arch_of(Environment(compute_capability=text)) for text in ("9.0", "12.1", None)] == [90, 121, 0]
