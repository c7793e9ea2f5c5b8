"""A child command: its lines, how it ended, and that nothing it started outlives it."""

from __future__ import annotations

import os
import time

import pytest

from bench.child import Child

GRANDCHILD = "import subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"


def once(code: str) -> list[str]:
    """`python -m` with a module that runs code."""
    return ["timeit", "-n1", "-r1", code]


def soon() -> float:
    return time.monotonic() + 60


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet collected does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_that_ends_well_has_told_its_lines() -> None:
    with Child(once("print('one'); print('two')"), lambda line: None) as child:
        assert child.wait(soon()) == ""
    assert child.lines[:2] == ["one", "two"]


def test_one_that_fails_is_told_with_its_last_words() -> None:
    heard: list[str] = []
    with Child(["no_such_module"], heard.append) as child:
        ended = child.wait(soon())
    assert ended.startswith("exit code 1: ")
    assert ended.endswith("No module named no_such_module")
    assert heard[-1].endswith("No module named no_such_module")


def test_one_that_takes_too_long_is_killed_with_all_it_started_and_keeps_its_lines() -> None:
    with Child(once(GRANDCHILD), lambda line: None) as child:
        while not child.lines:
            time.sleep(0.02)
        assert child.wait(time.monotonic() + 0.1) == "cut off: its time was up"
        assert_gone(int(child.lines[0]))


def test_leaving_early_ends_it() -> None:
    with pytest.raises(KeyboardInterrupt), Child(once(GRANDCHILD), lambda line: None) as child:
        while not child.lines:
            time.sleep(0.02)
        assert is_alive(int(child.lines[0]))
        raise KeyboardInterrupt
    assert_gone(int(child.lines[0]))


def assert_gone(pid: int) -> None:
    assert pid != os.getpid()
    end = time.monotonic() + 20
    while is_alive(pid):
        assert time.monotonic() < end
        time.sleep(0.02)
