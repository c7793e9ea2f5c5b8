"""The plan of `bench gpu`: seconds that add up, sentinels by one rule, records that stay under the limit of a file."""

from __future__ import annotations

import pytest

from bench.gpu_plan import END_S, LEAST_SHARE, PROVIDERS, SENTINELS, Step, plan, sentinels, standard_cases, stop_rule
from bench.plan import telling_first
from bench.record import Record, Status

FILE_LIMIT_BYTES = 16_000_000


def by_name(steps: list[Step]) -> dict[str, Step]:
    return {step.name: step for step in steps}


@pytest.mark.parametrize("budget_s", [60, 300, 480, 900, 3600])
def test_the_steps_and_what_is_kept_back_are_the_budget(budget_s: float) -> None:
    steps = plan(budget_s)
    standard = by_name(steps)["standard"].expected_s
    assert budget_s - END_S - 1e-6 <= sum(step.expected_s for step in steps) < budget_s
    assert min(step.expected_s for step in steps) > 0
    assert standard >= LEAST_SHARE * budget_s - 1e-6


def test_more_time_goes_to_the_suite_and_less_is_taken_from_all_alike() -> None:
    short, usual, long = (by_name(plan(seconds)) for seconds in (240, 480, 1000))
    assert long["standard"].expected_s - usual["standard"].expected_s == pytest.approx(520)
    assert usual["tune"].expected_s == long["tune"].expected_s == pytest.approx(8 + 90)
    others = [name for name in usual if name != "standard"]
    shares = [short[name].expected_s / usual[name].expected_s for name in others]
    assert shares == pytest.approx([shares[0]] * len(shares))
    assert shares[0] < 1


def test_sentinels_are_the_first_triton_cases_of_the_sweep_and_each_list_begins_the_longer_one() -> None:
    steps, cases = by_name(plan(480)), standard_cases()
    assert {name: len(steps[name].cases) for name in SENTINELS} == {"hot": 20, "sustained": 4, "zeros": 3, "noise": 12}
    hot = steps["hot"].cases
    for name, count in SENTINELS.items():
        assert steps[name].cases == hot[:count]
    swept = [case for case in telling_first(cases) if case.provider == "triton"]
    assert list(hot) == swept[:20] == sentinels(cases, 20)
    assert len({case.op.name for case in steps["sustained"].cases}) == 4
    assert {case.provider for case in cases} == set(PROVIDERS)


@pytest.mark.parametrize("budget_s", [480, 3600])
def test_the_fullest_records_of_the_longest_visit_stay_under_the_limit_of_a_file(budget_s: float) -> None:
    """Every case measured, with as many samples of as many digits as the rule lets it take, and 4 kB of facts."""
    steps = plan(budget_s)
    rule = stop_rule(steps)
    longest = 0.1 + 0.2  # 0.30000000000000004: as long as a float's text gets below 1e16
    cases = [case for step in steps if step.name in ("peaks", "standard") for case in step.cases]
    widest = max(cases, key=lambda case: len(case.id))
    record = Record(
        run="20261202T043354Z-cuda-1a2b",
        case=widest.to_json(),
        status=Status.OK,
        times_us=(longest,) * rule.max_samples,
        kernel={"facts": "x" * 4000},
    )
    assert len(cases) * (len(record.to_json()) + 1) < FILE_LIMIT_BYTES
    assert rule.max_samples >= 300
