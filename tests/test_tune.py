"""bench.tune: of a bucket's configurations the fastest right one wins, by more than noise, or the default stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from small_cases import session

from bench.case import Case
from bench.record import Record, Status
from bench.run import record_of
from bench.trial import Trial
from bench.tune import Bucket, Choice, beats, buckets, literals, table_file, tune_bucket
from kernels import attention_decode, attention_prefill, matmul, matmul_decode
from kernels.attention_variants import VARIANT_AXES
from kernels.registry import OPS
from kernels.spec import Op, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Launch parameters of a kernel that is only told of."""

    number: int
    stages: int = 2


DEFAULT, A, B, C, D = (Config(number=number) for number in range(5))
WORKLOAD = matmul.describe_axes({"M": 4, "N": 8, "K": 16}, "float32", ("test",))
SPILLS = Trial(Status.SKIPPED, "spills on sm_90: 12 loads")
FAILS = Trial(Status.FAILED, "does not compile: out of shared memory")
OK = Trial(Status.OK)
Ending = Sequence[float] | Status


def bucket_of(*configs: Config) -> Bucket:
    return Bucket(op=matmul.OP, key=("float32", 64), case=Case(matmul.OP, "triton", WORKLOAD), configs=configs)


def tuned(
    endings: dict[Config, list[Ending]], trials: Sequence[Trial] | None = None
) -> tuple[Choice, list[Record], list[Config]]:
    """The choice, the records kept, and the configurations run in order; each run of one takes its next ending."""
    bucket, ran, kept = bucket_of(*endings), [], list[Record]()

    def run(case: Case) -> Record:
        ran.append(case.config)
        ending = endings[case.config].pop(0)
        if isinstance(ending, Status):
            return record_of(case, session(), ending, "its process died of SIGSEGV")
        return record_of(case, session(), Status.OK, "", times_us=tuple(ending))

    choice = tune_bucket(bucket, trials or [OK] * len(endings), session(), run, kept.append)
    return choice, kept, ran


def steady(us: float, spread: float = 0.001) -> list[float]:
    """Forty samples whose extremes are `spread` of the median away."""
    return [us * (1 + spread * (n % 5 - 2) / 2) for n in range(40)]


def test_the_fastest_right_one_wins() -> None:
    endings: dict[Config, list[Ending]] = {
        DEFAULT: [steady(10), steady(10)],
        A: [steady(8)],
        B: [steady(7)],
        C: [Status.INCORRECT],
    }
    choice, kept, ran = tuned(endings)
    assert (choice.config, choice.default_us, choice.best_us) == (B, 10, 7)
    assert ran == [DEFAULT, A, B, C, DEFAULT] and [r.config["number"] for r in kept] == [0, 1, 2, 3, 0]
    assert kept[3].status is Status.INCORRECT and not kept[3].times_us


@pytest.mark.parametrize("ending", [Status.INCORRECT, Status.CRASHED, Status.TIMEOUT, Status.FAILED])
def test_whatever_a_configuration_does_the_others_are_measured(ending: Status) -> None:
    choice, kept, _ = tuned({DEFAULT: [steady(10), steady(10)], A: [ending], B: [steady(8)]})
    assert choice.config == B
    assert kept[1].status is ending and kept[1].config == asdict(A), "who died is told by the record"


def test_one_that_spills_or_does_not_compile_is_recorded_and_not_run() -> None:
    endings: dict[Config, list[Ending]] = {DEFAULT: [steady(10), steady(10)], A: [], B: [], C: [steady(9)]}
    choice, kept, ran = tuned(endings, [OK, SPILLS, FAILS, OK])
    assert ran == [DEFAULT, C, DEFAULT] and choice.config == C
    told = {record.config["number"]: (record.status, record.detail) for record in kept}
    assert told[1] == (Status.SKIPPED, "spills on sm_90: 12 loads")
    assert told[2] == (Status.FAILED, "does not compile: out of shared memory")


def test_at_most_four_are_measured_and_those_that_do_not_compile_take_no_place() -> None:
    def endings() -> dict[Config, list[Ending]]:
        slow: dict[Config, list[Ending]] = {config: [steady(20)] for config in (A, B, C)}
        return {DEFAULT: [steady(10), steady(10)], **slow, D: [steady(1)]}

    assert tuned(endings())[2] == [DEFAULT, A, B, C]
    choice, _, ran = tuned(endings(), [OK, OK, FAILS, OK, OK])
    assert ran == [DEFAULT, A, C, D, DEFAULT] and choice.config == D


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (steady(10), "within noise or 1 %"),
        (steady(9.95), "within noise or 1 %"),
        (steady(9.0, spread=0.3), "within noise or 1 %"),
        (steady(11), "within noise or 1 %"),
    ],
    ids=["tie", "half a percent", "noisy", "slower"],
)
def test_ties_noise_and_small_gains_keep_the_default(other: list[float], why: str) -> None:
    choice, _, ran = tuned({DEFAULT: [steady(10)], A: [other]})
    assert choice.config is None and why in choice.why and ran == [DEFAULT, A]


