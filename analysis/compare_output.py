"""A comparison as a table, JSON, Markdown for a pull request, and JUnit XML; nothing is decided here."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pandas as pd

from analysis.compare import Comparison
from analysis.tables import Table, change, markdown, number
from analysis.verdicts import Verdict

JSON_COLUMNS = ("case_id", "baseline_us", "candidate_us", "ratio", "low", "high", "verdict", "reason")
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
QUIET = (Verdict.SAME, Verdict.AMBIGUOUS)
"""Verdicts that a pull request only counts."""


def document(comparison: Comparison) -> dict[str, Any]:
    """The one JSON document; null where there is no number."""
    cases = comparison.cases[list(JSON_COLUMNS)].astype("object")
    return {
        "verdicts": comparison.verdicts(),
        "cases": cases.where(cases.notna(), None).to_dict("records"),
        "exit": comparison.code,
    }


def summary(comparison: Comparison) -> str:
    """How many cases have which verdict: `2 SLOW, 40 SAME`."""
    counts = [f"{count} {verdict}" for verdict, count in comparison.verdicts().items() if count]
    return ", ".join(counts) or "no case"


def table(cases: pd.DataFrame, title: str) -> Table:
    """One row a case."""
    texts = {
        "case": cases["case_id"],
        "baseline us": cases["baseline_us"].map(number),
        "candidate us": cases["candidate_us"].map(number),
        "change": (cases["ratio"] - 1).map(change),
        "low": (cases["low"] - 1).map(change),
        "high": (cases["high"] - 1).map(change),
        "adjusted p": cases["adjusted_p"].map(number),
        "verdict": cases["verdict"],
        "reason": cases["reason"],
    }
    rows = list(zip(*(series.astype("str").tolist() for series in texts.values()), strict=True))
    return Table(title=title, columns=tuple(texts), rows=rows, numeric=frozenset(list(texts)[1:7]))


def markdown_page(comparison: Comparison) -> str:
    """What a pull request shows: the counts, the warnings, and the cases that are more than counted."""
    told = comparison.cases[~comparison.cases["verdict"].isin(QUIET)]
    lines = [f"**{summary(comparison)}** (exit code {comparison.code})", ""]
    lines += [f"* {line}" for line in comparison.warnings]
    page = "\n".join(lines) + "\n"
    return page + ("\n" + markdown(table(told, "Cases"), most=len(told)) if len(told) else "")


def junit(comparison: Comparison, *, strict: bool) -> str:
    """JUnit XML: SLOW fails, INVALID is an error, what was not compared is skipped; nothing compared is an error."""
    wrong = {Verdict.SLOW.value: "failure", Verdict.INVALID.value: "error"}
    wrong |= {v.value: "skipped" for v in (Verdict.NEW, Verdict.MISSING, Verdict.NOT_COMPARABLE)}
    if strict:
        wrong[Verdict.MISSING.value] = "failure"
    suite = ElementTree.Element("testsuite", name="roofmark compare")
    kinds = []
    for case_id, verdict, reason in comparison.cases[["case_id", "verdict", "reason"]].itertuples(index=False):
        _case(suite, case_id, wrong.get(verdict, ""), verdict, reason)
        kinds.append(wrong.get(verdict, ""))
    if comparison.code == 3 and "failure" not in kinds:
        _case(suite, "the comparison", "error", "nothing compared", "no case could be compared")
        kinds.append("error")
    counts = {"tests": len(kinds), "failures": kinds.count("failure")}
    counts |= {"errors": kinds.count("error"), "skipped": kinds.count("skipped")}
    suite.attrib.update({name: str(count) for name, count in counts.items()})
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=False) + "\n"


def _case(suite: ElementTree.Element, name: str, kind: str, verdict: str, reason: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="compare", name=NOT_XML.sub("?", name))
    text = NOT_XML.sub("?", f"{verdict}: {reason}")
    if kind:
        ElementTree.SubElement(case, kind, message=text)
    else:
        ElementTree.SubElement(case, "system-out").text = text
