"""One run at a time on a device: a lock that the system lets go of when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bench.device import DeviceError
from bench.record import Environment


@contextmanager
def device_lock(environment: Environment, *, wait: bool, tell: Callable[[str], None]) -> Iterator[None]:
    """Holds this device for this process, or says that nothing can: a run does not fail for want of a lock's file.

    Args:
        environment: says which device; a GPU by its UUID, the CPU as one.
        wait: for another run on it to end, instead of raising.
        tell: gets the line that says what is waited for, or why there is no lock.

    Raises:
        DeviceError: another run is on it and `wait` is false.
    """
    name = environment.uuid or f"{environment.device_type}-{platform.node()}"
    directory = Path(os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    try:
        (directory / "roofmark").mkdir(parents=True, exist_ok=True)
        file = (directory / "roofmark" / f"{name}.lock").open("a+", encoding="utf-8")
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        tell(f"no lock on {environment.device_name or name}, so another run may disturb this one: {error}")
        yield
        return
    with file:
        _take(file, environment.device_name or name, wait, tell)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _take(file: IO[str], device: str, wait: bool, tell: Callable[[str], None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        file.seek(0)
        busy = f"{device} is in use by another run, process {file.read().strip() or '?'}"
    if not wait:
        raise DeviceError(f"{busy}: --wait waits for it, and CUDA_VISIBLE_DEVICES chooses another GPU of several")
    tell(f"{busy}: waiting for it to end")
    fcntl.flock(file, fcntl.LOCK_EX)
