"""Ceilings under the compute roof that a kernel's tiling sets: padding of the edge tiles, and the last wave.

They need the tile that ran, so they exist where a record holds its configuration; a library's kernel hides it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd


def tile_ceiling(
    M: pd.Series[float], N: pd.Series[float], block_m: pd.Series[float], block_n: pd.Series[float]
) -> pd.Series[float]:
    """Share of the executed multiply-adds that are useful when edge tiles are padded: 1 row in a tile of 16 is 1/16."""
    padded_m, padded_n = -(-M // block_m) * block_m, -(-N // block_n) * block_n
    return (M / padded_m) * (N / padded_n)


def wave_ceiling(tiles: pd.Series[float], slots: float) -> pd.Series[float]:
    """Share of slot time that whole tiles fill: 120 tiles on 108 slots take two waves, 120 / 216."""
    return tiles / (-(-tiles // slots) * slots)


def with_ceilings(frame: pd.DataFrame, sm_count: int | None) -> pd.DataFrame:
    """Adds tile_ceiling and wave_ceiling of matmuls whose tile is known; NaN elsewhere.

    One tile runs on an SM at a time, as in this suite's persistent matmul.
    """
    nan = pd.Series(np.nan, index=frame.index)
    tiles_told = "block_m" in frame
    rest = frame.drop(columns=["block_m", "block_n"]) if tiles_told else frame
    if not tiles_told or not sm_count:
        return rest.assign(tile_ceiling=nan, wave_ceiling=nan)
    known = (frame["op"] == "matmul") & frame["block_m"].notna()
    M, N = (frame[axis].astype("float64").where(known) for axis in "MN")
    block_m, block_n = frame["block_m"], frame["block_n"]
    tiles = -(-M // block_m) * -(-N // block_n)
    return rest.assign(tile_ceiling=tile_ceiling(M, N, block_m, block_n), wave_ceiling=wave_ceiling(tiles, sm_count))
