"""Triton's cache of compiled kernels: somewhere that can be written, for this process and those that it starts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

VARIABLE = "TRITON_CACHE_DIR"


def ensure_writable(tell: Callable[[str], None]) -> None:
    """Has kernels cached in a new temporary directory where the usual one belongs to somebody else, or cannot be made.

    Args:
        tell: gets the line that says so; nothing where the usual one will do.
    """
    usual = Path(os.environ.get(VARIABLE) or Path(os.environ.get("TRITON_HOME") or "~", ".triton", "cache"))
    try:
        usual = usual.expanduser()
        usual.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=usual):
            return
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="triton-cache-")
        tell(
            f"Triton cannot cache kernels in {usual} ({error}): {os.environ[VARIABLE]} for now; {VARIABLE} chooses one"
        )
