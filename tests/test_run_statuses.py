"""bench.run: every way a case can end but well, each a record with its reason."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_cases import Provider, ended, matmul_case, raising, session

from bench import run as runner
from bench import timing
from bench.case import Case
from bench.record import RecordWriter, Status, read_records
from bench.run import HEADROOM, free_bytes, run_case
from kernels import matmul, matmul_decode
from kernels.optional import optional
from kernels.spec import UnsupportedError, Workload


@pytest.fixture(autouse=True)
def cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is spent on warming up."""
    monkeypatch.setattr(timing, "warm", lambda *given: 0)


def test_a_cuda_only_provider_is_skipped_on_a_cpu_with_its_reason() -> None:
    reason = "interpreted kernels have no speed"
    case = matmul_case(raising(KeyError("it ran")), name="triton", changes={"cuda_only": {"triton": reason}})
    assert ended(run_case(case, session())) == (Status.SKIPPED, reason)


def test_a_shape_that_cannot_fit_is_skipped_with_needed_and_free_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """E15: a [1, 16384] and b [16384, 16384] of float32 on a device with 1 GB; nothing of it is allocated."""
    monkeypatch.setattr(runner, "free_bytes", lambda device: 10**9)
    case = matmul_case(raising(KeyError("it ran")), axes={"M": 1, "N": 16384, "K": 16384})
    needed = 4 * 16384 + 4 * 16384**2
    assert ended(run_case(case, session())) == (
        Status.SKIPPED,
        f"needs {needed:,} bytes, 1,000,000,000 are free on this device",
    )


def test_copies_count_towards_what_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 copies of 512 bytes and an activation of 256 need 12,544; 90 % of the free may be taken."""
    for free, status in ((13_937, Status.SKIPPED), (13_938, Status.OK)):
        monkeypatch.setattr(runner, "free_bytes", lambda device, free=free: free)
        assert run_case(matmul_case(), session()).status is status
    assert 13_937 * HEADROOM < 12_544 <= 13_938 * HEADROOM


def test_a_shape_beyond_this_machine_is_skipped_for_real() -> None:
    case = matmul_case(raising(KeyError("it ran")), axes={"M": 1, "N": 2**22, "K": 2**20})
    status, detail = ended(run_case(case, session()))
    assert status is Status.SKIPPED
    assert detail.startswith("needs 17,592,190,238,720 bytes, ")


def test_an_unknown_amount_of_free_memory_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "free_bytes", lambda device: None)
    assert run_case(matmul_case(), session()).status is Status.OK


def test_memory_that_torch_only_caches_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the driver it is taken: after one large case all others would be skipped."""
    free = [1]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(80))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free[-1], 80))
    assert free_bytes("cuda") == 80


def test_what_the_op_says_is_unsupported_does_not_run() -> None:
    workload = Workload(axes={"M": 65, "N": 8, "K": 8}, dtype="float32", phase="decode")
    op = replace(matmul_decode.OP, providers={"torch": raising(KeyError("it ran"))})
    status, detail = ended(run_case(Case(op, "torch", workload), session()))
    assert status is Status.UNSUPPORTED
    assert "M=65: matmul_decode is for 1 to 64 rows; use matmul" in detail


def test_what_a_provider_refuses_is_unsupported() -> None:
    status, detail = ended(run_case(matmul_case(dtype="tfloat32"), session()))
    assert (status, detail) == (
        Status.UNSUPPORTED,
        "tfloat32 is a mode of CUDA tensor cores; on cpu use float32",
    )
    assert ended(run_case(matmul_case(raising(UnsupportedError())), session()))[0] is Status.UNSUPPORTED


@pytest.mark.parametrize(
    "line", ["raise OSError('libcudart.so.12: cannot open')", "raise AttributeError('x')", "1 / 0", "import nothing_of"]
)
def test_a_package_broken_at_import_is_unsupported_whatever_it_raises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    module = f"broken_{hashlib.md5(line.encode()).hexdigest()}"
    (tmp_path / f"{module}.py").write_text(line)
    monkeypatch.syspath_prepend(str(tmp_path))

    def provider(**inputs: Any) -> torch.Tensor:
        out: torch.Tensor = optional(module, "broken-package").product(**inputs)
        return out

    status, detail = ended(run_case(matmul_case(provider), session()))
    assert status is Status.UNSUPPORTED
    assert detail.startswith("broken-package cannot be loaded (")
    assert detail.endswith("pip install broken-package")
    assert module not in sys.modules


