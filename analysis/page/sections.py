"""The sections of a page beside its points: techniques, compile, serving, comparison; each the Markdown of its report.

What the runs do not hold comes from `reports/` where the suite keeps it; what is nowhere is left out with a line that
says how to make it. The figures themselves are left to those reports.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.page.rendered import html_of
from bench.record import RecordError

REPORTS = Path("reports")
TOLD = {
    "validation.md": "serving", "comparison.md": "comparison", "compiled.jsonl": "compile", "changes.md": "compile",
    "matmul.md": "techniques",
}  # fmt: skip
"""File -> what a directory with it holds."""
MOST_CASES = 40
"""Cases of a comparison's JSON that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section. `text` is Markdown, `html` the same, escaped, without its title."""

    title: str
    html: str
    text: str


def kind_of(path: Path) -> str:
    """records, compile, serving, comparison or techniques: what a path given to the report holds."""
    if path.suffix == ".json":
        return "comparison"
    if path.name == "compiled.jsonl":
        return "compile"
    if not path.is_dir() or (path / "records.jsonl").is_file():
        return "records"
    return next((kind for name, kind in TOLD.items() if (path / name).is_file()), "records")


def sections(paths: Sequence[Path], reports: Path = REPORTS) -> list[Section]:
    """Techniques, compile, serving and comparison, in this order.

    Args:
        paths: what the report was given; those that hold records of cases give a comparison where there are two.
        reports: where the suite keeps what the paths do not hold.

    Raises:
        RecordError: compile records or a comparison that cannot be used.
    """
    given: dict[str, list[Path]] = {}
    for path in paths:
        given.setdefault(kind_of(path), []).append(path)
    techniques = (given.get("techniques") or [reports / "techniques"])[0]
    serving = (given.get("serving") or [reports / "serving"])[0]
    return [
        _section("Techniques", _techniques(), techniques),
        *_compile(given.get("compile", []), reports / "compile-sm90"),
        _serving(serving),
        *_comparisons(given.get("comparison", []), given.get("records", [])),
    ]


def _section(title: str, text: str, directory: Path | None = None) -> Section:
    return Section(title=title, html=html_of(text, title, directory), text=text)


def _techniques() -> str:
    """Both pages, counted anew: they need no run."""
    from analysis import matmul_page, techniques_report
    from analysis.techniques import gains

    attention = techniques_report.page(techniques_report.frame(gains()))
    return attention + "\n#" + matmul_page.page(matmul_page.formats())


def _compile(given: Sequence[Path], kept: Path) -> list[Section]:
    if given:
        return [section for path in given for section in _compiled(path)]
    page = kept / "table.md"
    if page.is_file():
        return [_section("Compile", page.read_text(encoding="utf-8"), kept)]
    how = f"No compile records were given and none lie in {kept}: `python -m bench compile -o DIR` makes them."
    return [_section("Compile", how)]


def _compiled(path: Path) -> list[Section]:
    """A section for each arch of a directory of `bench compile`."""
    from analysis.compile_page import page
    from analysis.compiled import load_kernels

    if path.is_dir() and not (path / "compiled.jsonl").is_file():
        return [_section("Compile: changes", (path / "changes.md").read_text(encoding="utf-8"), path)]
    _, failed, kernels = load_kernels(path)
    directory = path if path.is_dir() else path.parent
    made = []
    for arch in sorted({kernel.record.arch for kernel in kernels}):
        same = [kernel for kernel in kernels if kernel.record.arch == arch]
        title = f"Compile: what Triton {same[0].record.triton} made for sm_{arch}"
        text = page(same, [record for record in failed if record.arch == arch], title, "pipes.png")
        made.append(_section(title, text, directory))
    return made or [_section("Compile", f"No case in {path} compiled.")]


def _serving(directory: Path) -> Section:
    found = [directory / name for name in ("validation.md", "README.md") if (directory / name).is_file()]
    if not found:
        how = "`python -m analysis validate -o reports/serving` and `python -m analysis serving-report` make it."
        return _section("Serving", f"No serving predictions lie in {directory}: {how}")
    texts = [path.read_text(encoding="utf-8") for path in found]
    return _section("Serving", "\n#".join(texts), directory)


def _comparisons(given: Sequence[Path], records: Sequence[Path]) -> list[Section]:
    made = [_given_comparison(path) for path in given]
    if len(records) == 2:
        made.append(_section("Comparison", _compared(*records)))
    how = (
        "Two runs of one device given to the report are compared here; `python -m analysis compare OLD NEW` asks more."
    )
    return made or [_section("Comparison", how)]


def _given_comparison(path: Path) -> Section:
    if path.suffix != ".json":
        return _section(f"Comparison of {path.name}", (path / "comparison.md").read_text(encoding="utf-8"), path)
    return _section(f"Comparison of {path.name}", _of_json(path))


def _of_json(path: Path) -> str:
    """The document of `analysis compare --json` as a table."""
    from analysis.tables import Table, change, markdown, number

    try:
        told = json.loads(path.read_text(encoding="utf-8-sig"))
        counts = ", ".join(f"{count} {verdict}" for verdict, count in told["verdicts"].items() if count)
        rows: list[tuple[str, ...]] = [
            (
                str(c["case_id"]), number(c["baseline_us"]), number(c["candidate_us"]),
                change(None if c["ratio"] is None else c["ratio"] - 1), str(c["verdict"]), str(c["reason"]),
            )
            for c in told["cases"]
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path}: not a document of `analysis compare --json`: {error!r}") from error
    columns = ("case", "baseline us", "candidate us", "change", "verdict", "reason")
    table = Table(title="Cases", columns=columns, rows=rows[:MOST_CASES], numeric=frozenset(columns[1:4]))
    rest = f"\n{len(rows) - MOST_CASES} more in {path.name}.\n" if len(rows) > MOST_CASES else ""
    return f"**{counts or 'no case'}** (exit code {told.get('exit')})\n\n{markdown(table)}{rest}"


def _compared(baseline: Path, candidate: Path) -> str:
    """The first run against the second, as `analysis compare` judges them by its usual threshold."""
    from analysis.cmd_roofline import run_lines
    from analysis.compare import compare
    from analysis.compare_report import page
    from analysis.sides import side_of
    from analysis.verdicts import COMPARED, Rules

    sides = [side_of([path]) for path in (baseline, candidate)]
    found = compare(sides[0].frame, sides[1].frame, Rules())
    if not found.cases["verdict"].isin(COMPARED).any():
        return f"The runs in {baseline} and {candidate} share no case that can be compared."
    names = ("baseline", "candidate")
    told = [f"{name}: {line}" for name, side in zip(names, sides, strict=True) for line in run_lines(side)]
    lines = page(found, told).split("\n")
    return "\n".join(line for line in lines if not line.startswith("!["))
