"""`bench profile` and the process that a profiler watches: commands that parse, a case that runs, marks in place."""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from small_cases import matmul_case
from triton.profiler import proton
from triton.profiler.hooks.launch import LaunchHook
from typer.testing import CliRunner, Result

from bench import l2, profiled
from bench.__main__ import app
from bench.cmd_profile import commands
from bench.environment import ROOT
from bench.lookup import case_named
from bench.op_file import load_ops
from bench.suites import suite_cases
from kernels.registry import OPS, ROOF_OPS

SCALE = ROOT / "tests" / "data" / "scale.py"
SMALL = "matmul/torch/float32/M=4,N=8,K=16"


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("profile", *arguments))


# Which case


def test_an_id_is_found_of_any_op_and_of_sizes_that_no_suite_has() -> None:
    cases = [case for case in suite_cases("smoke", OPS) if case.provider in ("torch", "triton")]
    assert len(cases) > 10
    for case in cases:
        assert case_named(case.id).id == case.id
    assert case_named("matmul/triton/float16/M=7,N=9,K=11").workload.axes == {"M": 7, "N": 9, "K": 11}
    ragged = next(case for op in OPS for case in [w for w in op.check_workloads if w.kv_lens])
    assert case_named(f"attention_decode/triton/{ragged.key}").workload.kv_lens == ragged.kv_lens
    [copy] = [op for op in ROOF_OPS if op.name == "peak_copy"]
    assert case_named("peak_copy/torch/float32/N=4096").op == copy
    [scale] = load_ops([SCALE])
    assert case_named("scale/triton/float32/N=4096", [scale]).op == scale


def test_every_id_that_list_prints_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = suite_cases("full", OPS)
    monkeypatch.setattr("bench.lookup.suite_cases", lambda name, ops: cases)
    for case in cases[:: len(cases) // 60]:
        assert case_named(case.id).id == case.id


def test_a_part_that_one_case_has_is_enough() -> None:
    [scale] = load_ops([SCALE])
    assert case_named("scale/triton.*N=1000$", [scale]).id == "scale/triton/float32/N=1000"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("matmul/tritn/bfloat16/M=4096,N=4096,K=4096", ["the nearest: matmul/triton/bfloat16/M=4096,N=4096,K=4096"]),
        ("matmul/torch/bfloat16/M=64,N=64,K=64,batch=2", ["no case", "the nearest: matmul"]),
        ("matmul/torch/bfloat16/M=64,N=65", ["no case", "the nearest: matmul", "bench list"]),
        ("matmul/torch/bfloat16/M=0,N=64,K=64", ["no case", "the nearest: matmul"]),
        ("zzzzzzzz", ["no case 'zzzzzzzz'; `python -m bench list` shows them all"]),
        ("attention_decode/torch/", ["cases match 'attention_decode/torch/'; name one of them", "\n  and ", " more"]),
    ],
)
def test_another_text_is_told_what_is_near_or_how_many_it_means(text: str, told: list[str]) -> None:
    result = bench(text)
    assert result.exit_code == 2 and result.stdout == ""
    for part in told:
        assert part in result.stderr


# The commands


def parsed(argv: list[str]) -> tuple[str, list[str]]:
    """(case id, all arguments) of the part that `bench.profiled` gets."""
    at = next(n for n, part in enumerate(argv) if part in ("bench.profiled", "bench/profiled.py"))
    return argv[at + 1], argv[at + 1 :]


def test_the_commands_are_shell_lines_that_name_the_case_and_the_mark() -> None:
    result = bench("matmul/triton/bfloat16/M=4096,N=4096,K=4096", "--launches", "7", "--json")
    document = json.loads(result.stdout)
    lines = {tool: shlex.split(line) for tool, line in document["commands"].items()}
    assert result.exit_code == 0 and list(lines) == ["ncu", "nsys", "proton", "proton_view"]
    for tool in ("ncu", "nsys", "proton"):
        case_id, rest = parsed(lines[tool])
        assert case_id == document["case_id"] == "matmul/triton/bfloat16/M=4096,N=4096,K=4096"
        assert rest[-2:] == ["--launches", "1" if tool == "ncu" else "7"], "ncu replays a launch dozens of times"
        assert sys.executable in lines[tool]
    assert lines["ncu"][lines["ncu"].index("--nvtx-include") + 1] == f"{profiled.MARK}/"
    assert lines["nsys"][lines["nsys"].index("--capture-range") + 1] == "cudaProfilerApi"
    assert (ROOT / "bench" / "profiled.py").exists()


