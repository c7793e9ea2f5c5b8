"""The commands of README.md, run as they stand, in a copy of the checkout; those that need a GPU by their `--help`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
NEEDS_A_GPU = "(needs a GPU"
MOST_LINES = 200
SLOWER = {"compare": (0, 1)}
"""Two runs of one tree on a busy CPU may differ by any amount: both answers are right."""


def commands() -> list[str]:
    """Every line of a code block that calls python, with its comment."""
    blocks = re.findall(r"^```\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.startswith("python")]


HERE = [line for line in commands() if NEEDS_A_GPU not in line]
ON_A_GPU = [line for line in commands() if NEEDS_A_GPU in line]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("readme")
    for folder in ("kernels", "bench", "analysis", "tests", "reports"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "sass"))
    return copy


def run(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=tree, env=os.environ | {"COLUMNS": "200"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


def words_of(line: str) -> list[str]:
    return shlex.split(line, comments=True)[1:]


def test_readme_is_short_and_has_both_kinds() -> None:
    assert len(TEXT.splitlines()) <= MOST_LINES
    assert len(HERE) > 12 and len(ON_A_GPU) > 6
    assert all(Path(ROOT, target).exists() for target in re.findall(r"\]\(([^)#:]+)\)", TEXT))


def test_commands_run_in_their_order_as_they_stand(tree: Path) -> None:
    for line in HERE:
        words = words_of(line)
        done = run(tree, *words)
        assert done.returncode in SLOWER.get(words[2], (0,)), f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        if "-o" in words:
            assert any((tree / words[words.index("-o") + 1]).iterdir())


@pytest.mark.parametrize("line", ON_A_GPU, ids=lambda line: " ".join(words_of(line)[1:3]))
def test_options_of_a_command_for_a_gpu_are_known(tree: Path, line: str) -> None:
    words = words_of(line)
    if words[1] == "pytest":
        assert "test_no_case_got_slower" in run(tree, *words, "--collect-only", "-q").stdout
        return
    done = run(tree, *words[:3], "--help")
    assert done.returncode == 0, done.stderr
    for option in re.findall(r"--[a-z][a-z-]*[a-z]", line):
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", done.stdout), f"{option} is not in the help of {words[2]}"
