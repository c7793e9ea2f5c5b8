"""These tests need kernels that were decorated under TRITON_INTERPRET=1, so they have a pytest process of their own."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
