"""The report in a browser: what is drawn, filtered, told and sorted is what the records say.

Expected figures are worked by hand from the times that `synthetic` writes.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import synthetic
from playwright.sync_api import Page
from report_pages import PHONE, WIDE, Opener, made

pytest_plugins = ["report_pages"]
POINTS = "document.getElementById('roofline').data.find(t => t.meta === 'points')"
ROOFS = "document.getElementById('roofline').data.filter(t => t.meta === 'roof')"


def drawn(page: Page) -> dict[str, Any]:
    """The roofline's points: x, y, colours, symbols, opacities and texts."""
    told = page.evaluate(
        f"() => {{ const t = {POINTS}; return JSON.stringify({{x: t.x, y: t.y, text: t.text, "
        "colour: t.marker.color, symbol: t.marker.symbol, opacity: t.marker.opacity}); }"
    )
    return dict(json.loads(told))


def choose(page: Page, name: str, *values: str) -> None:
    """Leaves only these values of a filter, as a reader does."""
    details = page.locator(f'details[data-filter="{name}"]')
    details.locator("summary").click()
    details.get_by_role("button").click()
    for value in values:
        details.get_by_label(value, exact=True).check()


def column(page: Page, header: str) -> list[str]:
    """The cells of a column of the table, from the top."""
    names = page.locator("#points th").all_inner_texts()
    at = next(i for i, name in enumerate(names) if name.rstrip(" ▾▴") == header)
    return page.locator(f"#points tbody td:nth-child({at + 1})").all_inner_texts()


def test_points_lie_at_their_intensity_and_rate(report: Path, open_page: Opener) -> None:
    """8192 x 4096 x 4096 in bfloat16: 2 MNK = 274,877,906,944 FLOP; 167,772,160 bytes; at 0.8 of 346.597 us."""
    page = open_page(report)
    points = drawn(page)
    assert len(points["x"]) == 10
    at = next(i for i, text in enumerate(points["text"]) if "M=8192" in text and "triton" in text)
    assert points["x"][at] == pytest.approx(1638.4, rel=1e-4)
    assert points["y"][at] == pytest.approx(274_877_906_944 / 1e6 / ((3 + 343.597) / 0.8), rel=1e-4)
    assert page.locator("#counts").inner_text().count("overhead-bound") == 1


def test_colour_is_the_phase_and_marker_the_op_and_hollow_is_overhead_bound(report: Path, open_page: Opener) -> None:
    points = drawn(open_page(report))
    by_text = {text: (points["colour"][i], points["symbol"][i]) for i, text in enumerate(points["text"])}
    decode = {colour for text, (colour, _) in by_text.items() if ", decode<br>" in text}
    prefill = {colour for text, (colour, _) in by_text.items() if ", prefill<br>" in text}
    assert len(decode) == len(prefill) == 1 and decode != prefill
    shapes = {
        op: {s.removesuffix("-open") for t, (_, s) in by_text.items() if t.startswith(op)} for op in ("matmul,", "att")
    }
    assert [len(s) for s in shapes.values()] == [1, 1] and shapes["matmul,"] != shapes["att"]
    hollow = [text for text, (_, symbol) in by_text.items() if symbol.endswith("-open")]
    assert len(hollow) == 1 and "kv_len=256" in hollow[0]


@pytest.mark.parametrize(
    ("name", "values", "left"),
    [
        ("op", ["matmul"], 8),
        ("phase", ["prefill"], 4),
        ("provider", ["torch", "vllm"], 3),
        ("technique", ["dense"], 8),
        ("op", [], 0),
    ],
)
def test_a_filter_leaves_what_it_names(
    name: str, values: list[str], left: int, report: Path, open_page: Opener
) -> None:
    page = open_page(report)
    choose(page, name, *values)
    assert len(drawn(page)["x"]) == left
    assert page.locator("#shown").inner_text() == f"{left} of 10 points"
    assert page.locator("#points tbody tr").count() == left


