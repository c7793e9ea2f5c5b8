"""`pytest -m perf tests/perf` as users run it, on this CPU: it passes, and fails on a slower case."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALL = "matmul --set M=64 --set N=64 --set K=64 --dtype float32 --provider torch --device cpu --case-seconds 0.1"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """This checkout without its reports, with one kept baseline."""
    tree = tmp_path / "checkout"
    tree.mkdir()
    for name in ("kernels", "bench", "analysis", "pyproject.toml"):
        (tree / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "tests" / "perf", tree / "tests" / "perf")
    shutil.copy(ROOT / "tests" / "conftest.py", tree / "tests")
    kept = tree / "reports" / "baselines" / "cpu" / "first"
    subprocess.run(
        [sys.executable, "-m", "bench", "run", *SMALL.split(), "--no-peaks", "-o", str(kept)],
        cwd=tree, check=True, capture_output=True,
    )  # fmt: skip
    return tree


def gate(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "perf",
        "tests/perf",
        "--perf-run",
        SMALL,
        "-p",
        "no:cacheprovider",
    ]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


def scale_kept(checkout: Path, factor: float) -> None:
    """Makes the kept times longer or shorter."""
    path = checkout / "reports" / "baselines" / "cpu" / "first" / "records.jsonl"
    header, line = path.read_text(encoding="utf-8").splitlines()
    record = json.loads(line)
    record["times_us"] = [time * factor for time in record["times_us"]]
    path.write_text(f"{header}\n{json.dumps(record)}\n", encoding="utf-8")


def test_it_passes_and_fails_with_the_kept_times(checkout: Path) -> None:
    """A thousand times what was kept is no slower on however busy a machine; a hundredth of it is."""
    scale_kept(checkout, 1000)
    passed = gate(checkout)
    assert passed.returncode == 0 and "1 passed" in passed.stdout, passed.stdout + passed.stderr
    scale_kept(checkout, 1 / 100_000)
    failed = gate(checkout)
    assert failed.returncode == 1 and "SLOW matmul/torch/float32/M=64,N=64,K=64" in failed.stdout, failed.stdout


def test_a_plain_pytest_does_not_run_it() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/perf"]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "test_no_case_got_slower" not in collected.stdout and "1 deselected" in collected.stdout
