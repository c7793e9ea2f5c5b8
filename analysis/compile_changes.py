"""Before and after: what a change of a kernel, or of the compiler, did to the kernel that a case runs by default.

What got worse is for `analysis.compile_baseline` to say; here stand the figures of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.compile_baseline import key_of
from analysis.compile_page import on_page
from analysis.compiled import KB, Kernel, row_of

FIGURES: Mapping[str, Callable[[Kernel, Mapping[str, Any]], Any]] = {
    "tile": lambda kernel, row: _tile(kernel),
    "regs": lambda kernel, row: row["registers"],
    "spill stores": lambda kernel, row: row["spill_stores"],
    "wgmma serialised": lambda kernel, row: row["wgmma_serialised"],
    "instructions": lambda kernel, row: row["loop_instructions"],
    "per kFLOP": lambda kernel, row: row["instructions_per_kflop"],
    "per KB": lambda kernel, row: row["instructions_per_kb"],
    "CTA barriers": lambda kernel, row: row["cta_barriers_per_iteration"],
    "KB in flight/SM": lambda kernel, row: round(row["bytes_in_flight_per_sm"] / KB),
    "waves": lambda kernel, row: round(kernel.waves, 2),
    "in turn": lambda kernel, row: row["ceiling_serial"],
}


def changes_page(old: Sequence[Kernel], new: Sequence[Kernel]) -> str:
    """Markdown: one row a case whose default kernel is on both sides, `before → after` where a figure differs."""
    before = {key_of(kernel.record): kernel for kernel in on_page(old) if kernel.record.default}
    pairs = [(before.get(key_of(k.record)), k) for k in on_page(new) if k.record.default]
    lines = [
        "# Before and after",
        "",
        "The default kernel of each case, by its hot loop; nothing was run. One value: both agree. What a figure is "
        "says the page of the compile report.",
        "",
        "| case | " + " | ".join(FIGURES) + " |",
        "|---" * (len(FIGURES) + 1) + "|",
    ]
    for was, now in pairs:
        if was is not None:
            told = [_told(figure(was, row_of(was)), figure(now, row_of(now))) for figure in FIGURES.values()]
            lines.append(f"| `{now.record.case['id']}` | {' | '.join(told)} |")
    return "\n".join([*lines, ""])


def _tile(kernel: Kernel) -> str:
    config = kernel.record.config
    blocks = "x".join(str(v) for name, v in config.items() if name.startswith("block") and v)
    named = [f"w{config['num_warps']}", f"s{config['num_stages']}"] if "num_warps" in config else []
    words = [v for v in config.values() if isinstance(v, str) and v]
    flags = [name for name, v in config.items() if v is True]
    return " ".join([blocks, *named, *words, *flags])


def _told(was: Any, now: Any) -> str:
    one, other = ("-" if v is None else f"{v:.3g}" if isinstance(v, float) else str(v) for v in (was, now))
    return one if one == other else f"{one} → {other}"
