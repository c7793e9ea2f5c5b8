"""`bench ab` with nothing that stands for anything: real commands, real processes, real times on this CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from op_files import op_source

from bench.record import read_records

ROOT = Path(__file__).parents[1]


def test_real_runs_of_a_provider_slowed_on_purpose(tmp_path: Path) -> None:
    """Real command, real processes, real times on this CPU: the slowed one is SLOW, its neighbour is not, exit code 1.

    One pair screens and three decide: the fewest that the procedure knows, at a threshold that no busy machine passes.
    """
    tree = tmp_path / "checkout"
    for package in ("kernels", "bench", "analysis"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    op = tree / "nap.py"
    op.write_text(NAP_OP, encoding="utf-8")
    (tree / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    for arguments in (("init", "-q"), ("add", "-A"), (*who, "commit", "-q", "-m", "awake")):
        subprocess.run(["git", *arguments], cwd=tree, check=True)
    op.write_text(NAP_OP.replace("SLOWED_S = 0.002", "SLOWED_S = 0.005"), encoding="utf-8")
    options = ("--device", "cpu", "--case-seconds", "0.02", "--threshold", "0.5", "--pairs", "1", "--rerun-pairs", "3")
    done = subprocess.run(
        [sys.executable, "-m", "bench", "ab", "--baseline", "HEAD", "--op-file", "nap.py", *options, "-o", "out"],
        cwd=tree,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "nap/slowed/float32/N=100: confirmed by a rerun: +" in done.stdout
    assert done.stdout.endswith("1 SLOW, 1 AMBIGUOUS\n")
    assert len(read_records(tree / "out" / "rerun" / "candidate" / "pair-03" / "records.jsonl")) == 1


NAP = """
SLOWED_S = 0.002


def slowed(x):
    time.sleep(SLOWED_S)
    return x.clone()


def steady(x):
    time.sleep(0.002)
    return x.clone()
"""
NAP_OP = op_source("nap", NAP, {"slowed": "slowed", "steady": "steady"}, (100,))
"""Two providers that take a nap first."""
