"""`bench check`: the error rule at a suite's sizes, and the interpreter's process with `--interpret`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from op_files import ABORT, HANG, SIMPLE, STICKY, calls, moody_file
from small_cases import Provider, matmul_case, raising
from toy_ops import TOY, describe
from typer.testing import CliRunner, Result

from bench import cmd_check, interpret, isolated_check, selection
from bench.__main__ import app
from bench.isolated_check import Checker, check_one
from bench.record import Status
from bench.run import Session
from bench.suites import suite_workloads
from kernels import matmul
from kernels.spec import Op, UnsupportedError

QUESTION = ("matmul", "--set", "M=1,16", "--set", "N=64", "--set", "K=64", "--device", "cpu", "--dtype", "fp32")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("check", *arguments))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks run in this process: no other one has a test's own providers."""

    @contextmanager
    def in_process(session: Session, *how: Any) -> Iterator[Checker]:
        yield partial(check_one, device=session.device, seed=session.seed)

    monkeypatch.setattr(cmd_check, "isolated_checks", in_process)


def use(monkeypatch: pytest.MonkeyPatch, op: Op) -> None:
    """Makes it the only op."""
    monkeypatch.setattr(selection, "OPS", (op,))
    monkeypatch.setattr(selection, "op_named", lambda name, own: op)


def with_providers(monkeypatch: pytest.MonkeyPatch, **providers: Provider) -> None:
    use(monkeypatch, replace(matmul.OP, providers=providers))


def off(a: torch.Tensor, b: torch.Tensor, **more: Any) -> torch.Tensor:
    """Right but for one value."""
    out = matmul.matmul_torch(a, b)
    out[0, 0] += 1
    return out


def test_right_cases_exit_with_0_and_show_their_errors() -> None:
    result = bench(*QUESTION, "--provider", "torch")
    assert result.exit_code == 0, result.output
    row = next(line.split() for line in result.stdout.splitlines() if line.strip().startswith("matmul/torch/"))
    assert row[1] == "OK" and float(row[2]) <= float(row[3]) and float(row[4]) <= float(row[5])
    assert result.stdout.splitlines()[-1] == "2 OK" and "[2/2] matmul/torch/float32/M=16" in result.stderr


@pytest.mark.usefixtures("here")
def test_a_wrong_case_is_told_and_exits_with_4(monkeypatch: pytest.MonkeyPatch) -> None:
    with_providers(monkeypatch, mine=off, torch=matmul.matmul_torch)
    result = bench(*QUESTION)
    assert result.exit_code == 4
    assert result.stdout.splitlines()[-1] == "2 INCORRECT, 2 OK"
    assert "INCORRECT: out: max error 1 over" in result.stdout


@pytest.mark.usefixtures("here")
def test_json_holds_every_case_and_nothing_else_is_on_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    with_providers(monkeypatch, mine=off)
    result = bench(*QUESTION, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == document["exit"] == 3, "none is OK"
    assert document["counts"] == {"INCORRECT": 2} and document["device"] == "cpu" and not document["interpreted"]
    [first, _] = document["cases"]
    assert first["case_id"] == "matmul/mine/float32/M=1,N=64,K=64" and first["status"] == "INCORRECT"
    assert first["error"]["out_max_error"] > first["error"]["out_max_limit"] and "max error" in first["detail"]


def test_a_check_that_crashes_or_hangs_is_a_status_and_the_others_go_on(tmp_path: Path) -> None:
    """E17: after a hang, an abort and a sticky error the next case is OK, in a process of its own."""
    file = moody_file(tmp_path)
    order = (SIMPLE, HANG, 101, ABORT, 102, STICKY, 103)
    sizes = ",".join(map(str, order))
    result = bench("--op-file", str(file), "--set", f"N={sizes}", "--dtype", "fp32", "--timeout", "3", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == document["exit"] == 4
    statuses = [case["status"] for case in document["cases"]]
    assert statuses == ["OK", "TIMEOUT", "OK", "CRASHED", "OK", "FAILED", "OK"]
    assert "not done after 3 s" in document["cases"][1]["detail"]
    assert "died of SIGABRT" in document["cases"][3]["detail"]
    process = dict(calls(file))
    assert len(set(process.values())) == 4 and os.getpid() not in process.values()
    assert "called with 100" in result.stderr and "out_max_error" in document["cases"][0]["error"]


def test_a_timeout_that_is_no_number_is_a_usage_error() -> None:
    result = bench(*QUESTION, "--timeout", "inf")
    assert result.exit_code == 2 and "--timeout inf: wanted a number of seconds" in result.stderr


@pytest.mark.parametrize(
    ("provider", "changes", "status", "detail"),
    [
        (raising(UnsupportedError("not here")), {}, Status.UNSUPPORTED, "not here"),
        (raising(MemoryError("no room")), {}, Status.OUT_OF_MEMORY, "MemoryError: no room"),
        (raising(ValueError("odd shape")), {}, Status.FAILED, "ValueError: odd shape"),
        (matmul.matmul_torch, {"cuda_only": {"mine": "CUDA only"}}, Status.SKIPPED, "CUDA only"),
        (matmul.matmul_torch, {"unsupported": lambda w, p: f"{p} cannot"}, Status.UNSUPPORTED, "mine cannot"),
    ],
)
def test_whatever_a_case_does_becomes_a_status(
    provider: Provider, changes: dict[str, Any], status: Status, detail: str
) -> None:
    checked = check_one(matmul_case(provider, changes=changes), "cpu", 0)
    assert (checked.status, checked.detail) == (status, detail)


def test_a_case_larger_than_the_free_memory_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated_check, "free_bytes", lambda device: 700)
    checked = check_one(matmul_case(), "cpu", 0)
    assert checked.status is Status.SKIPPED and checked.detail == "needs 768 bytes, 700 are free on this device"


def test_the_seed_is_that_of_the_inputs() -> None:
    one, other = (check_one(matmul_case(dtype="bfloat16"), "cpu", seed).error for seed in (0, 1))
    assert one != other and one == check_one(matmul_case(dtype="bfloat16"), "cpu", 0).error


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_exits_with_3() -> None:
    assert bench("matmul", "--device", "cuda").exit_code == 3


@pytest.mark.parametrize("option", [("--set", "M=1"), ("--device", "cpu"), ("--dtype", "fp16")])
def test_interpret_takes_no_sizes(option: tuple[str, str]) -> None:
    result = bench("--interpret", *option)
    assert result.exit_code == 2 and "the ops' own small cases" in result.stderr


def test_interpret_runs_itself_anew_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, TOY)
    monkeypatch.delenv(interpret.VARIABLE, raising=False)
    seen: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], *, env: dict[str, str], timeout: float, check: bool) -> Any:
        seen.append((command[3:], env))
        assert timeout == 180
        return subprocess.CompletedProcess(command, 4)

    monkeypatch.setattr(subprocess, "run", run)
    result = bench("toy_matmul", "--interpret", "--match", "M=5", "--seed", "3", "--json")
    assert result.exit_code == 4 and result.stdout == ""
    assert "interpreter, on the CPU: 1 small cases in float16 and float32" in result.stderr
    [(arguments, env)] = seen
    assert arguments == ["check", "toy_matmul", "--interpret", "--match", "M=5", "--seed", "3", "--json"]
    assert env["TRITON_INTERPRET"] == "1"


