"""bench.run: what the record of a case that is OK holds, and when sampling stops."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu
from small_cases import matmul_case, session

from bench import timing
from bench.record import Environment, Status
from bench.run import case_sha256, run_case, source_sha256
from bench.stopping import StopRule
from bench.timing import take_samples
from kernels import matmul, matmul_decode
from kernels.inputs import DISTRIBUTION


@pytest.fixture(autouse=True)
def cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time is spent on warming up."""
    monkeypatch.setattr(timing, "warm", lambda *given: 0)


def test_a_right_case_is_ok_and_its_record_holds_what_was_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [3.3333333333333335, 1.1, 2.2]
    monkeypatch.setattr(timing, "take_samples", lambda clock, rule: (list(taken), "converged"))
    record = run_case(matmul_case(), session(seed=7))
    assert (record.status, record.detail, record.run) == (Status.OK, "", "r1")
    assert record.times_us == tuple(taken)
    assert record.stop_reason == "converged"
    assert (record.timer, record.launch, record.cache, record.regime) == ("cpu_wall", "call", "cold", "burst")
    assert record.case["id"] == "matmul/mine/float32/M=4,N=8,K=16"
    assert record.work == {"flops": 1024, "bytes": 4 * (64 + 128 + 32), "overhead_bytes": 0, "counting": 1}
    assert record.data == {"distribution": DISTRIBUTION, "seed": 7}
    assert record.kernel == {"copies": 24, "streamed_bytes": 512, "cache_bytes": 4096}
    assert set(record.error) == {"out_max_error", "out_max_limit", "out_rms_error", "out_rms_limit"}
    package = b"".join(file.read_bytes() for file in sorted(Path(matmul.__file__).parent.glob("*.py")))
    assert record.source_sha256 == hashlib.sha256(package).hexdigest()
    assert record.environment == session().environment
    assert set(record.phases_s) == {"inputs", "first_call", "check", "rotate", "warm_up", "measure", "recheck"}


def test_a_samples_launches_and_the_first_call_are_told_apart_from_its_times() -> None:
    """T21: a first call of 50 ms does not reach the median."""
    calls: list[float] = []

    def slow_first(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        if not calls:
            deadline = time.perf_counter() + 0.05
            while time.perf_counter() < deadline:
                pass
        calls.append(0)
        return a @ b

    record = run_case(matmul_case(slow_first), session())
    assert record.first_call_us is not None
    assert record.first_call_us >= 50_000 > max(record.times_us)
    assert record.launches_per_sample > 1
    assert len(calls) >= record.launches_per_sample * len(record.times_us)


def test_the_timed_launches_walk_over_all_copies_of_the_weight_and_one_activation() -> None:
    seen: dict[str, set[int]] = {"a": set(), "b": set()}

    def noting(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        seen["a"].add(a.data_ptr())
        seen["b"].add(b.data_ptr())
        return a @ b

    assert run_case(matmul_case(noting), session()).status is Status.OK
    # The recheck's fresh inputs may lie at an address of their own.
    assert len(seen["a"]) in (1, 2) and len(seen["b"]) in (24, 25)


@pytest.mark.parametrize(
    ("roles", "cache", "copies"),
    [({"b": "streamed"}, "cold", 24), ({"b": "resident"}, "resident", 1), ({"allow_tf32": "streamed"}, "resident", 1)],
)
def test_the_record_says_how_the_cache_was_kept(roles: dict[str, str], cache: str, copies: int) -> None:
    record = run_case(matmul_case(changes={"roles": roles}), session())
    assert (record.status, record.cache, record.kernel["copies"]) == (Status.OK, cache, copies)


def test_a_weight_too_small_to_rotate_is_flushed() -> None:
    """4 bytes of a cache of 4,096 would take 3,072 copies, of one of 8,192 more than 4,000."""
    small = replace(session(), environment=Environment(l2_bytes=8192))
    record = run_case(matmul_case(axes={"M": 1, "N": 1, "K": 1}), small)
    assert (record.status, record.cache, record.launches_per_sample) == (Status.OK, "flush", 1)


def test_the_seed_decides_the_inputs_and_the_recheck_has_the_next_one() -> None:
    drawn: dict[int, list[list[float]]] = {}
    for seed in (1, 1, 7):
        seen = drawn[seed] = []

        def keep(a: torch.Tensor, b: torch.Tensor, seen: list[list[float]] = seen, **_: object) -> torch.Tensor:
            values = a.flatten().tolist()
            if values not in seen:
                seen.append(values)
            return a @ b

        assert run_case(matmul_case(keep), session(seed)).status is Status.OK
        assert seen == [matmul_inputs(seed), matmul_inputs(seed + 1)]
    assert drawn[1] != drawn[7]


def matmul_inputs(seed: int) -> list[float]:
    """a of the small case, as drawn from a seed."""
    values: list[float] = matmul.make_inputs(matmul_case().workload, "cpu", seed)["a"].flatten().tolist()
    return values


def test_a_graph_that_is_refused_leaves_its_reason_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, 3.0)
    gpu.refuses_capture = True
    monkeypatch.setattr(timing, "make_clock", lambda device, *given: REAL_MAKE_CLOCK("cuda", *given))

    def provider(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
        gpu.launch(0)
        return a @ b

    record = run_case(matmul_case(provider), session())
    assert (record.status, record.timer, record.launch) == (Status.OK, "cuda_event", "stream")
    assert record.kernel["graph_refused"] == "RuntimeError: operation not permitted when stream is capturing"


REAL_MAKE_CLOCK = timing.make_clock


class Ticking:
    """A clock whose every sample lasts a while on the runner's own clock."""

    timer, launch, launches_per_sample = "fake", "call", 1

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times_us: Sequence[float], lasts_s: float = 1e-3) -> None:
        self.times_us, self.lasts_s, self.now_s, self.taken = times_us, lasts_s, 0.0, 0
        monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: self.now_s))

    def sample(self) -> float:
        self.now_s += self.lasts_s
        self.taken += 1
        return self.times_us[(self.taken - 1) % len(self.times_us)]

    def calibrate(self) -> None:
        raise KeyError("measuring does not calibrate")

    def doubts(self, median_us: float) -> dict[str, str]:
        raise KeyError("samples are not judged while they are taken")

    def facts(self) -> dict[str, float]:
        return {}


