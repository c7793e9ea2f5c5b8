"""README's five steps, done: one new file and one line in the registry, and the proofs take the op in by themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROOFS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("tests/test_ops.py", "scale", {}),
    ("tests/test_kernel_builds.py", "scale", {}),
    ("tests/interpreter/test_interpreted_ops.py", "scale", {"TRITON_INTERPRET": "1"}),
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with the op `scale` added as the README says."""
    copy = tmp_path_factory.mktemp("checkout")
    for folder in ("kernels", "bench", "analysis", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    shutil.copy(ROOT / "tests/data/scale.py", copy / "kernels/scale.py")
    registry = copy / "kernels/registry.py"
    text = registry.read_text(encoding="utf-8")
    line = '    "attention_decode",\n'
    assert text.count(line) == 1
    registry.write_text(text.replace(line, f'{line}    "scale",\n'), encoding="utf-8")
    return copy


def run(tree: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(("file", "match", "environment"), PROOFS, ids=[proof[0] for proof in PROOFS])
def test_the_new_op_passes_the_proofs_by_itself(tree: Path, file: str, match: str, environment: dict[str, str]) -> None:
    done = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", file, "-k", match, **environment)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout, done.stdout[-3000:]


def test_the_new_op_is_listed_and_measured(tree: Path) -> None:
    asked = ("run", "scale", "--set", "N=100000", "--dtype", "fp32", "--no-peaks", "--case-seconds", "0.02")
    command = ("-m", "bench", *asked, "--device", "cpu", "-o", str(tree / "out"))
    done = run(tree, *command, XDG_RUNTIME_DIR=str(tree / "runtime"))
    assert done.returncode == 0, done.stderr
    assert "scale/torch/float32/N=100000" in done.stdout
    assert "1 SKIPPED: interpreted kernels have no speed" in done.stdout


def test_a_wrong_kernel_does_not_pass(tree: Path) -> None:
    """The same steps with the mask of the store left out of the multiplication: caught, not measured."""
    file = tree / "kernels/scale.py"
    right = file.read_text(encoding="utf-8")
    file.write_text(right.replace("mask=inside) * a", "mask=inside) * 1.49"), encoding="utf-8")
    try:
        done = run(
            tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", PROOFS[2][0], "-k", "scale", TRITON_INTERPRET="1"
        )
    finally:
        file.write_text(right, encoding="utf-8")
    assert done.returncode == 1, done.stdout[-2000:]