def test_published_points_and_sets_of_roofs_can_be_taken_off(report: Path, open_page: Opener) -> None:
    page = open_page(report)
    assert len(page.evaluate(ROOFS)) == 4
    page.locator("#roof-sets").get_by_label("datasheet").uncheck()
    roofs = page.evaluate(ROOFS)
    assert [max(roof["y"]) for roof in roofs] == [pytest.approx(800), pytest.approx(800)]
    assert "989" not in page.locator("#roof-list").inner_text()
    page.locator("#layers").get_by_label("published").uncheck()
    assert len(drawn(page)["x"]) == 8


def test_hover_tells_shape_time_rates_class_and_sentence(report: Path, open_page: Opener) -> None:
    page = open_page(report)
    choose(page, "provider", "torch")
    page.locator('details[data-filter="provider"] summary').click()
    page.locator("#roofline .points path").first.hover(force=True)
    told = page.locator("#roofline .hoverlayer .hovertext").text_content() or ""
    parts = (
        "matmul, torch, bfloat16",
        "M=8192,N=4096,K=4096",
        "time 693.2 us",
        "396.5 TFLOP/s",
        "50.0 % of attainable",
    )
    for part in (*parts, "compute-bound", "up to 2.00x faster"):
        assert part.replace(" ", "") in told.replace(" ", "")


def test_a_click_isolates_the_line_of_a_point(report: Path, open_page: Opener) -> None:
    """Of ten points five are on the line of triton's matmul over M."""
    page = open_page(report)
    at = next(i for i, text in enumerate(drawn(page)["text"]) if "M=1024" in text)
    page.locator("#roofline .points path").nth(at).click(force=True)
    page.wait_for_selector("#everything:visible")
    points = drawn(page)
    assert sum(opacity > 0.5 for opacity in points["opacity"]) == 5
    assert "M=1024,N=4096,K=4096" in page.locator("#detail").inner_text()
    page.locator("#everything").click()
    assert drawn(page)["opacity"] == pytest.approx(0.9)


def test_time_view_draws_what_is_attainable(report: Path, open_page: Opener) -> None:
    """T0 + bytes/BW of M=1: 3 us + 33,570,816 bytes at 3,000 GB/s."""
    page = open_page(report)
    page.locator("#time-axis").select_option("M")
    lines = page.evaluate(
        "document.getElementById('time').data.filter(t => t.meta === 'attainable').map(t => [t.x, t.y])"
    )
    floor = min(y for x, y in zip(*lines[0], strict=True) if x == 1)
    assert floor == pytest.approx(3 + 33_570_816 / 3e6, rel=1e-4)


def test_a_header_sorts_both_ways_by_the_number(report: Path, open_page: Opener) -> None:
    page = open_page(report)
    header = page.locator("#points th button", has_text="time us")
    header.focus()
    page.keyboard.press("Enter")
    assert page.locator("#points th[aria-sort=descending]").inner_text().startswith("time us")
    falling = [float(text.replace(",", "")) for text in column(page, "time us")]
    assert falling == sorted(falling, reverse=True) and falling[0] > 300 > 20 > falling[-1]
    page.keyboard.press("Enter")
    assert [float(text.replace(",", "")) for text in column(page, "time us")] == falling[::-1]


def test_csv_holds_the_rows_that_are_shown(report: Path, open_page: Opener) -> None:
    page = open_page(report)
    page.get_by_label("Words to find in points").fill("matmul torch")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save points as CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text(encoding="utf-8"))))
    assert [row["case"] for row in rows] == ["matmul/torch/bfloat16/M=8192,N=4096,K=4096"]
    assert float(rows[0]["time us"]) == pytest.approx(693.194, rel=1e-5)


def test_names_are_text_and_never_markup(tmp_path: Path, open_page: Opener) -> None:
    """A provider may be called anything: in a script, in the page and in a hover it stays its name."""
    name = "</script><img src=x onerror=alert(1)>&amp;\u2028<b>"
    rows = [synthetic.matmul("<i>run</i>", m, provider=name, device=(800, 3000, 3)) for m in (1, 2)]
    page = open_page(made(tmp_path, (synthetic.H100, rows)))
    assert column(page, "provider") == [name] * 2
    assert page.locator("img:not([src^='data:image/png']), header i, header b b, #sentences b, dd b").count() == 0
    assert "<" not in drawn(page)["text"][0].replace("<br>", "")


