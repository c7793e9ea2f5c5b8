"""bench.progress: a case is named before it starts, on a terminal and off it."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from bench import progress as module
from bench.progress import progress

IDS = ("matmul/triton/bfloat16/M=1,N=[8]", "attention_decode/torch/x", "third")


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> list[str]:
    """What is written by the time each case starts, and in the end."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, color_system=None, highlight=False)
    monkeypatch.setattr(module, "stderr", console)
    seen = []
    with progress(len(IDS)) as name:
        for case_id in IDS:
            name(case_id)
            seen.append(out.getvalue())
    return [*seen, out.getvalue()]


def test_plain_lines_where_nothing_can_be_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third, end = shown(monkeypatch, terminal=False)
    assert first == f"[1/3] {IDS[0]}\n"
    assert second == f"{first}[2/3] {IDS[1]}\n"
    assert third == end == f"{second}[3/3] {IDS[2]}\n"


def test_a_bar_on_a_terminal_names_the_case_counts_those_done_and_has_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    first, second, third, end = shown(monkeypatch, terminal=True)
    assert f"0/3 0:00:00 -:--:-- {IDS[0]}" in first and IDS[1] not in first
    assert "1/3" in second and IDS[1] in second and IDS[2] not in second
    assert re.search(rf"2/3 0:00:00 0:00:0\d {IDS[2]}", third)
    assert end.endswith("\x1b[2K"), "the bar is wiped at the end"