def test_a_default_that_was_only_slow_at_first_stays() -> None:
    """A GPU that warms up, or was throttled for a moment: what was measured first looks worse than it is."""
    choice, _, _ = tuned({DEFAULT: [steady(10), steady(8)], A: [steady(8)]})
    assert choice.config is None and "measured again" in choice.why


def test_a_default_that_is_wrong_or_cannot_run_gives_way() -> None:
    for ending in (Status.INCORRECT, Status.CRASHED):
        choice, _, _ = tuned({DEFAULT: [ending], A: [steady(50)], B: [steady(40)]})
        assert choice.config == B and choice.default_us is None and str(ending) in choice.why
    choice, _, _ = tuned({DEFAULT: [], A: [steady(50)]}, [FAILS, OK])
    assert choice.config == A and "not compiled" in choice.why


def test_a_default_that_spills_is_what_runs_today_and_must_be_beaten() -> None:
    choice, _, ran = tuned({DEFAULT: [steady(10)], A: [steady(10)]}, [SPILLS, OK])
    assert ran == [DEFAULT, A] and choice.config is None


def test_nothing_that_ran_chooses_nothing() -> None:
    choice, _, _ = tuned({DEFAULT: [Status.INCORRECT], A: [Status.TIMEOUT]})
    assert (choice.config, choice.why, choice.best_us) == (None, "no configuration ran", None)


def test_an_interval_must_lie_wholly_under_the_defaults_and_one_percent_of_the_median() -> None:
    """Six samples: the 95 % interval of the median is that from the first to the last."""

    def record(*times_us: float) -> Record:
        return record_of(bucket_of(DEFAULT).case, session(), Status.OK, "", times_us=times_us)

    default = record(100, 100, 100, 100, 100, 100)
    assert beats(record(98, 99, 99, 99, 99, 99.9), default)
    assert not beats(record(98, 99, 99, 99, 99, 100), default), "touches"
    assert not beats(record(99.1, 99.1, 99.1, 99.1, 99.1, 99.1), default), "0.9 %"


def test_literals_read_back_as_the_table() -> None:
    choice = Choice(bucket=bucket_of(DEFAULT, A), config=A, why="faster", default_us=10, best_us=8)
    other = replace(choice, bucket=replace(choice.bucket, key=("float32", 128)), config=B)
    stays = replace(choice, bucket=replace(choice.bucket, key=("float32", 256)), config=None)
    [(file, text)] = literals([choice, other, stays], "NVIDIA H100 80GB HBM3", "3.7.1")
    space: dict[str, Any] = {"Config": Config}
    exec(text, space)
    table = {("NVIDIA H100 80GB HBM3", "3.7.1"): {("float32", 64): A, ("float32", 128): B}}
    assert space["TUNED"] == table and file == __file__
    assert list(literals([stays], "x", "y")) == []


@pytest.mark.parametrize("op", [op for op in OPS if "triton" in op.providers], ids=lambda op: op.name)
def test_the_file_that_is_named_has_the_table(op: Op) -> None:
    for config in op.configs(op.check_workloads[0], 90)[:1]:
        source = Path(table_file(config)).read_text(encoding="utf-8")
        assert "\nTUNED: Table[Config] = {}" in source


# Buckets


def cases(op: Any, describe: Callable[[int], Workload], *sizes: int) -> list[Case]:
    return [Case(op, "triton", describe(size)) for size in sizes]


def test_the_middle_problem_stands_for_a_bucket() -> None:
    def describe(N: int) -> Workload:
        return matmul_decode.describe_axes({"M": 1, "N": N, "K": 64}, "bfloat16", ())

    [bucket] = buckets(cases(matmul_decode.OP, describe, 4096, 16, 64, 1024, 256), 90)
    assert bucket.key == ("bfloat16", 1) and bucket.case.workload.axes["N"] == 256
    assert bucket.configs == matmul_decode.OP.configs(bucket.case.workload, 90)
    assert [case.config for case in bucket.cases] == list(bucket.configs)


def filled(op: Op, size: int) -> dict[str, int]:
    """The op's axes, with one size for all that have no default, and no variants."""
    return {axis: default or (0 if axis in VARIANT_AXES else size) for axis, default in op.axes.items()}


def test_ops_take_turns_and_problems_without_a_choice_are_left_out() -> None:
    def rows(M: int) -> Workload:
        return matmul_decode.describe_axes({"M": M, "N": 64, "K": 64}, "bfloat16", ())

    def prefill(head_dim: int) -> Workload:
        axes = {**filled(attention_prefill.OP, 64), "head_dim": head_dim}
        return attention_prefill.describe_axes(axes, "bfloat16", ())

    def exact(kv_len: int) -> Workload:
        return attention_decode.describe_axes(filled(attention_decode.OP, kv_len), "float32", ())

    found = buckets(
        [
            *cases(matmul_decode.OP, rows, 1, 8, 64),
            *cases(attention_prefill.OP, prefill, 64, 128, 256),
            *cases(attention_decode.OP, exact, 32),
        ],
        90,
    )
    assert [(bucket.op.name, bucket.key[1]) for bucket in found] == [
        ("matmul_decode", 1), ("attention_prefill", 64), ("matmul_decode", 16), ("attention_prefill", 128),
        ("matmul_decode", 64), ("attention_prefill", 256),
    ], "float32 has one configuration"  # fmt: skip
