"""A git repository whose `bench` runs nothing: it writes records of the times that stand in its `speeds.json`.

What `bench ab` does with two trees is tested on it in no time; `speeds.json` of a commit and of the working tree are
the truth.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FAKE_BENCH = '''"""Stands for `python -m bench run`: times from speeds.json, the order of all runs in runs.log."""

import json, os, re, sys, time
from pathlib import Path
from bench.record import Environment, Record, RecordWriter, Status

told = sys.argv[1:]
output = Path(told[told.index("-o") + 1])
match = told[told.index("--match") + 1] if "--match" in told else ""
speeds = json.loads(Path("speeds.json").read_text())
log = Path(speeds["log"])
with log.open("a") as file:
    file.write(json.dumps({"told": told, "output": str(output), "tree": os.getcwd()}) + "\\n")
number = len(log.read_text().splitlines())
if speeds.get("hang"):
    time.sleep(600)
if "error" in speeds:
    print(speeds["error"], file=sys.stderr)
    sys.exit(speeds["code"])
run = f"run{number}"
environment = Environment(
    device_type="cpu", device_name="fake", taken_at=f"2026-01-01T{number // 60:02d}:{number % 60:02d}:00+00:00"
)
with RecordWriter(output / "records.jsonl", run, environment) as writer:
    for m, of_case in speeds["cases"].items():
        case_id = f"matmul/torch/bfloat16/M={m},N=8,K=8"
        if not re.search(match, case_id):
            continue
        time_us = of_case["us"] * (of_case.get("first", 1) if "^(?:" not in match else 1)
        time_us *= 1 + of_case.get("noise", 0) * (-1) ** (number // 2)
        case = {"id": case_id, "op": "matmul", "provider": "torch", "phase": "decode", "dtype": "bfloat16"}
        kernel = {"kernels": [{"name": "k", "cubin_sha256": of_case["cubin"]}]} if "cubin" in of_case else {}
        writer.append(Record(
            run=run, case=case, status=Status.OK, times_us=(time_us,), timer="cpu_wall", cache="cold",
            regime="burst", launch="call", data={"distribution": "normal(0, 1)"}, kernel=kernel,
            source_sha256=speeds.get("source", ""),
        ))
'''


class Repository:
    """The repository, its log of runs, and what is written to its speeds."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "checkout"
        self._log = directory / "runs.log"
        (self.root / "bench").mkdir(parents=True)
        (self.root / "bench" / "__init__.py").write_text('"""Fake."""\n', encoding="utf-8")
        (self.root / "bench" / "__main__.py").write_text(FAKE_BENCH, encoding="utf-8")
        shutil.copy(ROOT / "bench" / "record.py", self.root / "bench" / "record.py")
        (self.root / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
        self.git("init", "-q")

    def git(self, *arguments: str) -> str:
        """What git prints; it fails the test when git fails."""
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *who, *arguments], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout

    def speeds(self, cases: dict[int, dict[str, Any]], **more: Any) -> None:
        """Sets the truth of the working tree: M -> us, and cubin, noise, or a factor `first` of all runs but reruns."""
        told = {"cases": cases, "log": str(self._log), **more}
        (self.root / "speeds.json").write_text(json.dumps(told), encoding="utf-8")

    def commit(self, message: str) -> None:
        """Commits the working tree."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)

    def runs(self) -> list[dict[str, Any]]:
        """What each run so far was told, in the order they were started."""
        lines = self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []
        return [json.loads(line) for line in lines]

    def order(self) -> list[str]:
        """`stage side` of each run: 'first baseline'."""
        made = [Path(run["output"]) for run in self.runs()]
        return [("rerun" if path.parents[1].name == "rerun" else "first") + f" {path.parent.name}" for path in made]

    def worktrees(self) -> int:
        """How many there are beside the checkout."""
        return len(self.git("worktree", "list").splitlines()) - 1