def test_the_head_and_the_sections_are_on_the_page(tmp_path: Path, open_page: Opener) -> None:
    """What matters stands at the top, the other reports below, and what is needed to repeat each run."""
    page = open_page(made(tmp_path, (synthetic.H100, [synthetic.matmul("r", m, share=0.5) for m in (1, 2)])))
    assert page.locator("#taken").inner_text().startswith("NVIDIA H100 80GB HBM3; 2026-03-01; ")
    first = "All 2 cases are memory-bound: matmul (2), at 50 % of attainable (median of 2)."
    assert page.locator("#sentences li").all_inner_texts()[0] == first and page.locator("#sentences li").count() == 3
    assert page.locator(".report h2").all_inner_texts() == ["Techniques", "Compile", "Serving", "Comparison"]
    assert page.locator(".report table").first.is_hidden()
    page.locator(".report summary").first.click()
    assert page.locator(".report table").first.is_visible()
    page.locator("#provenance summary").first.click()
    assert page.locator("#provenance dt", has_text="torch").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_nothing_overlaps_or_sticks_out(size: tuple[int, int], scheme: str, report: Path, open_page: Opener) -> None:
    page = open_page(report, size, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    boxes = page.evaluate(
        "() => [...document.querySelectorAll('h1, h2, #theme, #counts li, #warnings, #filters details, #roof-sets,"
        " #layers, #shown, #legend span, .plot, #roof-list li, #time-axis, .bar > *, .scroll')]"
        ".map(e => [e.id || e.textContent,"
        " e.getBoundingClientRect()]).filter(([, b]) => b.width).map(([n, b]) => [n, b.left, b.top, b.right, b.bottom])"
    )
    assert len(boxes) > 20
    for i, (one, left, top, right, bottom) in enumerate(boxes):
        assert left >= 0 and right <= size[0], one
        for other, x0, y0, x1, y1 in boxes[:i]:
            assert left >= x1 - 1 or x0 >= right - 1 or top >= y1 - 1 or y0 >= bottom - 1, (one, other)


def test_three_thousand_points_are_small_and_soon_drawn(large: Path, open_page: Opener) -> None:
    """Under 8 MB; under 3 s to the first picture, the best of three, since other work may run beside it."""
    assert large.stat().st_size < 8e6
    firsts = []
    for _ in range(3):
        page = open_page(large)
        assert len(drawn(page)["x"]) == 3000
        firsts.append(page.evaluate("performance.getEntriesByName('drawn')[0].startTime"))
    assert min(firsts) < 3000, firsts


def test_pairs_of_providers_sort_and_agree_with_the_points(report: Path, open_page: Opener) -> None:
    """The ratio is the time of A over that of B, as the table of points has them; a header sorts by the number."""
    page = open_page(report)
    times: dict[str, float] = {}
    for case, time in zip(column(page, "case"), column(page, "time us"), strict=True):
        times[case] = float(time.replace(",", ""))
    table = page.locator("#against-pairs")
    names = [name.rstrip(" ▾▴") for name in table.locator("th").all_inner_texts()]
    lines = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert lines
    for cells in lines:
        told = dict(zip(names, cells, strict=True))
        op, rest = told["case"].split("/", 1)
        of_a, of_b = (times[f"{op}/{told[side]}/{rest}"] for side in ("provider_a", "provider_b"))
        assert float(told["ratio"]) == pytest.approx(of_a / of_b, rel=2e-3)
    table.get_by_role("button", name="ratio").click()
    at = names.index("ratio") + 1
    ratios = [float(text) for text in table.locator(f"tbody td:nth-child({at})").all_inner_texts()]
    assert ratios == sorted(ratios, reverse=True)
    assert page.locator("#against-families tbody tr").count() >= 1
