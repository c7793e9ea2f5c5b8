"""What may stand on one line of the figure: the same problem, kernel and way of measuring, one size growing.

Ids like F13 in docstrings name the known mistake that a test guards against.
"""

from __future__ import annotations

from pathlib import Path

import synthetic
from synthetic import classified

from analysis.trajectories import longest, trajectories


def test_two_runs_and_two_ways_of_measuring_never_share_a_line(tmp_path: Path) -> None:
    cold = [synthetic.matmul("cold", m) for m in (1, 16)]
    hot = [synthetic.matmul("hot", m, cache="hot") for m in (2, 32)]
    frame, _ = classified(tmp_path, (synthetic.H100, cold), (synthetic.H100, hot))
    assert sorted(tuple(line.sizes) for line in trajectories(frame)) == [(1, 16), (2, 32)]


def test_dtypes_windows_and_providers_have_lines_of_their_own(tmp_path: Path) -> None:
    """F13."""
    records = [synthetic.matmul("r", m, dtype=d) for d in ("bfloat16", "float16") for m in (1, 8, 64)]
    records += [synthetic.attention("r", b, 1, 4096, window=w) for w in (128, 1024) for b in (1, 4)]
    records += [synthetic.attention("r", b, 1, 4096, provider="torch") for b in (1, 4)]
    frame, _ = classified(tmp_path, (synthetic.H100, records))
    lines = trajectories(frame)
    assert sorted((t.axis, t.dtype, t.provider, tuple(t.sizes)) for t in lines) == [
        ("M", "bfloat16", "triton", (1, 8, 64)),
        ("M", "float16", "triton", (1, 8, 64)),
        ("batch", "bfloat16", "torch", (1, 4)),
        ("batch", "bfloat16", "triton", (1, 4)),
        ("batch", "bfloat16", "triton", (1, 4)),
    ]


def test_storage_and_scales_of_the_cache_have_lines_of_their_own(tmp_path: Path) -> None:
    """One technique, so that nothing but the ids tells them apart; half the bytes are nearly twice the intensity."""
    stored = (("", ""), ("float8_e4m3fn", "tensor"), ("float8_e4m3fn", "head"), ("int8", "head"))
    records = [
        synthetic.attention("r", b, 1, 4096, kv_dtype=kv_dtype, scale=scale)
        for kv_dtype, scale in stored
        for b in (1, 4)
    ]
    frame, _ = classified(tmp_path, (synthetic.H100, records))
    lines = trajectories(frame)
    assert [(t.axis, tuple(t.sizes)) for t in lines] == [("batch", (1, 4))] * 4
    plain, *eight_bits = sorted(float(t.intensity[0]) for t in lines)
    assert all(intensity > 1.9 * plain for intensity in eight_bits)


def test_lines_run_over_m_batch_and_prompt_length(tmp_path: Path) -> None:
    records = [synthetic.attention("r", 1, q, q) for q in (512, 2048, 128)]
    records += [synthetic.attention("r", b, 1, kv) for b in (4, 1) for kv in (1024, 2048)]
    records += [synthetic.matmul("r", m, n) for m in (64, 1) for n in (4096, 1024)]
    frame, _ = classified(tmp_path, (synthetic.H100, records))
    lines = trajectories(frame)
    assert sorted((t.axis, tuple(t.sizes)) for t in lines) == [
        ("M", (1, 64)), ("M", (1, 64)), ("batch", (1, 4)), ("batch", (1, 4)), ("q_len", (128, 512, 2048)),
    ]  # fmt: skip
    named = longest(lines, most=2)
    assert [t.end_labels for t in named] == [("M=1", "M=64"), ("q_len=128", "q_len=2048")]


def test_drafts_and_chunks_grow_by_their_own_size(tmp_path: Path) -> None:
    """Drafts of 2 to 16 over 8,192 keys; chunks of 512 with 512 to 8,192 keys; the first chunk starts the line."""
    records = [synthetic.attention("r", 16, q, 8192, technique="speculative") for q in (16, 2, 4)]
    records += [synthetic.attention("r", 1, 512, kv, technique="chunked") for kv in (8192, 1024, 512)]
    frame, _ = classified(tmp_path, (synthetic.H100, records))
    lines = trajectories(frame)
    assert sorted((t.axis, tuple(t.sizes)) for t in lines) == [("draft", (2, 4, 16)), ("kv_len", (512, 1024, 8192))]
    [draft] = (t for t in lines if t.axis == "draft")
    assert draft.end_labels == ("draft=2", "draft=16") and (draft.intensity[1:] > 1.9 * draft.intensity[:-1]).all()


def test_invalid_points_are_on_no_line(tmp_path: Path) -> None:
    records = [synthetic.matmul("r", m) for m in (1, 16)] + [synthetic.matmul("r", 4096, times_us=(1.0,))]
    frame, _ = classified(tmp_path, (synthetic.H100, records))
    assert list(frame["class"]) == ["memory-bound", "memory-bound", "invalid"]
    assert [tuple(line.sizes) for line in trajectories(frame)] == [(1, 16)]
