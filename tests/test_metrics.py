"""Rates: decimal units, microseconds, and no rate where there is no usable time.

Ids like A10 in docstrings name the known accounting mistake that a test guards against.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import metrics

G = 1e9


def column(*values: float) -> pd.Series[float]:
    return pd.Series(values, dtype="float64")


def check_terabytes() -> None:
    """A10: 3.35e12 bytes in 1 s are 3350 GB/s (3119.9 would be GiB/s)."""
    assert metrics.gb_per_s(column(3.35e12), column(1e6)).tolist() == pytest.approx([3350.0])


def check_milliseconds() -> None:
    """T13: 67,174,400 bytes in 0.05 ms are 1343.5 GB/s; milliseconds taken for seconds would say 1.34."""
    assert metrics.gb_per_s(column(67_174_400), column(50.0)).tolist() == pytest.approx([1343.488])


def check_tera() -> None:
    """A20: 989.4e12 FLOPs in 1 s are 989.4 TFLOP/s, not 0.989."""
    assert metrics.tflops_per_s(column(989.4e12), column(1e6)).tolist() == pytest.approx([989.4])


CHECKS = [check_terabytes, check_milliseconds, check_tera]
FAULTS: list[tuple[str, Callable[..., object], Callable[[], None]]] = [
    ("gb_per_s", lambda num_bytes, time_us: num_bytes / time_us * 1e6 / 2**30, check_terabytes),
    ("gb_per_s", lambda num_bytes, time_us: num_bytes / time_us / 1e6, check_milliseconds),
    ("tflops_per_s", lambda flops, time_us: flops / time_us * 1e6 / 2**40, check_tera),
    ("tflops_per_s", lambda flops, time_us: flops / time_us / 1e9, check_tera),
]


@pytest.mark.parametrize("check", CHECKS)
def test_rate_is_in_decimal_units(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize(("name", "wrong", "check"), FAULTS)
def test_unit_check_catches_a_wrong_unit(
    name: str, wrong: Callable[..., object], check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, name, wrong)
    with pytest.raises(AssertionError):
        check()


@settings(max_examples=30, deadline=None)
@given(gigabytes=st.floats(0.001, 1000), milliseconds=st.floats(0.001, 1000))
def test_one_gigabyte_in_one_millisecond_is_a_thousand_gigabytes_a_second(
    gigabytes: float, milliseconds: float
) -> None:
    rate = metrics.gb_per_s(column(gigabytes * G), column(milliseconds * 1e3)).iloc[0]
    assert rate == pytest.approx(1000 * gigabytes / milliseconds)


def frame(*rows: tuple[float, float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["flops", "bytes", "time_us"], dtype="float64")


def test_rates_and_intensity_go_beside_the_work_they_come_from() -> None:
    """2^34 x 8 FLOPs and 96 MiB in 200 us, by hand: 687.2 TFLOP/s, 503.3 GB/s, 1365.3 FLOP/byte."""
    given = frame((8 * 2**34, 96 * 2**20, 200.0))
    row = metrics.with_rates(given).iloc[0]
    assert row["tflops_per_s"] == pytest.approx(687.195, rel=1e-5)
    assert row["gb_per_s"] == pytest.approx(503.316, rel=1e-5)
    assert row["intensity_flops_per_byte"] == pytest.approx(1365.333, rel=1e-5)
    assert list(given.columns) == ["flops", "bytes", "time_us"], "the frame given is left as it was"


@pytest.mark.parametrize("time_us", [0.0, -1.0, float("nan")])
def test_no_usable_time_gives_no_rate(time_us: float) -> None:
    row = metrics.with_rates(frame((1e9, 1e6, time_us), (1e9, 1e6, 1.0)))
    assert row["tflops_per_s"].isna().tolist() == row["gb_per_s"].isna().tolist() == [True, False]
    assert row["intensity_flops_per_byte"].tolist() == [1000.0, 1000.0], "intensity needs no time"


def test_no_bytes_give_no_intensity() -> None:
    assert metrics.with_rates(frame((1e9, 0.0, 1.0)))["intensity_flops_per_byte"].isna().all()
