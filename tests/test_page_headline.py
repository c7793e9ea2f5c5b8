"""The sentences at the top of a page: true of what was measured, with their counts, whatever there is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic
from synthetic import classified

from analysis.page.headline import Headline, headline
from bench.record import Environment, Record, Status

Run = tuple[Environment, list[Record]]


def of(directory: Path, *runs: Run) -> Headline:
    points, _ = classified(directory, *runs)
    return headline(points, {records[0].run: environment for environment, records in runs})


def decode(run: str, m: int, share: float, **how: Any) -> Record:
    return synthetic.matmul(run, m, share=share, **how)


ROOFS = synthetic.roofs("r", {"bfloat16": 800.0}, 3000.0, 2.0)
OF_ROOFS = (800.0, 3000.0, 2.0)


def test_what_bounds_the_cases_and_how_near_they_are(tmp_path: Path) -> None:
    environment = replace(synthetic.H100, commit="0123456789abcdef", dirty=True)
    records = [*ROOFS, *(decode("r", m, share, device=OF_ROOFS) for m, share in ((1, 0.5), (2, 0.6), (4, 0.9)))]
    records += [decode("r", 8192, 0.8, device=OF_ROOFS)]
    told = of(tmp_path, (environment, records))
    assert (told.device, told.date) == ("NVIDIA H100 80GB HBM3", "2026-03-01")
    assert told.commit == "0123456789ab with changes"
    assert told.counts == {"memory-bound": 3, "compute-bound": 1}
    assert told.sentences[0] == (
        "3 of 4 cases (75 %) are memory-bound: matmul (3), at 60 % of attainable (median of 3)."
    )


def test_decode_against_prefill_and_the_largest_gaps(tmp_path: Path) -> None:
    records = [*ROOFS, decode("r", 1, 0.25, device=OF_ROOFS), decode("r", 8192, 0.8, device=OF_ROOFS)]
    # M=1: 33,570,816 B / 3000 GB/s + 2 us = 13.19 us attainable, 52.76 measured
    # M=8192: 2 * 8192 * 4096^2 / 800 TFLOP/s + 2 us = 345.6 us attainable, 432 measured: 86.4 to gain
    assert of(tmp_path, (synthetic.H100, records)).sentences[1] == (
        "1 of 1 decode case is memory-bound, 1 of 1 prefill case is compute-bound; the most to gain is 86.4 us at "
        "matmul/triton/bfloat16/M=8192,N=4096,K=4096: 432 us where 345.6 us is attainable, 1.25x; "
        "the largest factor, 4x, at matmul/triton/bfloat16/M=1,N=4096,K=4096."
    )


def test_who_is_faster_over_how_many_cases(tmp_path: Path) -> None:
    # 40/20 and 80/10: 2 and 8, geometric mean 4; M = 4 has torch alone
    us = {("torch", 1): 40.0, ("triton", 1): 20.0, ("torch", 2): 80.0, ("triton", 2): 11.0, ("torch", 4): 40.0}
    records = [synthetic.matmul("r", m, provider=name, times_us=(time,)) for (name, m), time in us.items()]
    told = of(tmp_path, (synthetic.H100, records)).sentences[2]
    # sqrt(2 * 80 / 11) = 3.814
    assert (
        told == "triton is 3.81x as fast as torch (geometric mean of 2 cases); none of 5 cases is invalid or flagged."
    )
    slower = [synthetic.matmul("r", 1, provider=n, times_us=(t,)) for n, t in (("torch", 20.0), ("triton", 40.0))]
    assert (
        of(tmp_path / "b", (synthetic.H100, slower)).sentences[2].startswith("torch is 2x as fast as triton (one case)")
    )
    alike = [synthetic.matmul("r", 1, provider=n, times_us=(t,)) for n, t in (("torch", 20.0), ("triton", 20.05))]
    assert of(tmp_path / "c", (synthetic.H100, alike)).sentences[2].startswith("torch and triton are equally fast (one")


def test_one_provider_or_no_common_case_is_no_comparison(tmp_path: Path) -> None:
    one, two = decode("r", 1, 0.5), decode("r", 2, 0.5, provider="torch")
    assert of(tmp_path, (synthetic.H100, [one])).sentences[2].startswith("Only provider triton was measured")
    told = of(tmp_path / "b", (synthetic.H100, [one, two])).sentences[2]
    assert told.startswith("torch and triton share no case that can be compared")


def test_doubts_are_counted(tmp_path: Path) -> None:
    impossible = synthetic.matmul("r", 4096, times_us=(1.0,))
    records = [
        impossible,
        decode("r", 1, 0.5, flags=("throttled",)),
        decode("r", 2, 0.5, flags=("throttled", "contended")),
    ]
    told = of(tmp_path, (synthetic.H100, records))
    assert told.counts == {"invalid": 1, "memory-bound": 2}
    assert told.sentences[2].endswith("; of 3 cases 1 invalid, 2 flagged throttled and 1 flagged contended.")


def test_nothing_measured_has_one_sentence(tmp_path: Path) -> None:
    skipped = synthetic.matmul("r", 1, status=Status.SKIPPED, detail="no GPU")
    told = of(tmp_path, (synthetic.CPU, [skipped]))
    assert told.sentences == ("No case was measured: there is nothing to place under a roof.",)
    assert told.counts == {} and told.device == "Example CPU 9000 (2 threads)" and told.date == "2026-03-01"
    assert told.commit == "commit not recorded"


def test_all_overhead_bound(tmp_path: Path) -> None:
    slow = synthetic.roofs("r", {"bfloat16": 800.0}, 3000.0, 50.0)
    records = [*slow, *(decode("r", m, 0.5, device=(800.0, 3000.0, 50.0)) for m in (1, 2))]
    told = of(tmp_path, (synthetic.H100, records)).sentences
    assert told[0] == (
        "All 2 cases are overhead-bound: matmul (2), at 50 % of attainable (median of 2); none is memory-bound."
    )
    assert told[1].startswith("2 of 2 decode cases are overhead-bound; the most to gain is")


@pytest.mark.parametrize("environment", [synthetic.UNKNOWN, synthetic.CPU], ids=["unknown GPU", "CPU without roofs"])
def test_no_roof_no_share(tmp_path: Path, environment: Environment) -> None:
    told = of(tmp_path, (environment, [decode("r", 1, 0.5), decode("r", 2, 0.5)]))
    assert told.sentences[0] == "No roof applies to 2 cases: 2 without roofs."
    assert told.sentences[1] == "2 of 2 decode cases are without roofs; no gap to a roof can be told."
    assert told.counts == {"no roofs": 2}


def test_a_device_without_a_name_says_whose_roofs(tmp_path: Path) -> None:
    told = of(tmp_path, (synthetic.NAMELESS, [decode("r", 1, 0.5)]))
    assert told.device == "no device named" and "where the records name no device" in told.sentences[0]


def test_at_the_roof_there_is_no_gap(tmp_path: Path) -> None:
    records = [*ROOFS, decode("r", 1, 1.0, device=OF_ROOFS)]
    assert of(tmp_path, (synthetic.H100, records)).sentences[1].endswith("; no case is over 2% behind its roof.")


def test_published_figures_say_whose(tmp_path: Path) -> None:
    note = "published by somebody 1.0; clocks are not recorded there"
    environment = replace(synthetic.H100, packages={"vllm": "0.24.0"}, note=note, taken_at=None)
    told = of(tmp_path, (environment, [decode("r", 1, 0.5, timer="published")]))
    assert (told.date, told.commit) == ("date not recorded", "published by somebody 1.0")
    assert "The one case (published figures of vllm 0.24.0, not measured here) is memory-bound" in told.sentences[0]


def test_some_published_among_measured_are_counted(tmp_path: Path) -> None:
    environment = replace(synthetic.H100, packages={"vllm": "0.24.0"}, note="published by somebody")
    theirs = decode("p", 1, 0.5, timer="published", provider="vllm")
    told = of(tmp_path, (environment, [theirs]), (synthetic.H100, [decode("r", 1, 0.5), decode("r", 2, 0.5)]))
    assert told.sentences[0].startswith("All 3 cases (1 of them published figures of vllm 0.24.0) are memory-bound")
    # ways of measuring share no median
    assert "(median of 2; timer cuda_graph, inputs normal(0, 1))" in told.sentences[0]


def test_two_devices_share_no_median(tmp_path: Path) -> None:
    """P08."""
    told = of(
        tmp_path,
        (synthetic.H100, [decode("r", 1, 0.5)]),
        (synthetic.H200, [decode("s", 1, 0.8, device=(989, 4800, 0))]),
    )
    assert told.device == "NVIDIA H100 80GB HBM3 and NVIDIA H200" and told.date == "2026-03-01 to 2026-03-02"
    assert "at 50 % of attainable (median of 1; NVIDIA H100 80GB HBM3) and 80 % of attainable" in told.sentences[0]
    assert "on NVIDIA H100 80GB HBM3:" in told.sentences[1]


def test_a_case_in_two_runs_counts_once_as_the_later_has_it(tmp_path: Path) -> None:
    told = of(tmp_path, (synthetic.H100, [decode("r", 1, 0.5)]), (synthetic.H100, [decode("s", 1, 0.8)]))
    assert told.counts == {"memory-bound": 1}
    assert "80 % of attainable (median of 1) (1 older time of these cases left out)" in told.sentences[0]


def test_roofs_of_another_run_are_no_run_of_the_page(tmp_path: Path) -> None:
    points, _ = classified(tmp_path, (synthetic.H100, [decode("r", 1, 0.5)]))
    older = replace(synthetic.H100, taken_at="2020-01-01T00:00:00+00:00")
    assert headline(points, {"old": older, "r": synthetic.H100}).date == "2026-03-01"
