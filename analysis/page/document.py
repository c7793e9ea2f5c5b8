"""The page as one text: template, style, scripts and data in a single document that asks the network for nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from analysis.page.headline import Headline
from analysis.page.payload import payload, script_json
from analysis.page.provenance import Rows, caution_lines, warnings
from analysis.page.sections import Section
from analysis.roofline import Device

ASSETS = Path(__file__).parent
SCRIPTS = ("data.js", "filters.js", "roofs.js", "plot.js", "time.js", "table.js", "main.js")
"""In the order that they are run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What the page says in words.

    Attributes:
        title: its heading.
        headline: what matters, at the top.
        lines: under the heading: how cases ended, runs and dates, what the families tell.
        warnings: where the eye is.
        provenance: what the figures rest on.
        runs: run -> what is needed to repeat it.
        sections: the reports beside the points; their HTML is escaped already.
    """

    title: str
    headline: Headline
    lines: Sequence[str] = ()
    warnings: Sequence[str] = ()
    provenance: Sequence[str] = ()
    runs: Mapping[str, Rows] = field(default_factory=dict)
    sections: Sequence[Section] = ()


def document(points: pd.DataFrame, devices: Sequence[Device], text: Text) -> str:
    """The HTML of a report.

    Args:
        points: as `analysis.roofline.points` gives them; may be empty.
        devices: those that the points name.
        text: its words; every one is escaped.
    """
    import jinja2
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_asset("page.html"))
    return template.render(
        text=text,
        warnings=[*text.warnings, *caution_lines(warnings(points), most=1)],
        css=Markup(_asset("page.css")),
        plotly=Markup(get_plotlyjs()),
        scripts=Markup("\n".join(_asset(name) for name in SCRIPTS)),
        data=Markup(script_json(payload(points, devices))),
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