def test_a_wrong_output_is_incorrect_with_its_figures_and_without_times() -> None:
    record = run_case(matmul_case(lambda a, b, **_: torch.zeros(4, 8)), session())
    status, detail = ended(record)
    assert status is Status.INCORRECT
    assert detail.startswith("out: max error ")
    assert record.error["out_max_error"] > record.error["out_max_limit"] > 0
    assert (record.timer, record.first_call_us) == ("", None)


def test_an_infinite_yardstick_leaves_a_record_that_can_be_written(tmp_path: Path) -> None:
    """float16 overflows at 65,504 where float64 does not: the limits would be infinite, which JSON cannot hold."""

    def large(workload: Workload, device: Any, seed: int) -> dict[str, Any]:
        return {name: torch.full((4, 4), 300.0, dtype=torch.float16, device=device) for name in "ab"}

    record = run_case(matmul_case(dtype="float16", changes={"make_inputs": large}), session())
    assert ended(record)[0] is Status.INCORRECT
    with RecordWriter(tmp_path / "records.jsonl", "r1", session().environment) as writer:
        writer.append(record)
    assert read_records(tmp_path / "records.jsonl") == [record]


def test_memory_that_runs_out_is_told_as_that() -> None:
    for error, told in (
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore"), "Tried to allocate 20.00"),
        (MemoryError(), "MemoryError: no message"),
        (RuntimeError("CUDA error: out of memory"), "RuntimeError: CUDA error: out of memory"),
    ):
        status, detail = ended(run_case(matmul_case(raising(error)), session()))
        assert (status, told in detail, "\n" in detail) == (Status.OUT_OF_MEMORY, True, False)
    case = matmul_case(lambda a, b, **_: torch.empty(2**60, dtype=torch.int8))
    assert ended(run_case(case, session()))[0] is Status.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (RuntimeError("an illegal memory access\nwas encountered"), "RuntimeError: an illegal memory access"),
        (KeyError("K"), "KeyError: 'K'"),
        (AssertionError(), "AssertionError: no message"),
        (ValueError("wanted 3, got 4"), "ValueError: wanted 3, got 4"),
    ],
)
def test_whatever_a_provider_raises_is_a_failed_record_with_its_first_line(error: Exception, detail: str) -> None:
    assert ended(run_case(matmul_case(raising(error)), session())) == (Status.FAILED, detail)


@pytest.mark.parametrize("part", ["make_inputs", "reference", "eager", "work", "unsupported", "sample", "facts"])
def test_whatever_a_part_of_the_op_raises_is_a_failed_record(part: str, tmp_path: Path) -> None:
    def broken(*given: Any, **inputs: Any) -> Any:
        raise KeyError(part)

    record = run_case(matmul_case(changes={part: broken}), session())
    assert ended(record) == (Status.FAILED, f"KeyError: '{part}'")
    assert json.loads(record.to_json())["status"] == "FAILED"


def test_a_provider_that_fails_only_while_timed_has_no_times() -> None:
    calls: list[int] = []

    def tiring(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 10:
            raise RuntimeError("device lost")
        return a @ b

    assert ended(run_case(matmul_case(tiring), session())) == (Status.FAILED, "RuntimeError: device lost")


def test_the_users_interrupt_is_no_record() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_case(matmul_case(raising(KeyboardInterrupt())), session())


def test_a_sweep_goes_on_after_every_kind_of_failure() -> None:
    providers: list[Provider] = [
        raising(RuntimeError("boom")),
        raising(MemoryError()),
        raising(UnsupportedError("no")),
        lambda a, b, **_: torch.zeros(4, 8),
        matmul.matmul_torch,
    ]
    statuses = [run_case(matmul_case(provider), session()).status for provider in providers]
    assert statuses == [Status.FAILED, Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.INCORRECT, Status.OK]


def test_an_output_remembered_from_the_first_call_is_incorrect_after_timing() -> None:
    """T19: memoised on nothing at all, it is right until the inputs change; then it has no times."""
    kept: list[torch.Tensor] = []

    def remembering(a: torch.Tensor, b: torch.Tensor, **how: object) -> torch.Tensor:
        kept[:] = kept or [a @ b]
        return kept[0].clone()

    record = run_case(matmul_case(remembering), session())
    assert (record.status, record.times_us) == (Status.INCORRECT, ())
    assert record.detail.startswith("right at first, but with fresh inputs after timing: out: max error")
