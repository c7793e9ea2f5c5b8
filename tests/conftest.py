"""What every process of tests needs: device locks of its own, and the interpreter's tests in processes of theirs.

Locks of another process of tests, or of a run beside them, are not ours to wait for. The interpreter's tests need
kernels that were decorated under TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
import tempfile

import pytest

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreter/test_*.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--perf-run`: what the performance gate (tests/perf) asks `bench run` for."""
    parser.addoption(
        "--perf-run", default="--suite quick --device cuda", help="Arguments of `bench run`, as the baseline's run had."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before anything takes a lock; processes that tests start inherit it."""
    locks = tempfile.TemporaryDirectory(prefix="locks-")
    os.environ["XDG_RUNTIME_DIR"] = locks.name
    config.add_cleanup(locks.cleanup)
