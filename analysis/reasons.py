"""One sentence for each point: what limits it, how near it is, and the most it could gain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

TOLERANCE = 1.02
"""Above this multiple of a limit a figure is not believed; measuring errors stay below it."""
FAR = 0.5
"""Below this fraction of attainable neither roof explains the time: latency or too little parallelism does."""


def reasons(frame: pd.DataFrame, l2_bytes: int | None) -> list[str]:
    """The sentences of classified rows, in order."""
    columns = (
        "class", "time_us", "tflops_per_s", "gb_per_s", "intensity_flops_per_byte", "roof_tflops", "roof_gb_per_s",
        "launch_us", "roof_us", "attainable_us", "fraction_of_attainable", "band_low", "band_high", "bytes",
        "bound_tflops", "bound_gb_per_s", "datasheet_tflops", "measured_tflops", "cache", "timer",
        "tile_ceiling", "wave_ceiling", "doubted",
    )  # fmt: skip
    rows = zip(*(frame[c].tolist() for c in columns), strict=True)
    short = [c.removeprefix("fraction_of_") for c in columns]
    return [_sentence(dict(zip(short, row, strict=True)), l2_bytes) for row in rows]


Row = dict[str, Any]


def _sentence(r: Row, l2_bytes: int | None) -> str:
    text = _SENTENCES[r["class"]](r, l2_bytes)
    if r["tile_ceiling"] > 0:
        text += f"; ceilings: tile {r['tile_ceiling']:.2f}, wave {r['wave_ceiling']:.2f}"
    boosted = r["class"] != "invalid" and r["tflops_per_s"] > r["datasheet_tflops"]
    return f"{text}; above the datasheet's clock (boost clock)" if boosted else text


def _invalid(r: Row, l2_bytes: int | None) -> str:
    if not r["time_us"] > 0:
        return f"no usable time: {r['time_us']} us"
    if r["doubted"]:
        return "the run flagged this time suspect, not all of the kernel: its record says why"
    if r["tflops_per_s"] > TOLERANCE * r["bound_tflops"]:
        return (
            f"{r['tflops_per_s']:.0f} TFLOP/s is above {r['bound_tflops']:.0f}, all SMs at their maximum clock: "
            "the time or the count is wrong"
        )
    return (
        f"{r['gb_per_s']:.0f} GB/s is above the DRAM peak of {r['bound_gb_per_s']:.0f} "
        "and the cache does not explain it: the time or the count is wrong"
    )


def _cached(r: Row, l2_bytes: int | None) -> str:
    share = r["bytes"] / l2_bytes if l2_bytes else float("nan")
    return (
        f"measured {r['cache'] or 'with an unknown cache'}, and its {r['bytes'] / 1e6:.3g} MB are {share:.2g} of L2: "
        "the DRAM roof does not apply"
    )


def _no_roofs(r: Row, l2_bytes: int | None) -> str:
    if r["roof_tflops"] > 0:
        return "the record declares no FLOPs or no bytes: no class and no percentages"
    return "no roofs are known for this device and dtype: no class and no percentages"


def _overhead(r: Row, l2_bytes: int | None) -> str:
    return (
        f"the launch floor of {r['launch_us']:.2g} us is at least the {r['roof_us']:.2g} us its work needs: "
        f"fuse or batch; {_gain(r)}"
    )


def _ridge(r: Row, l2_bytes: int | None) -> str:
    return (
        f"{r['intensity_flops_per_byte']:.0f} FLOP/byte lies in the band {r['band_low']:.0f} to {r['band_high']:.0f} "
        f"where the choice of roofs decides; {_gain(r)}"
    )


def _memory(r: Row, l2_bytes: int | None) -> str:
    return f"DRAM: {r['gb_per_s']:.4g} of {r['roof_gb_per_s']:.4g} GB/s; {_gain(r)}"


def _compute(r: Row, l2_bytes: int | None) -> str:
    return f"arithmetic: {r['tflops_per_s']:.4g} of {r['roof_tflops']:.4g} TFLOP/s; {_gain(r)}"


def _gain(r: Row) -> str:
    attainable = r["attainable"]
    if attainable > TOLERANCE and r["measured_tflops"] > 0:
        if r["timer"] == "published":
            return f"{attainable:.2f} of attainable: beyond the measured roofs, which are fits to such rows"
        return f"{attainable:.2f} of attainable: suspect, faster than the measured roof (stale?)"
    if attainable > 1 / TOLERANCE:
        return "at the roof"
    if attainable == 0:
        return "it declares no work at all"
    if attainable < FAR:
        return f"only {attainable:.2f} of attainable, so latency or too little parallelism: up to {1 / attainable:.1f}x"
    return f"up to {1 / attainable:.2f}x faster"


_SENTENCES: dict[str, Callable[[Row, int | None], str]] = {
    "invalid": _invalid,
    "cache-resident": _cached,
    "mixed-cache": _cached,
    "no roofs": _no_roofs,
    "overhead-bound": _overhead,
    "near the ridge": _ridge,
    "memory-bound": _memory,
    "compute-bound": _compute,
}
