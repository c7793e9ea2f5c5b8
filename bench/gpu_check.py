"""`python -m bench.gpu_check DEVICE SEED OP`: an op at its own small, ragged sizes, by every provider.

One JSON line a case as it ends, so that a process that dies has told what came before. The rule, and how a case ends,
are those of `bench check`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from bench.case import Case
from bench.isolated_check import check_one
from kernels.registry import op_named


def main(device: str, seed: int, name: str) -> None:
    """Checks the op's cases in order."""
    op = op_named(name)
    for workload in op.check_workloads:
        for provider in op.providers:
            print(json.dumps(asdict(check_one(Case(op, provider, workload), device, seed))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
