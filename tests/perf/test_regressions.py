"""The performance gate of a GPU machine: three processes of this checkout against the newest kept baseline.

Run it by name (`pytest -m perf tests/perf`): it measures for minutes and needs the device to itself. Baselines lie
under `reports/baselines/<device>/`; without one that can be compared the gate fails, since nothing was guarded.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PROCESSES = 3
"""From three on an interval decides."""
RAN = (0, 4)
"""Exit codes of a run that left records: 4 has some case that failed, which the comparison calls INVALID."""


def _command(root: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.perf
def test_no_case_got_slower(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """No case is SLOW or INVALID against the newest baseline that can be compared."""
    root, asked = request.config.rootpath, shlex.split(request.config.getoption("--perf-run"))
    for number in range(PROCESSES):
        run = _command(root, "bench", "run", *asked, "--no-peaks", "-o", tmp_path / str(number))
        assert run.returncode in RAN, f"bench run {shlex.join(asked)}: exit code {run.returncode}\n{run.stderr}"
    compared = _command(root, "analysis", "compare", "--baseline", "auto", tmp_path, "--json")
    assert compared.stdout, f"exit code {compared.returncode}: {compared.stderr}"
    cases = json.loads(compared.stdout)["cases"]
    worse = [f"{c['verdict']} {c['case_id']}: {c['reason']}" for c in cases if c["verdict"] in ("SLOW", "INVALID")]
    assert compared.returncode == 0, "\n".join([compared.stderr, *worse])
