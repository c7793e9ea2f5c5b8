"""`python -m analysis compile`: the files of a report, what the page says, and exit codes."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from compiled_kernels import DECODE, PREFILL, kernel, listing, record
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from typer.testing import CliRunner, Result

from analysis.__main__ import app
from analysis.compile_baseline import name_of
from analysis.compile_figure import PIPES, pipes_figure
from analysis.compile_labels import short_labels
from analysis.compile_page import PUBLISHED, complaints, page, published
from analysis.compiled import COLUMNS, Kernel, row_of
from bench.compiled import RECORDS, CompileRecord, CompileWriter, listing_name
from bench.record import Environment

FAILED = record("matmul_decode", "decode", {"M": 16, "N": 8, "K": 8}, error="out of resource: shared memory", grid=())


def analysis(*arguments: object) -> Result:
    return CliRunner().invoke(app, ("compile", *map(str, arguments)))


def written(directory: Path, *records: CompileRecord) -> Path:
    """A directory as `bench compile` leaves it, each record with its real listing."""
    names = {PREFILL.kernel: "attention_prefill_d128", DECODE.kernel: "matmul_decode_tile", "": ""}
    with CompileWriter(directory, Environment(triton="3.7.1")) as writer:
        for one in records:
            text = listing(names[one.kernel]) if one.kernel else ""
            writer.append(replace(one, listing=listing_name(text)), text)
    return directory


def test_a_report_is_written_beside_the_records_or_where_told(tmp_path: Path) -> None:
    made = written(tmp_path / "made", PREFILL, DECODE, FAILED)
    result = analysis(made, "-o", tmp_path / "report")
    assert result.exit_code == 0, result.stderr
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"kernels.csv", "table.md", "pipes.png"}
    rows = list(csv.DictReader((tmp_path / "report" / "kernels.csv").open(encoding="utf-8")))
    assert tuple(rows[0]) == COLUMNS and [row["op"] for row in rows] == ["attention_prefill", "matmul_decode"]
    assert rows[0]["mufu_cycles"] == "1056.0" and rows[0]["wgmma_serialised"] == "no"
    assert "out of resource: shared memory" in result.stdout and "2 kernels, 2 of them different" in result.stdout
    assert analysis(made).exit_code == 0 and (made / "kernels.csv").exists()


def test_each_of_several_archs_has_a_page_and_a_figure(tmp_path: Path) -> None:
    made = written(tmp_path, PREFILL, replace(PREFILL, arch=100))
    assert analysis(made).exit_code == 0
    names = {path.name for path in made.iterdir()}
    assert {"table-sm90.md", "table-sm100.md", "pipes-sm90.png", "pipes-sm100.png", "kernels.csv"} < names


def test_exit_codes(tmp_path: Path) -> None:
    assert analysis(tmp_path / "nothing").exit_code == 2
    assert analysis(written(tmp_path / "failed", FAILED)).exit_code == 3
    made = written(tmp_path / "made", DECODE)
    (made / "table.md").mkdir()
    result = analysis(made)
    assert result.exit_code == 4 and "table.md: not written" in result.stderr and (made / "kernels.csv").exists()


def test_a_baseline_decides_the_exit_code(tmp_path: Path) -> None:
    old = written(tmp_path / "old", DECODE, PREFILL)
    same = written(tmp_path / "same", PREFILL)
    worse = written(tmp_path / "worse", replace(DECODE, spill_loads=3, spill_stores=3), PREFILL)
    assert analysis(same, "--baseline", old).exit_code == 0
    assert "only in the baseline: matmul_decode" in analysis(same, "--baseline", old).stderr
    result = analysis(worse, "--baseline", old)
    assert result.exit_code == 1 and "spills appeared: 0 -> 3" in result.stdout
    assert "2 kernels compared, 1 regressions" in result.stdout and not (worse / "kernels.csv").exists()
    assert analysis(written(tmp_path / "other", FAILED), "--baseline", same).exit_code == 3
    assert analysis(worse, "--baseline", tmp_path / "nothing").exit_code == 2


def test_before_and_after_of_the_default_kernels(tmp_path: Path) -> None:
    """Four times as many blocks as 132 SMs hold are 4 waves; what did not change stands once."""
    default = replace(DECODE, default=True)
    old = written(tmp_path / "old", replace(default, spill_stores=2, spill_loads=2), PREFILL)
    blocks = kernel(default).blocks[0]
    new = written(tmp_path / "new", replace(default, grid=(132 * blocks * 4, 1, 1)), PREFILL)
    result = analysis(new, "--baseline", old, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    text = (tmp_path / "out" / "changes.md").read_text(encoding="utf-8")
    [row] = [line for line in text.splitlines() if "matmul_decode" in line]
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[4] == "2 → 0" and cells[5] == "no" and cells[11].endswith("→ 4")
    (tmp_path / "bad" / "changes.md").mkdir(parents=True)
    assert analysis(new, "--baseline", old, "-o", tmp_path / "bad").exit_code == 4


def test_a_records_file_of_an_unknown_arch_is_refused(tmp_path: Path) -> None:
    made = written(tmp_path, DECODE)
    lines = (made / RECORDS).read_text(encoding="utf-8").splitlines()
    odd = json.loads(lines[1]) | {"arch": 75}
    (made / RECORDS).write_text("\n".join([lines[0], json.dumps(odd)]) + "\n", encoding="utf-8")
    result = analysis(made)
    assert result.exit_code == 2 and "sm_75 has no rates" in result.stderr


def test_the_page_puts_what_was_published_beside_each_ceiling() -> None:
    text = page([kernel(PREFILL), kernel(DECODE)], [FAILED], "Title", "pipes.png")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == 2 and PUBLISHED["attention_prefill", 128] in rows[0]
    assert PUBLISHED["matmul_decode", None] in rows[1]
    assert rows[0].index("0.66") < rows[0].index(PUBLISHED["attention_prefill", 128])
    assert "A ceiling is not a speed" in text and "![Cycles of each pipe](pipes.png)" in text
    assert "does not compile: out of resource" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_nothing_is_published_for_other_archs_dtypes_and_widths() -> None:
    assert published(kernel(PREFILL))
    assert not published(kernel(PREFILL, arch=100))
    assert not published(kernel(PREFILL, case=dict(PREFILL.case) | {"dtype": "float32"}))
    assert not published(kernel(PREFILL, case=dict(PREFILL.case) | {"axes": {"head_dim": 256}}))


def test_complaints_are_of_what_does_not_hold() -> None:
    assert complaints([kernel(PREFILL), kernel(DECODE)], []) == []
    bad = kernel(DECODE, spill_stores=7, spill_loads=6, engaged={"num_stages": False}, shared_bytes=400_000)
    [line] = complaints([bad], [])
    for told in ("not engaged: num_stages", "spills: 7 STL, 6 LDL", "does not fit an SM"):
        assert told in line


def test_labels_name_only_what_differs() -> None:
    wide = kernel(DECODE, config={"form": "tile", "block_n": 128, "block_k": 128, "num_warps": 4, "pdl": True})
    plain = kernel(DECODE, config={"form": "tile", "block_n": 64, "block_k": 128, "num_warps": 4, "pdl": False})
    assert short_labels([wide, plain, kernel(PREFILL)]) == ["128x128 pdl", "64x128", ""]


def test_what_is_stored_otherwise_is_named() -> None:
    case = dict(PREFILL.case)
    stored = kernel(PREFILL, case=case | {"id": case["id"].replace("bfloat16/", "bfloat16.kv_int8.head/")})
    assert short_labels([kernel(PREFILL), stored]) == ["", "kv_int8.head"]
    assert [row_of(each)["dtype"] for each in (kernel(PREFILL), stored)] == ["bfloat16", "bfloat16.kv_int8.head"]
    assert name_of(stored.record).startswith("attention_prefill bfloat16.kv_int8.head sm_90")


def drawn(kernels: Sequence[Kernel]) -> Figure:
    figure = pipes_figure(kernels, "Title $a_b$")
    figure.draw_without_rendering()
    return figure


def many() -> list[Kernel]:
    """A figure as full as a report's: 20 kernels that multiply and 31 that stream, with long names."""
    prefill = [
        kernel(
            PREFILL, config={"block_m": 128, "block_n": n, "num_warps": 8, "descriptors": "device", "specialise": True}
        )
        for n in range(20)
    ]
    decode = [
        kernel(DECODE, config={"form": "tile", "block_n": n, "block_k": 128, "ctas_per_sm": 2, "pdl": bool(n % 2)})
        for n in range(30)
    ]
    long = kernel(DECODE, case=dict(DECODE.case) | {"op": "an_op_" * 16})
    return [*prefill, *decode, long]


