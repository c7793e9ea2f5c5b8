"""bench.environment on the CPU and of the software: what is reported is recorded, what is not is None."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
import torch

from bench import environment as env
from bench.environment import environment
from bench.record import header_json

MIB = 2**20


def test_cpu_of_this_machine() -> None:
    seen = environment("cpu")
    assert seen.device_type == "cpu" and seen.device_name
    assert (seen.sm_count, seen.driver, seen.uuid, seen.power_limit_w) == (None,) * 4
    assert seen.memory_bytes is not None and seen.memory_bytes > 2**30
    assert seen.l2_bytes is not None and MIB <= seen.l2_bytes <= 256 * MIB
    assert seen.threads == torch.get_num_threads()
    assert seen.torch == torch.__version__ and seen.python == ".".join(map(str, sys.version_info[:3]))
    assert seen.taken_at is not None and datetime.fromisoformat(seen.taken_at).utcoffset() is not None
    assert json.loads(header_json("r", seen))["environment"]["torch"] == seen.torch


def caches(monkeypatch: pytest.MonkeyPatch, folder: Path, c_library: str | None, sizes: tuple[str, ...]) -> None:
    monkeypatch.setattr(env, "CPU_CACHES", folder)
    monkeypatch.setattr(env, "_output", lambda *command, env=None: c_library if command[0] == "getconf" else None)
    for index, size in enumerate(sizes):
        (folder / f"index{index}").mkdir()
        (folder / f"index{index}" / "size").write_text(f"{size}\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("c_library", "sizes", "mib", "note"),
    [
        ("33554432", ("48K", "1024K", "98304K"), 96, None),
        (str(96 * MIB), ("48K", "32M"), 96, None),
        (str(32 * MIB), ("48K", "64M"), 64, None),
        ("402653184", ("32768K",), 256, "last-level cache of 384 MiB counted as 256"),
        ("0", (), 32, "no cache size reported: 32 MiB assumed"),
        (None, ("junk",), 32, "no cache size reported: 32 MiB assumed"),
    ],
)
def test_cpu_cache_is_the_larger_report_capped(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    c_library: str | None,
    sizes: tuple[str, ...],
    mib: int,
    note: str | None,
) -> None:
    caches(monkeypatch, tmp_path, c_library, sizes)
    seen = environment("cpu")
    assert (seen.l2_bytes, seen.note) == (mib * MIB, note)


def test_e19_a_platform_without_proc_or_triton_still_has_an_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    caches(monkeypatch, tmp_path, None, ())
    monkeypatch.setattr(env, "CPU_INFO", tmp_path / "none")
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(env, "PROVIDER_PACKAGES", ("no-such-package",))
    seen = environment("cpu")
    assert (seen.device_name, seen.ptxas, seen.commit, dict(seen.packages)) == ("arm64", None, None, {})


def test_ptxas_is_the_one_triton_calls() -> None:
    version = env._ptxas(9)
    assert version is not None and re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert env._ptxas(None) == version


def test_ptxas_of_blackwell_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    tools = types.SimpleNamespace(
        ptxas=types.SimpleNamespace(path="old"), ptxas_blackwell=types.SimpleNamespace(path="new")
    )
    monkeypatch.setattr(knobs, "nvidia", tools)
    texts = {"old": "release 12.8, V12.8.93", "new": "release 12.9, V12.9.86"}
    monkeypatch.setattr(env, "_output", lambda *command: texts[command[0]])
    assert (env._ptxas(9), env._ptxas(10)) == ("12.8.93", "12.9.86")
    monkeypatch.setattr(env, "_output", lambda *command: None)
    assert env._ptxas(9) is None


def test_provider_versions_come_without_importing_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    (tmp_path / "vllm-9.9.1.dist-info").mkdir()
    (tmp_path / "vllm-9.9.1.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 9.9.1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert environment("cpu").packages == {"vllm": "9.9.1"}


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A committed checkout at `env.ROOT`, and git in it."""
    monkeypatch.setattr(env, "ROOT", tmp_path)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
        done = subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "code.py").write_text("1\n", encoding="utf-8")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    yield git


def test_commit_and_dirty(checkout: Callable[..., str], tmp_path: Path) -> None:
    head = checkout("rev-parse", "HEAD")
    assert env._commit() == (head, False)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "records.jsonl").touch()
    assert env._commit() == (head, False)
    (tmp_path / "code.py").write_text("2\n", encoding="utf-8")
    assert env._commit() == (head, True)


def test_untracked_code_is_dirty(checkout: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "kernel.py").touch()
    assert env._commit()[1] is True


def test_a_hooks_git_variables_do_not_mislead(
    checkout: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert env._commit()[1] is False


def test_no_commit_outside_git_or_inside_anothers_repository(
    checkout: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "copy").mkdir()
    monkeypatch.setattr(env, "ROOT", tmp_path / "copy")
    assert env._commit() == (None, None)
    monkeypatch.setattr(env, "ROOT", tmp_path / "missing")
    assert env._commit() == (None, None)
