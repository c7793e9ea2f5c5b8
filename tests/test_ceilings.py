"""Tile and wave ceilings against figures worked by hand, and where they are told."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from analysis.ceilings import tile_ceiling, wave_ceiling
from analysis.frame import load
from analysis.roofline import points
from bench.record import Environment, Record, RecordWriter, Status


def one(value: float) -> pd.Series[float]:
    return pd.Series([float(value)])


@pytest.mark.parametrize(
    ("M", "N", "block_m", "block_n", "share"),
    [
        (1, 4096, 16, 64, 1 / 16),
        (16, 4096, 64, 64, 1 / 4),
        (4096, 4096, 128, 256, 1.0),
        (129, 128, 128, 128, 129 / 256),
    ],
)
def test_padding_of_edge_tiles(M: int, N: int, block_m: int, block_n: int, share: float) -> None:
    assert tile_ceiling(one(M), one(N), one(block_m), one(block_n))[0] == pytest.approx(share)


@pytest.mark.parametrize(
    ("tiles", "slots", "share"),
    # A100: 1792 x 1792 in 256x128 tiles is 98 of 108 slots, one row more 120; H100: 288 tiles on 132 slots.
    [(98, 108, 98 / 108), (120, 108, 120 / 216), (288, 132, 288 / 396), (132, 132, 1.0)],
)
def test_the_last_wave(tiles: int, slots: int, share: float) -> None:
    assert wave_ceiling(one(tiles), slots)[0] == pytest.approx(share)


def test_a_record_with_its_tile_is_told_its_ceilings_and_one_without_is_not(tmp_path: Path) -> None:
    """2304 x 2048 in 128x128 tiles: 18 x 16 = 288 tiles on 132 SMs, 0.73 of the slots, no padding."""
    environment = Environment(
        device_type="cuda", device_name="NVIDIA H100 80GB HBM3", compute_capability="9.0", sm_count=132
    )
    axes = {"M": 2304, "N": 2048, "K": 4096}
    with RecordWriter(tmp_path / "records.jsonl", "r", environment) as writer:
        for provider, config in (("triton", {"block_m": 128, "block_n": 128}), ("torch", {})):
            case = {"id": f"matmul/{provider}/x", "op": "matmul", "provider": provider, "phase": "prefill"}
            flops = 2 * 2304 * 2048 * 4096
            writer.append(
                Record(
                    run="r",
                    case=case | {"dtype": "bfloat16", "axes": axes},
                    status=Status.OK,
                    work={"flops": flops, "bytes": 45_088_768, "overhead_bytes": 0, "counting": 1},
                    cache="cold",
                    config=config,
                    times_us=(60.0,),
                )
            )
    found, _ = points(load([tmp_path]))
    tiled, hidden = found.set_index("provider").loc["triton"], found.set_index("provider").loc["torch"]
    assert (tiled["tile_ceiling"], tiled["wave_ceiling"]) == (1.0, pytest.approx(288 / 396))
    assert "ceilings: tile 1.00, wave 0.73" in tiled["reason"]
    assert math.isnan(float(str(hidden["tile_ceiling"]))) and "ceiling" not in str(hidden["reason"])
