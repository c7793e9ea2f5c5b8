"""`bench gpu` as a user starts it: the plan, no GPU, and the whole command on a fake H100, to its end and cut off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from small_cases import session
from typer.testing import CliRunner

from bench import cmd_gpu, ending
from bench.__main__ import app
from bench.lock import device_lock
from bench.record import Status, read_records

ROOT = Path(__file__).resolve().parent.parent
STEPS = [
    "environment", "compile", "peaks", "correctness", "tune", "standard", "hot", "sustained", "zeros", "noise",
    "analysis",
]  # fmt: skip
FAKE = "from fake_gpu import whole_machine\nwhole_machine.install()\n"
"""Read by Python itself at the start of each process."""
LIMIT_S = 400
"""Of a test, on a machine that is busy with others."""


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """`bench gpu` on the fake machine, its files in `directory`/out."""
    site = directory / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(FAKE, encoding="utf-8")
    paths = (site, ROOT / "tests", ROOT)
    return subprocess.Popen(
        [sys.executable, "-m", "bench", "gpu", "-o", str(directory / "out"), *arguments],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "XDG_RUNTIME_DIR": str(directory)}
        | {"TRITON_CACHE_DIR": str(directory / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def statuses(path: Path) -> set[Status]:
    return {record.status for record in read_records(path)}


def state(directory: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((directory / "gpu.json").read_text(encoding="utf-8"))
    return read


def test_the_plan_is_told_without_a_gpu_and_ends_within_its_budget() -> None:
    told = json.loads(CliRunner().invoke(app, ["gpu", "--dry-run", "--json"]).stdout)
    assert [step["step"] for step in told["steps"]] == STEPS
    assert told["budget_s"] == 480
    assert sum(step["expected_s"] for step in told["steps"]) == pytest.approx(told["expected_s"])
    assert told["expected_s"] < 480
    counts = {step["step"]: len(step["cases"]) for step in told["steps"]}
    assert [counts[name] for name in ("hot", "sustained", "zeros", "noise")] == [20, 4, 3, 12]
    text = CliRunner().invoke(app, ["gpu", "--dry-run", "--budget", "5m"]).stdout
    seconds = [int(line.split()[0]) for line in text.splitlines()]
    assert seconds[-1] < 300
    assert sum(seconds[:-1]) == pytest.approx(seconds[-1], abs=len(STEPS) / 2)


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "gpu", "-o", str(tmp_path / "out")],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "--device cuda" in done.stderr or "cannot be used" in done.stderr
    assert not (tmp_path / "out").exists()


def test_one_visit_at_a_time_and_none_beside_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused with exit code 3 before anything is written; while a visit is on, its own steps can lock the GPU."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(cmd_gpu, "choose_device", lambda asked: "cuda")
    monkeypatch.setattr(cmd_gpu, "new_session", lambda device, seconds, seed: session())
    monkeypatch.setattr(cmd_gpu, "end_on_signals", lambda: None)
    codes: list[int] = []

    def visit(name: str) -> int:
        return CliRunner().invoke(app, ["gpu", "-o", str(tmp_path / name)]).exit_code

    def steps(*given: object) -> None:
        with device_lock(session().environment, wait=False, tell=print):
            codes.append(visit("beside"))
        codes.append(visit("between"))

    monkeypatch.setattr(cmd_gpu, "visit_steps", steps)
    visit("first")
    assert codes == [3, 3]
    with device_lock(session().environment, wait=False, tell=print):
        assert visit("during a run") == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "runtime"]


def test_a_signal_ends_a_visit_once_and_one_that_is_ignored_stays_so() -> None:
    """A second signal does not interrupt the summary; under nohup a dropped line ends nothing."""
    before = {number: signal.getsignal(number) for number in ending.ENDING}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        ending.end_on_signals()
        os.kill(os.getpid(), signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_visit_measures_everything_and_tells_it_in_few_files(tmp_path: Path) -> None:
    """Each step on the fake H100, through worker, records, pool and analysis; only tuning may be missing here."""
    process = start(tmp_path, "--budget", "480s")
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    out = tmp_path / "out"
    told = state(out)
    assert [step["name"] for step in told["steps"]] == STEPS, stderr
    wrong = {step["name"]: step["detail"] for step in told["steps"] if step["ended"] != "done"}
    assert set(wrong) <= {"tune"}, wrong
    assert process.returncode == (4 if wrong else 0)
    records = read_records(out / "records.jsonl")
    by_op = {op: [r for r in records if r.case["op"] == op] for op in dict.fromkeys(r.case["op"] for r in records)}
    assert {"peak_matmul", "peak_read", "peak_copy", "empty_launch", "matmul", "attention_decode"} == set(by_op)
    assert len(by_op["matmul"]) == 3 * 2
    assert len(by_op["attention_decode"]) == 3 * 4
    assert {r.status for r in by_op["matmul"] + by_op["attention_decode"]} == {Status.OK}
    assert {r.timer for r in by_op["matmul"]} == {"cuda_graph"}
    assert len(read_records(out / "variants.jsonl")) == 6 + 2 + 3
    first, second = (read_records(out / f"noise-{n}.jsonl") for n in (1, 2))
    assert [r.case["id"] for r in first] == [r.case["id"] for r in second]
    assert len({r.run for r in (*records, *first, *second)}) == 3
    assert {one["status"] for one in told["correctness"]} == {"OK"}
    assert told["environment"]["device_name"] == "NVIDIA H100 80GB HBM3"
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) <= 8
    assert max(path.stat().st_size for path in files) < 16_000_000
    assert (out / "summary.md").read_text(encoding="utf-8") in stdout
    for title in ("## Steps", "## Against torch", "## Two fresh processes", "## Analysis"):
        assert title in stdout
    assert (out / "roofline.png").stat().st_size > 10_000


def test_a_visit_that_is_ended_leaves_records_and_a_summary(tmp_path: Path) -> None:
    """SIGTERM in the middle of a step: what was measured is readable, the step is told as interrupted, exit 130."""
    process = start(tmp_path, "--budget", "480s")
    out, end = tmp_path / "out", time.monotonic() + LIMIT_S
    while not (out / "records.jsonl").exists() or (out / "records.jsonl").read_bytes().count(b"\n") < 4:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    stderr = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == 130, stderr
    assert statuses(out / "records.jsonl") >= {Status.OK}
    assert [(s["name"], s["ended"]) for s in state(out)["steps"]] == [
        ("environment", "done"), ("compile", "done"), ("peaks", "interrupted"),
    ]  # fmt: skip
    assert "peak_matmul/torch/bfloat16" in (out / "summary.md").read_text(encoding="utf-8")


def test_the_readme_tells_the_plan_as_it_is() -> None:
    """The seconds of each step in bench/README.md are those of the dry run."""
    steps = json.loads(CliRunner().invoke(app, ["gpu", "--dry-run", "--json"]).stdout)["steps"]
    rows = [line.split("|") for line in (ROOT / "bench" / "README.md").read_text(encoding="utf-8").splitlines()]
    written: dict[str, int] = {}
    for row in rows:
        names = row[1].strip().split(", ") if len(row) == 5 else []
        if set(names) <= set(STEPS) and names:
            seconds = [int(text) for text in row[3].replace("what is left, ", "").split(",")]
            written |= dict(zip(names, seconds, strict=True))
    assert written == {step["step"]: round(step["expected_s"]) for step in steps}
