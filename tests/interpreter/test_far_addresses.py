"""Offsets past 2^31 elements, at their true addresses: `far_addresses.py` in a process that may not come back."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from far_addresses import CHECKS
from launches import variant

from kernels import matmul_triton

SCRIPT = Path(__file__).with_name("far_addresses.py")


def run(*names: str) -> dict[str, str]:
    """What each check found; one that ended the process says how."""
    folders = os.pathsep.join(map(str, (SCRIPT.parents[2], SCRIPT.parents[1])))
    command = [sys.executable, str(SCRIPT), *names]
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": folders}, capture_output=True, text=True, timeout=300, check=False
    )
    found = dict(line.split(" ", 1) for line in ended.stdout.splitlines())
    missing = [name for name in names if name not in found]
    return found | dict.fromkeys(missing, f"ended with {ended.returncode}: {ended.stderr[-2000:]}")


@cache
def all_of_them() -> dict[str, str]:
    return run(*CHECKS)


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.xdist_group("far addresses")
def test_right_past_2_to_the_31(name: str) -> None:
    assert all_of_them()[name] == "right"


@pytest.mark.xdist_group("far addresses")
def test_an_offset_of_32_bits_is_caught(tmp_path: Path) -> None:
    narrow = variant(
        tmp_path, matmul_triton, ("a + ms.to(tl.int64)[:, None] * stride_am", "a + ms[:, None] * stride_am")
    )
    found = run(str(narrow.__file__))
    assert found[str(narrow.__file__)] != "right"
