"""`summary.md` from records that a test writes: ratios by hand, what failed, and files that are missing or torn."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from small_cases import matmul_case, session

from bench.gpu import NOISE, RECORDS, VARIANTS, Ending, Visit
from bench.gpu_summary import every_record, write_summary
from bench.record import Record, RecordWriter, Status
from bench.run import record_of


def a_record(provider: str, *times_us: float, status: Status = Status.OK, detail: str = "", **fields: Any) -> Record:
    record = record_of(matmul_case(name=provider), session(), status, detail, times_us=times_us)
    return replace(record, **fields)


def write(path: Path, *records: Record) -> None:
    with RecordWriter(path, "r1", session().environment) as writer:
        for record in records:
            writer.append(record)


def a_visit(tmp_path: Path) -> Visit:
    return Visit(directory=tmp_path, session=session(), end_s=time.monotonic())


def row(text: str, start: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_times_stand_beside_the_providers_and_ratios_are_of_medians(tmp_path: Path) -> None:
    """Triton's median is 2, torch's 3, flash attention's 5: the best other takes 1.5 times as long."""
    failed = a_record("torch_cudnn", status=Status.FAILED, detail="RuntimeError: no engine")
    triton, torch = a_record("triton", 1.0, 2.0, 9.0), a_record("torch", 3.0)
    write(tmp_path / RECORDS, triton, torch, a_record("torch_flash", 5.0), failed)
    hot = a_record("triton", 0.5, cache="hot", regime="burst")
    write(tmp_path / VARIANTS, hot)
    write(tmp_path / NOISE[0], a_record("triton", 2.0))
    write(tmp_path / NOISE[1], a_record("triton", 2.01))
    text = write_summary(a_visit(tmp_path))
    assert text == (tmp_path / "summary.md").read_text(encoding="utf-8")
    key = "matmul/float32/M=4,N=8,K=16"
    assert row(text, key) == [key, "2", "3", "5", "FAILED", "1.50"]
    otherwise, noise = text.partition("## The same cases otherwise")[2].partition("## Two fresh processes")[::2]
    assert row(otherwise, "matmul/triton/float32/M=4,N=8,K=16")[1:] == ["hot, burst, normal(0, 1)", "0.2500"]
    assert row(noise, "matmul/triton/float32/M=4,N=8,K=16")[1:] == ["1.0050"]
    assert "* FAILED: matmul/torch_cudnn/float32/M=4,N=8,K=16: RuntimeError: no engine" in text
    assert len(every_record(tmp_path)) == 7


def test_what_failed_and_what_was_left_out_is_told_beside_the_steps(tmp_path: Path) -> None:
    visit = a_visit(tmp_path)
    visit.endings = [
        Ending("tune", "configs", 98, 5.2, "failed", "exit code 2 | no such command"),
        Ending("hot", "", 1),
    ]
    wrong = {"case_id": "matmul/triton/x", "status": "INCORRECT", "detail": "out: max error 1 over 0.1"}
    visit.facts = {
        "correctness": [wrong, {"case_id": "matmul/torch/x", "status": "OK", "detail": ""}],
        "compile": {"failed": ["matmul/y: no room"]},
        "tune": {"printed": ["CONFIGS = {}"]},
    }
    visit.left_out = {"standard": [matmul_case(), matmul_case(name="other")]}
    text = write_summary(visit)
    assert row(text, "tune") == ["tune", "98", "5", "failed", "exit code 2 / no such command"]
    assert row(text, "hot")[3] == "runs"
    assert "* step tune: exit code 2 | no such command" in text
    assert "* INCORRECT: matmul/triton/x: out: max error 1 over 0.1" in text
    assert "* did not compile: matmul/y: no room" in text
    assert "matmul/torch/x" not in text
    assert "* standard: 2 of matmul, decode, float32" in text
    assert "```\nCONFIGS = {}\n```" in text


def test_a_visit_without_a_readable_file_has_a_summary(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_text('{"run": "torn', encoding="utf-8")
    text = write_summary(a_visit(tmp_path))
    assert text.startswith("# cpu, run r1")
    assert "## Against torch" not in text
    assert every_record(tmp_path) == []
