"""The sections beside the points: nothing unescaped, nothing fetched, and every committed report taken."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import synthetic
from synthetic import classified
from typer.testing import CliRunner

from analysis.__main__ import app
from analysis.frame import load
from analysis.page.headline import headline
from analysis.page.markdown import against_tables, report_md
from analysis.page.provenance import provenance, warnings
from analysis.page.rendered import MOST_PICTURE, html_of
from analysis.page.sections import kind_of, sections
from analysis.roofline import points
from bench.record import RecordError

ROOT = Path(__file__).parents[1]
PNG = bytes.fromhex("89504e470d0a1a0a")
VOID = {"img", "br", "hr"}


class Balanced(HTMLParser):
    """Tags that are open, and the attributes of all."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def parsed(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    return parser.seen


def test_a_table_has_heads_and_its_numbers_stand_right() -> None:
    html = html_of("| a | b |\n|---|---:|\n| x | 1 |\n", 'T "q"')
    assert '<th scope="col">a</th>' in html and '<th scope="col" class="num">b</th>' in html
    assert '<td class="num">1</td>' in html and 'aria-label="T &quot;q&quot;"' in html
    assert [tag for tag, _ in parsed(html)][:2] == ["div", "table"]


def test_a_name_cannot_be_markup() -> None:
    html = html_of("| `<script>alert(1)</script>` | <b onclick=x> |\n|---|---|\n\n<img src=x onerror=y>\n", "t")
    assert {tag for tag, _ in parsed(html)} <= {"div", "table", "thead", "tr", "th", "code", "p"}
    assert "&lt;script&gt;" in html


def test_the_title_goes_and_headings_go_down() -> None:
    assert html_of("# Title\n\n## One\n", "t") == "<h3>One</h3>\n"


def test_a_small_picture_is_inline_and_a_large_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "b.png").write_bytes(PNG + bytes(MOST_PICTURE))
    assert 'src="data:image/png;base64,iVBORw0KGgo="' in html_of("![Roofs](a.png)", "t", tmp_path)
    for html in (html_of("![Roofs](b.png)", "t", tmp_path), html_of("![Roofs](a.png)", "t")):
        assert "<img" not in html and "Roofs: not in this file" in html
    assert "b.png)" in html_of("![Roofs](b.png)", "t", tmp_path)


def test_only_links_of_the_web_stay() -> None:
    html = html_of("[near](matmul.md) [far](https://example.org/a) [bad](javascript:alert(1))", "t")
    assert [attrs["href"] for tag, attrs in parsed(html) if tag == "a"] == ["https://example.org/a"]
    assert "near" in html


def test_what_is_nowhere_says_how_to_make_it(tmp_path: Path) -> None:
    made = {section.title: section.text for section in sections([], tmp_path)}
    assert "python -m bench compile -o DIR" in made["Compile"]
    assert "python -m analysis validate" in made["Serving"]
    assert "python -m analysis compare OLD NEW" in made["Comparison"]
    assert "What each buys" in made["Techniques"]  # counted: no run needed


def test_two_runs_are_compared(tmp_path: Path) -> None:
    old = synthetic.write(tmp_path / "old", "a", synthetic.H100, [synthetic.matmul("a", 1, times_us=(20.0,))])
    new = synthetic.write(tmp_path / "new", "b", synthetic.H100, [synthetic.matmul("b", 1, times_us=(30.0,))])
    text = sections([old.parent, new.parent], tmp_path)[-1].text
    assert "1 SLOW" in text and "+50.0 %" in text and "![" not in text
    other = synthetic.write(tmp_path / "other", "c", synthetic.H200, [synthetic.matmul("c", 2, times_us=(30.0,))])
    assert "share no case" in sections([old.parent, other.parent], tmp_path)[-1].text


def test_a_document_of_compare_is_a_table(tmp_path: Path) -> None:
    case = {
        "case_id": "matmul/x",
        "baseline_us": 20.0,
        "candidate_us": 30.0,
        "ratio": 1.5,
        "verdict": "SLOW",
        "reason": "|r",
    }
    missing = case | {"case_id": "matmul/y", "candidate_us": None, "ratio": None, "verdict": "MISSING"}
    path = tmp_path / "compared.json"
    path.write_text(json.dumps({"verdicts": {"SLOW": 1, "MISSING": 1}, "cases": [case, missing], "exit": 1}))
    text = sections([path], tmp_path)[-1].text
    assert "| matmul/x | 20 | 30 | +50.0 % | SLOW | \\|r |" in text and "| matmul/y | 20 | - | - | MISSING |" in text
    assert text.startswith("**1 SLOW, 1 MISSING** (exit code 1)")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"verdicts": {}, "cases": [1]}'])
