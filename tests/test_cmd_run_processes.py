"""`python -m bench` in processes of its own: killed, without optional packages, without a GPU."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.record import Status, read_records

ROOT = Path(__file__).resolve().parent.parent
FAST = ("--no-peaks", "--device", "cpu", "--case-seconds", "0.02")


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


ON_A_SMALL_CACHE = (
    "import bench.environment as e, runpy; e.CPU_CACHE_CAP_BYTES = 2**20; "
    "runpy.run_module('bench', run_name='__main__', alter_sys=True)"
)
HIDING = """
import sys
from importlib.machinery import PathFinder
class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden!r} else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""
"""Read by Python itself at its start, also by a worker's."""


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
    (tmp_path / "sitecustomize.py").write_text(HIDING.format(hidden=sorted(hidden)), encoding="utf-8")
    process = subprocess.run(
        [sys.executable, "-c", ON_A_SMALL_CACHE, "run", "--suite", "smoke", *FAST, "-o", str(tmp_path), "--json"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    stdout = process.stdout
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
