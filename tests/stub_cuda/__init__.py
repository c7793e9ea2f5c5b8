"""A libcuda that runs nothing and enforces the driver's rules, and Triton's own driver run against it."""

from __future__ import annotations

from stub_cuda.driver import TRITONS, ChildError, problems, run_cases, run_in_stub

__all__ = ["TRITONS", "ChildError", "problems", "run_cases", "run_in_stub"]
