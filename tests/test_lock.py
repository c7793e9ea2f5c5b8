"""bench.lock: one run at a time on a device, whatever way the one before ended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from bench import cmd_run
from bench.__main__ import app
from bench.device import DeviceError
from bench.lock import device_lock
from bench.record import Environment

ROOT = Path(__file__).resolve().parent.parent
GPU, OTHER_GPU = (Environment(device_type="cuda", device_name="NVIDIA H100", uuid=f"GPU-{n}") for n in (1, 2))
CPU = Environment(device_name="EPYC")


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def lines() -> list[str]:
    return []


def test_a_second_run_on_the_same_device_is_refused_with_the_process_that_holds_it() -> None:
    for environment, name in ((GPU, "NVIDIA H100"), (CPU, "EPYC")):
        told = lines()
        with device_lock(environment, wait=False, tell=told.append):
            busy = re.escape(f"{name} is in use by another run, process {os.getpid()}: --wait waits for it")
            with pytest.raises(DeviceError, match=busy), device_lock(environment, wait=False, tell=told.append):
                raise KeyError("two on one device")
        with device_lock(environment, wait=False, tell=told.append):
            assert told == []


def test_two_gpus_and_the_cpu_do_not_meet() -> None:
    told = lines()
    with (
        device_lock(GPU, wait=False, tell=told.append),
        device_lock(OTHER_GPU, wait=False, tell=told.append),
        device_lock(CPU, wait=False, tell=told.append),
    ):
        assert told == []


def test_waiting_says_for_whom_and_begins_when_the_other_ends() -> None:
    told, order = lines(), lines()

    def second() -> None:
        with device_lock(GPU, wait=True, tell=told.append):
            order.append("second")

    thread = Thread(target=second)
    with device_lock(GPU, wait=False, tell=told.append):
        thread.start()
        while not told:
            thread.join(0.01)
        thread.join(0.05)
        order.append("first ends")
    thread.join(10)
    assert order == ["first ends", "second"]
    assert told == [f"NVIDIA H100 is in use by another run, process {os.getpid()}: waiting for it to end"]


def test_a_killed_run_holds_nothing() -> None:
    code = (
        "import os; from bench.lock import device_lock; from bench.record import Environment\n"
        "with device_lock(Environment(uuid='GPU-1'), wait=False, tell=print): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == -9
    with device_lock(GPU, wait=False, tell=print):
        pass


def test_where_no_lock_can_be_made_the_run_goes_on_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    told = lines()
    with device_lock(GPU, wait=False, tell=told.append):
        [line] = told
    assert line.startswith("no lock on NVIDIA H100, so another run may disturb this one: ")


def test_run_ends_with_3_on_a_device_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cmd_run, "environment", lambda device: CPU)
    with device_lock(CPU, wait=False, tell=print):
        arguments = ("run", "--suite", "smoke", "--no-peaks", "--device", "cpu", "-o", str(tmp_path / "out"))
        result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"process {os.getpid()}: --wait" in result.stderr
    assert not (tmp_path / "out").exists()
