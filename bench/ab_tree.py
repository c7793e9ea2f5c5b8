"""The two trees of `bench ab`: a baseline checked out beside this checkout for as long as it is needed, and this one.

Leaves running them to `bench.ab`.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SHOWN = 12
"""Digits of a commit, and files of a list, that are told."""
NO_HOOKS = ("-c", "core.hooksPath=/dev/null")
"""A hook of the user's own does not expect a checkout in a temporary directory."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: `baseline` or `candidate`, what it is in words, and the checkout whose code runs."""

    name: str
    told: str
    tree: Path


@contextmanager
def trees(revision: str, checkout: Path) -> Iterator[tuple[Side, Side]]:
    """Baseline and candidate; the baseline's checkout is gone on leaving, however that comes about.

    Args:
        revision: anything that git takes for a commit.
        checkout: whose working tree is the candidate, uncommitted changes and all.

    Raises:
        ValueError: no git checkout, an unknown revision, or one that has no `bench`.
    """
    prefix = _git(checkout, "rev-parse", "--show-prefix", why="bench ab takes its baseline from git")
    commit = _git(
        checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}",
        why=f"--baseline {revision}: wanted a commit, tag or branch of {checkout}; `git log --oneline` lists commits",
    )  # fmt: skip
    candidate = Side("candidate", _candidate(checkout), checkout)
    subject = _git(checkout, "log", "-1", "--format=%s", commit)
    directory = Path(tempfile.mkdtemp(prefix="roofmark-baseline-"))
    try:
        _git(checkout, *NO_HOOKS, "worktree", "add", "--detach", "--quiet", str(directory / "tree"), commit)
        tree = directory / "tree" / prefix
        if not (tree / "bench" / "__main__.py").is_file():
            raise ValueError(f"--baseline {revision}: that commit has no `bench` to run")
        yield Side("baseline", f"{revision}, commit {commit[:SHOWN]}: {subject}", tree), candidate
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        with suppress(ValueError):
            _git(checkout, "worktree", "prune")


def _candidate(checkout: Path) -> str:
    """This working tree in words: its commit, and what is not committed."""
    commit = _git(checkout, "rev-parse", "HEAD")[:SHOWN]
    changed = _git(checkout, "status", "--porcelain", ".").splitlines()
    if not changed:
        return f"this working tree, which is commit {commit}"
    files = ", ".join(line[3:] for line in changed[:SHOWN])
    rest = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return f"this working tree, commit {commit} WITH UNCOMMITTED CHANGES: {files}{rest}"


def _git(checkout: Path, *arguments: str, why: str = "") -> str:
    """What git prints. Raises ValueError with `why` and git's last words."""
    try:
        done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ValueError(f"{why or 'git'}: {error}") from error
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise ValueError(": ".join(part for part in (why, words[-1] if words else "") if part))
    return done.stdout.rstrip("\n")
