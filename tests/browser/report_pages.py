"""One Chromium for all tests, and pages that are watched: a console error or a request to a network fails the test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import synthetic
from playwright.sync_api import Browser, Page, sync_playwright
from typer.testing import CliRunner

from analysis.__main__ import app
from bench.record import Environment, Record

Opener = Callable[..., Page]
WIDE, PHONE = (1400, 900), (400, 800)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium, without a screen."""
    path = shutil.which("chromium")
    assert path, "chromium is missing: apt-get install chromium"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Opener]:
    """Opens a report's file and waits until it is drawn; fails at the end where it complained or asked a network."""
    problems: list[str] = []
    pages: list[Page] = []

    def opened(file: Path, size: tuple[int, int] = WIDE, scheme: str = "light") -> Page:
        page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)  # type: ignore[arg-type]
        pages.append(page)
        page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request", lambda r: problems.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None
        )
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        return page

    yield opened
    for page in pages:
        page.close()
    assert problems == []


def made(directory: Path, *runs: tuple[Environment, list[Record]]) -> Path:
    """report.html of some runs."""
    files = [synthetic.write(directory / rows[0].run, rows[0].run, environment, rows) for environment, rows in runs]
    done = CliRunner().invoke(app, ["report", *map(str, files), "-o", str(directory / "report")])
    assert done.exit_code == 0, done.output
    return directory / "report" / "report.html"


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten points of an H100 with roofs of 800 TFLOP/s, 3,000 GB/s and 3 us; one is overhead-bound, two published."""
    rows = synthetic.roofs("one", {"bfloat16": 800.0}, 3000.0, 3.0)
    rows += [synthetic.matmul("one", m, device=(800, 3000, 3)) for m in (1, 16, 64, 1024, 8192)]
    rows += [synthetic.matmul("one", 8192, provider="torch", device=(800, 3000, 3), share=0.5)]
    rows += [synthetic.attention("one", 1, 1, 256, device=(800, 3000, 3))]
    rows += [synthetic.attention("one", 8, 1, 65536, device=(800, 3000, 3))]
    rows += [synthetic.matmul("one", m, provider="vllm", timer="published", share=0.6) for m in (1, 8192)]
    return made(tmp_path_factory.mktemp("report"), (synthetic.H100, rows))


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 points: matmuls of 50 M by 12 N by 5 providers."""
    rows = [
        synthetic.matmul("large", 1 + 97 * i, 1024 * n, 4096, provider=provider, share=0.3 + 0.01 * (i % 60))
        for i in range(50)
        for n in range(1, 13)
        for provider in ("triton", "torch", "vllm", "sglang", "trtllm")
    ]
    return made(tmp_path_factory.mktemp("large"), (synthetic.H100, rows))