class CountingRule(StopRule):
    """Counts its judgements."""

    judged: list[int] = []  # noqa: RUF012 - one test reads it

    def reason_to_stop(self, times_us: Sequence[float], elapsed_s: float) -> str:
        self.judged.append(len(times_us))
        return super().reason_to_stop(times_us, elapsed_s)


def test_steady_samples_stop_when_converged_in_the_order_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    times, reason = take_samples(Ticking(monkeypatch, [10.0, 10.001, 9.999]), StopRule(budget_s=10.0))
    assert reason == "converged"
    assert 100 <= len(times) <= 112
    assert times[:4] == [10.0, 10.001, 9.999, 10.0]


def test_noisy_samples_stop_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    times, reason = take_samples(Ticking(monkeypatch, [1.0, 100.0]), StopRule(budget_s=0.52))
    assert reason == "budget"
    assert 520 <= len(times) <= 521


def test_one_sample_that_outlasts_the_budget_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert take_samples(Ticking(monkeypatch, [9e6], lasts_s=9.0), StopRule(budget_s=0.5)) == ([9e6], "budget")


@pytest.mark.parametrize("most", [1, 7, 100, 1234])
def test_never_more_samples_than_allowed(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    times, reason = take_samples(Ticking(monkeypatch, [1.0, 100.0]), StopRule(budget_s=1e9, max_samples=most))
    assert (len(times), reason) == (most, "max_samples")


def test_thousands_of_samples_are_judged_a_few_dozen_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging sorts them all: each time they have grown by a tenth is about log(5000) / log(1.1) = 90 times."""
    CountingRule.judged.clear()
    times, _ = take_samples(Ticking(monkeypatch, [1.0, 100.0]), CountingRule(budget_s=1e9, max_samples=5000))
    assert len(times) == 5000
    assert len(CountingRule.judged) <= 100
    gaps = [b / a for a, b in zip(CountingRule.judged[10:], CountingRule.judged[11:], strict=False)]
    assert max(gaps) <= 1.1


def test_the_source_hash_is_of_the_package_for_our_ops_and_of_the_file_for_a_users(tmp_path: Path) -> None:
    """Shared device code changes every op's hash; a user's op file changes only its own."""
    assert source_sha256(matmul.make_inputs) == source_sha256(matmul_decode.make_inputs)
    file = tmp_path / "their_op.py"
    file.write_text("def make_inputs(workload, device, seed):\n    return {}\n")
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    assert source_sha256(space["make_inputs"]) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_source_hash_is_of_the_provider_too(tmp_path: Path) -> None:
    """A provider in a file of its own for an op whose inputs are the suite's: its change must not go unseen."""
    file = tmp_path / "mine.py"
    space: dict[str, Any] = {}
    seen = []
    for text in ("def mine(a, b, **_):\n    return a @ b\n", "def mine(a, b, **_):\n    return b @ a\n"):
        file.write_text(text)
        exec(compile(text, str(file), "exec"), space)
        case = matmul_case(space["mine"])
        seen += [
            case_sha256(case),
            case_sha256(replace(case, op=replace(case.op, providers={"mine": partial(space["mine"])}))),
        ]
    assert seen[0] == seen[1] != seen[2] == seen[3]
    ours = source_sha256(matmul.make_inputs)
    assert ours not in seen
    assert case_sha256(matmul_case()) == case_sha256(matmul_case(torch.matmul)) == ours, "a built-in has no file"