def test_a_json_of_something_else_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(RecordError, match=r"x\.json: not a document"):
        sections([path], tmp_path)


KINDS = {
    "compare-example": "comparison", "compile-changes": "compile", "compile-sm100": "compile",
    "compile-sm90": "compile", "compile-sm90-oldest": "compile", "cpu-example": "records",
    "reference-h100": "records", "reference-h200": "records", "serving": "serving", "techniques": "techniques",
}  # fmt: skip


def test_every_committed_report_is_of_a_known_kind() -> None:
    committed = [path for path in (ROOT / "reports").iterdir() if path.is_dir() and not path.name.startswith("run-")]
    assert {path.name: kind_of(path) for path in committed} == KINDS


@pytest.mark.parametrize(
    "name", [n for n, kind in KINDS.items() if kind != "records" and not n.startswith("compile-sm")]
)
def test_sections_of_every_committed_report(name: str) -> None:
    made = sections([ROOT / "reports" / name], ROOT / "reports")
    assert [section.title.split(":")[0].split(" ")[0] for section in made] == [
        "Techniques", "Compile", "Serving", "Comparison",
    ]  # fmt: skip
    for section in made:
        seen = parsed(section.html)
        assert all(attrs.get("scope") for tag, attrs in seen if tag == "th")
        assert not [attrs for tag, attrs in seen if tag == "img" and not str(attrs["src"]).startswith("data:")]
        assert not re.search(r"<(script|style|iframe|link)\b", section.html)


@pytest.mark.parametrize("name", [n for n, kind in KINDS.items() if kind == "records"])
def test_the_text_of_every_committed_run(name: str) -> None:
    loaded = load([ROOT / "reports" / name])
    frame, _ = points(loaded)
    head, rests = headline(frame, loaded.environments), provenance(loaded)
    text = report_md(name, head, frame, provenance=rests, cautions=warnings(frame))
    assert text.startswith(f"# {name}\n\n{head.device}; ")
    assert all(f"* {sentence}\n" in text for sentence in head.sentences)
    assert sum(head.counts.values()) == len(frame) and all(f"### Run {run}\n" in text for run in rests)


def test_the_text_has_all_parts_and_its_own_headings(tmp_path: Path) -> None:
    """F14: the text is told in UTF-8 whatever is in it."""
    records = [synthetic.matmul("r", m, provider=p, flags=("throttled",)) for m in (1, 2) for p in ("torch", "triton")]
    frame, _ = classified(tmp_path, (synthetic.H100, records))
    text = report_md(
        "Bericht µ → ✓", headline(frame, {"r": synthetic.H100}), frame,
        provenance=provenance(load([tmp_path / "r"])), cautions=warnings(frame), sections=sections([], tmp_path),
        notes=["two\nlines"],
    )  # fmt: skip
    heads = [line for line in text.split("\n") if line.startswith(("# ", "## "))]
    assert heads == [
        "# Bericht µ → ✓", "## What to doubt", "## Geometric mean of the ratio, a family",
        "## Provider against provider", "## Families", "## Points", "## Techniques", "## Compile", "## Serving",
        "## Comparison", "## What this rests on",
    ]  # fmt: skip
    assert "* throttled, 4: the clocks were held down" in text and "* two lines\n" in text
    assert "![Roofline](roofline.png)" in text and text.count("![") == 1


def test_nothing_measured_is_a_text_too(tmp_path: Path) -> None:
    """P01."""
    frame, _ = classified(
        tmp_path, (synthetic.CPU, synthetic.roofs("r", {"float32": 1.0}, 20.0, 1.0, timer="cpu_wall"))
    )
    text = report_md("t", headline(frame, {"r": synthetic.CPU}), frame, provenance={})
    assert "No case was measured" in text and "![" not in text and against_tables(frame) == []


def test_the_command_takes_runs_beside_other_reports(tmp_path: Path) -> None:
    """F16: into a directory of any name."""
    given = [str(ROOT / "reports" / name) for name in ("compile-changes", "cpu-example", "compare-example")]
    out = tmp_path / "Bericht é 漢"
    result = CliRunner().invoke(app, ["report", *given, "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == {"report.html", "report.md", "roofline.png", "roofline.svg"}
    text, html = ((out / name).read_text(encoding="utf-8") for name in ("report.md", "report.html"))
    assert "## Compile: changes" in text and "## Comparison of compare-example" in text
    assert "<h2>Compile: changes</h2>" in html and 'id="sentences"' in html
    assert "25 of 42 cases (60 %) are compute-bound" in text and "25 of 42 cases (60 %) are compute-bound" in html
