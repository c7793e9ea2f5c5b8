"""`--op-file`: a user's own op goes through list, check and run; a file that is none is told what is wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from op_files import MOODY, moody_file
from typer.testing import CliRunner, Result

from bench import cmd_run
from bench.__main__ import app
from bench.op_file import load_ops
from bench.record import Status, read_records
from kernels.registry import OPS

ROOT = Path(__file__).resolve().parent.parent
SCALE = ROOT / "tests" / "data" / "scale.py"


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def listed(*arguments: str) -> list[str]:
    result = bench("list", "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    return [case["id"] for case in json.loads(result.stdout)]


# What a file must be


def named(name: str) -> str:
    return MOODY.replace('name="moody"', f"name={name!r}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = (", ["does not import: SyntaxError"]),
        ("import nothing_like_it", ["does not import: ModuleNotFoundError: No module named 'nothing_like_it'"]),
        ("import sys; sys.exit('no')", ["does not import: SystemExit: no"]),
        ("x = 1", ["defines neither OP nor OPS", "kernels.spec.Op", "tests/data/scale.py"]),
        ("OP = {'name': 'mine'}", ["wanted a kernels.spec.Op, got a dict"]),
        ("OPS = ['mine']", ["wanted a kernels.spec.Op, got a str"]),
        (named("matmul"), ["the name 'matmul' is the suite's own: choose another"]),
        (named("peak_read"), ["the name 'peak_read' is the suite's own"]),
        (named("a/b"), ["the name 'a/b' cannot stand in a case id"]),
        (MOODY + "\nOPS = [OP, OP]", ["the name 'moody' is taken by"]),
        (MOODY.replace('{"mine": moody}', "{}"), ["op moody has no providers"]),
        (MOODY.replace('{"mine": moody}', '{"mine": 3}'), ["op moody: provider 'mine' is 3; wanted"]),
        (MOODY.replace("reference=lambda x: x.double()", "reference=None"), ["op moody: reference is None; wanted"]),
        (MOODY.replace("check_workloads=tuple(", "check_workloads=('big',) + tuple("), ["has 'big'; wanted"]),
    ],
)
@pytest.mark.parametrize("command", ["list", "run", "check"])
def test_a_file_that_is_no_op_ends_with_2_and_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, text: str, told: list[str]
) -> None:
    monkeypatch.setattr(cmd_run, "sweep", None)
    file = tmp_path / "mine.py"
    file.write_text(text)
    result = bench(command, "--op-file", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    for part in (f"--op-file {file}: ", *told):
        assert part in result.stderr


def test_no_file_and_no_python_are_told_too(tmp_path: Path) -> None:
    assert f"--op-file {tmp_path}/gone.py: no such file" in bench("list", "--op-file", f"{tmp_path}/gone.py").stderr
    text = tmp_path / "op.txt"
    text.write_text("OP = 1")
    assert "its name must end in .py" in bench("list", "--op-file", str(text)).stderr


def test_what_a_file_prints_while_it_is_read_is_not_on_stdout(tmp_path: Path) -> None:
    file = moody_file(tmp_path)
    file.write_text(MOODY + "\nprint('reading')\n")
    result = bench("list", "--json", "--op-file", str(file))
    assert [case["op"] for case in json.loads(result.stdout)] == ["moody", "moody"]
    assert result.stderr == "reading\n"


# What is selected


def test_an_op_of_ones_own_is_alone_at_its_check_workloads_unless_others_are_named(tmp_path: Path) -> None:
    moody, own = moody_file(tmp_path), ("--op-file", str(SCALE))
    scale = [f"scale/{provider}/float32/N={n}" for n in (1, 1000, 4096) for provider in ("triton", "torch")]
    assert listed(*own) == scale
    assert listed(*own, "--op-file", str(moody)) == [*scale, "moody/mine/float32/N=100", "moody/mine/float32/N=101"]
    assert listed("moody", *own, "--op-file", str(moody), "--match", "100") == ["moody/mine/float32/N=100"]
    question = ("--set", "N=7,8", "--dtype", "fp16", "--provider", "torch")
    assert listed(*own, *question) == ["scale/torch/float16/N=7", "scale/torch/float16/N=8"]
    both = listed("scale", "matmul", *own)
    assert {name.partition("/")[0] for name in both} == {"scale", "matmul"}
    assert len(load_ops([SCALE, moody])) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--suite", "smoke"], "no sizes for op scale there: give --set"),
        (["--model", "llama-3.1-8b"], "no sizes for op scale there: give --set"),
        (["nothing"], f"unknown op 'nothing'; known: {', '.join(op.name for op in OPS)}, scale"),
        (["--set", "M=1"], "scale has no axis 'M'; its axes: N"),
        (["--dtype", "int8"], "no case of these ops in this suite has dtype int8; they have: float32"),
    ],
)
def test_a_selection_that_means_nothing_for_it_is_refused(arguments: list[str], told: str) -> None:
    result = bench("list", *arguments, "--op-file", str(SCALE))
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


# Through everything


def test_it_is_checked_and_interpreted() -> None:
    result = bench("check", "--op-file", str(SCALE), "--device", "cpu", "--provider", "torch")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "3 OK"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "check", "--interpret", "--op-file", os.path.relpath(SCALE, ROOT), "--json"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["counts"] == {"OK": 3} and document["interpreted"]
    assert {case["case_id"] for case in document["cases"]} == {f"scale/triton/float32/N={n}" for n in (1, 1000, 4096)}


def test_it_is_run_in_the_worker_and_only_the_document_is_on_stdout(tmp_path: Path) -> None:
    files = ("--op-file", str(moody_file(tmp_path)), "--op-file", str(SCALE), "--match", "moody|triton")
    arguments = (*files, "--no-peaks", "--device", "cpu")
    done = subprocess.run(
        [sys.executable, "-m", "bench", "run", *arguments, "--case-seconds", "0.02", "-o", str(tmp_path), "--json"],
        cwd=ROOT,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"] == {"OK": 2, "SKIPPED": 3}
    assert "called with 100\n" in done.stderr, "what a kernel prints"
    records = read_records(tmp_path / "records.jsonl")
    assert {(r.case["op"], r.status) for r in records} == {("moody", Status.OK), ("scale", Status.SKIPPED)}
    assert len({r.source_sha256 for r in records}) == 2