def test_interpret_with_a_suite_checks_the_ops_that_the_suite_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def rerun(arguments: Sequence[str]) -> int:
        asked.append(list(arguments))
        return 0

    monkeypatch.delenv(interpret.VARIABLE, raising=False)
    monkeypatch.setattr(interpret, "rerun", rerun)
    assert bench("--suite", "smoke", "--interpret").exit_code == 0
    assert bench("matmul", "kv_append", "--suite", "smoke", "--interpret").exit_code == 0
    ops = [list(takewhile(lambda part: not part.startswith("-"), arguments[1:])) for arguments in asked]
    assert set(ops[0]) == set(suite_workloads("smoke")) and "kv_append" not in ops[0]
    assert ops[1] == ["matmul"]
    refused = bench("kv_append", "--suite", "smoke", "--interpret")
    assert refused.exit_code == 2 and "suite smoke has no case of kv_append" in refused.stderr


def test_interpret_that_does_not_end_exits_with_4(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, TOY)
    monkeypatch.delenv(interpret.VARIABLE, raising=False)
    monkeypatch.setattr(interpret, "rerun", lambda arguments: None)
    result = bench("--interpret")
    assert result.exit_code == 4 and "not done after 180 s" in result.stderr


def test_the_interpreting_process_checks_the_ops_own_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, replace(TOY, providers={"triton": matmul.matmul_torch}, cuda_only={"triton": "no speed"}))
    monkeypatch.setenv(interpret.VARIABLE, "1")
    result = bench("--interpret", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0 and document["interpreted"] and document["counts"] == {"OK": 3}
    dtypes = [case["case_id"].split("/")[2] for case in document["cases"]]
    assert dtypes == ["float16", "float32", "float32"]


def test_past_its_time_it_starts_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, replace(TOY, providers={"triton": matmul.matmul_torch}))
    monkeypatch.setenv(interpret.VARIABLE, "1")
    monkeypatch.setattr(cmd_check, "START_UNTIL_S", 0)
    result = bench("--interpret", "--json")
    assert result.exit_code == 3 and json.loads(result.stdout)["counts"] == {"SKIPPED": 3}


def test_interpret_without_a_kernel_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with_providers(monkeypatch, torch=matmul.matmul_torch)
    result = bench("--interpret")
    assert result.exit_code == 2 and "no Triton kernel to interpret in matmul" in result.stderr


def test_what_is_interpreted_of_an_op() -> None:
    workloads = (describe(5, 3, 1, "bfloat16"), describe(4, 3, 1, "tfloat32"), describe(3, 3, 1, "float16"))
    op = replace(TOY, check_workloads=workloads, unsupported=lambda w, p: "no" if w.dtype == "float32" else None)
    assert [w.key for w in interpret.interpreted_workloads(op)] == ["float16/M=5,N=3,K=1", "float16/M=3,N=3,K=1"]
    op = replace(TOY, check_workloads=workloads)
    keys = [w.key.split(",")[0] for w in interpret.interpreted_workloads(op)]
    assert keys == ["float16/M=5", "float32/M=5", "float32/M=4", "float16/M=3", "float32/M=3"]


def test_ops_take_turns() -> None:
    other = replace(TOY, name="other", check_workloads=(describe(7, 3, 1, "float32"),))
    names = [case.op.name for case in interpret.interpreted_cases([TOY, other, replace(TOY, providers={})])]
    assert names == ["toy_matmul", "other", "toy_matmul", "toy_matmul"]
