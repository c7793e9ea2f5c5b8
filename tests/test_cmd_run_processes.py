"""`python -m bench` in processes of its own: killed, without optional packages, without a GPU."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.record import Status, read_records

ROOT = Path(__file__).resolve().parent.parent
FAST = ("--no-peaks", "--device", "cpu", "--case-seconds", "0.02")

SMALL_CACHE = "import bench.environment as e, runpy, sys; e.CPU_CACHE_CAP_BYTES = 2**20; "
RUN_IT = "runpy.run_module('bench', run_name='__main__', alter_sys=True)"


def start(program: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """`python -m bench` on a CPU whose cache counts as 1 MiB, after `program`."""
    return subprocess.Popen(
        [sys.executable, "-c", program + SMALL_CACHE + RUN_IT, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_a_run_that_is_killed_keeps_every_record_made_before(tmp_path: Path) -> None:
    """F05: killed while its fourth case runs, which stderr names before it starts."""
    ten = ("matmul", "--provider", "torch", "--set", "M=" + ",".join(map(str, range(1, 11))))
    process = start("", "run", *ten, "--set", "N=64", "--set", "K=64", *FAST, "-o", str(tmp_path))
    assert process.stderr is not None
    named = []
    for line in process.stderr:
        named.append(line.strip())
        if line.startswith("[4/10]"):
            os.kill(process.pid, signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert named == [f"[{n}/10] matmul/torch/bfloat16/M={n},N=64,K=64" for n in range(1, 5)]
    records = read_records(tmp_path / "records.jsonl")
    assert 3 <= len(records) < 10
    assert [r.case["axes"]["M"] for r in records] == list(range(1, len(records) + 1))
    assert {r.status for r in records} == {Status.OK}


def distributions_needed(*names: str) -> set[str]:
    """These and what they require, with markers that hold here."""
    needed: set[str] = set()
    ahead = list(names)
    while ahead:
        name = canonical(ahead.pop())
        if name in needed:
            continue
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        needed.add(name)
        ahead += [re.split(r"[^\w.-]", requirement)[0] for requirement in requirements if "extra ==" not in requirement]
    return needed


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_smoke_runs_with_what_a_cuda_image_has(tmp_path: Path) -> None:
    """All third-party modules are hidden but torch, triton, numpy, rich, typer and what these require."""
    needed = distributions_needed("torch", "triton", "numpy", "rich", "typer")
    hidden = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not needed & {canonical(owner) for owner in owners}
    }
    hidden |= {"pandas", "pyarrow", "scipy", "matplotlib", "jinja2", "plotly", "pynvml"}
    assert not hidden & {"torch", "triton", "numpy", "rich", "typer"}
    hook = f"""
import sys
from importlib.machinery import PathFinder
class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {sorted(hidden)!r} else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""
    process = start(hook, "run", "--suite", "smoke", *FAST, "-o", str(tmp_path), "--json")
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    statuses = {r.case["id"]: r.status for r in read_records(tmp_path / "records.jsonl")}
    assert json.loads(stdout)["exit"] == 0
    assert {status for case_id, status in statuses.items() if "/torch/" in case_id} == {Status.OK}
    assert set(statuses.values()) <= {Status.OK, Status.SKIPPED, Status.UNSUPPORTED}


@pytest.mark.parametrize("arguments", [["run", "--help"], ["list", "--suite", "smoke"]])
def test_help_and_list_work_where_torch_sees_no_gpu(arguments: list[str]) -> None:
    """E04: the GPU, where there is one, is hidden."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    if arguments == ["run", "--help"]:
        assert "in seconds" in done.stdout
        assert "Exit code 0" in done.stdout