def test_protons_own_parsers_take_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_named("matmul/triton/tfloat32/M=64,N=64,K=64")
    made = commands(case, 5, [])
    start = made["proton"].index("triton.profiler.proton")
    monkeypatch.setattr(sys, "argv", made["proton"][start:])
    options, target = proton.parse_arguments()
    assert options.hook == "triton" and target == ["bench/profiled.py", case.id, "--launches", "5"]
    view = made["proton_view"]
    assert view[view.index("--metrics") + 1] == "tflop32/s,gbyte/s" and 32 in LaunchHook.flops_width
    assert view[-1] == f"{options.name}.hatchet"


def test_a_users_op_file_is_named_to_the_process_by_its_whole_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCALE.parent)
    result = bench("scale/torch/float32/N=100", "--op-file", "scale.py")
    lines = [line for line in result.stdout.splitlines() if "profiled" in line]
    assert len(lines) == 3 and all(f"--op-file {SCALE}" in line for line in lines)
    assert "avg_time/us" in result.stdout, "torch declares no rates"


# The process


def test_a_case_runs_in_its_own_process_from_the_checkout() -> None:
    argv = commands(case_named(SMALL), 3, [])["ncu"]
    argv = argv[argv.index(sys.executable) :]
    done = subprocess.run([*argv, "--device", "cpu"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"1 marked launches of {SMALL} on cpu\n"), done.stderr


def test_as_protons_script_it_ends_without_leaving(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SystemExit, even with 0, would take Triton 3.6's command out before it writes the profile."""
    monkeypatch.setattr(sys, "argv", ["bench/profiled.py", SMALL, "--launches", "2", "--device", "cpu"])
    runpy.run_path(str(ROOT / "bench" / "profiled.py"), run_name="__main__")
    assert capsys.readouterr().out == f"2 marked launches of {SMALL} on cpu\n"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["matmul/torch/float32/M=4,N=8", "--device", "cpu"], 2, "no case"),
        (["matmul/triton/float32/M=4,N=8,K=16", "--device", "cpu"], 3, "SKIPPED: interpreted kernels have no speed"),
        ([SMALL, "--device", "tpu"], 2, "--device tpu"),
    ],
)
def test_what_cannot_run_says_why(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, told: str
) -> None:
    with pytest.raises(SystemExit) as left:
        profiled.main(arguments)
    assert left.value.code == code and told in capsys.readouterr().err


class Watching:
    """A GPU's marks, in the order of the calls; the launches between them run on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        for name in ("start", "stop"):
            monkeypatch.setattr(torch.cuda.profiler, name, lambda name=name: self.seen.append(name))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.seen.append("wait"))
        monkeypatch.setattr(torch.cuda.nvtx, "range", lambda name: self.named("nvtx", name))
        monkeypatch.setattr(profiled, "proton_scope", lambda: lambda name: self.named("proton", name))
        watched, marked = profiled.watched, profiled.marked
        monkeypatch.setattr(profiled, "watched", lambda device: watched("cuda"))
        monkeypatch.setattr(profiled, "marked", lambda device: marked("cuda"))

    @contextmanager
    def named(self, kind: str, name: str) -> Iterator[None]:
        self.seen.append(f"{kind} {name}")
        yield
        self.seen.append(f"end {kind}")

    def launch(self, a: torch.Tensor, b: torch.Tensor, **how: Any) -> torch.Tensor:
        self.seen.append("launch")
        return a @ b


MARKED = ["proton roofmark", "nvtx roofmark", "launch", "end nvtx", "end proton"]


def test_only_the_launches_after_warming_up_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    watching = Watching(monkeypatch)
    monkeypatch.setattr(profiled, "environment", lambda device: type("E", (), {"l2_bytes": 1024}))
    profiled.launch_marked(matmul_case(watching.launch), "cpu", 3)
    warming = ["launch"] * 6  # a round over the copies of 512 bytes is three times the cache
    assert watching.seen == [*warming, "wait", "start", *MARKED * 3, "wait", "stop"]


def test_a_flush_between_launches_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    watching = Watching(monkeypatch)
    monkeypatch.setattr(l2, "MAX_COPIES", 2)
    monkeypatch.setattr(l2, "flusher", lambda rotation, device: lambda: watching.seen.append("flush"))
    monkeypatch.setattr(profiled, "environment", lambda device: type("E", (), {"l2_bytes": 1024}))
    profiled.launch_marked(matmul_case(watching.launch), "cpu", 2)
    assert watching.seen == ["launch", "wait", "start", "flush", *MARKED, "flush", *MARKED, "wait", "stop"]


def test_protons_scope_is_its_own_and_harmless_without_a_session() -> None:
    scope = profiled.proton_scope()
    assert scope is not None
    with scope("roofmark"):
        pass