def test_no_text_of_the_figure_meets_another_or_leaves_it() -> None:
    figure = drawn(many())
    inside = figure.bbox
    for axes in figure.axes:
        boxes = [t.get_window_extent() for t in (*axes.texts, *axes.get_yticklabels(), axes.xaxis.label) if _told(t)]
        for place, box in enumerate(boxes):
            assert inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            assert not any(box.padded(-1).overlaps(other.padded(-1)) for other in boxes[place + 1 :])


def _told(text: Text) -> bool:
    return bool(text.get_text().strip())


def test_the_bars_are_the_pipes_cycles_and_the_binding_one_is_marked() -> None:
    """Per MFLOP of 8.388608: tensor 2,048 cycles are 244.1, MUFU 1,056 are 125.9; the mark lies in the tensor's bar."""
    [axes] = drawn([kernel(PREFILL)]).axes
    widths = [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
    assert len(widths) == len(PIPES)
    assert widths[:2] == pytest.approx([2048 / 8.388608, 1056 / 8.388608])
    [mark] = axes.lines
    assert mark.get_xdata() == pytest.approx([2048 / 8.388608 / 2])
    assert axes.texts[0].get_text().strip() == "1.00 / 0.66"


def test_a_figure_of_nothing_says_so() -> None:
    assert any("nothing to draw" in text.get_text() for text in drawn([]).texts)
