"""Markdown of this suite's reports as HTML for the page: tables with headers, small pictures inline, nothing fetched.

Raw HTML in the Markdown is shown as text. A link that leads nowhere from a single file is left as its words.
"""

from __future__ import annotations

import base64
from collections.abc import MutableMapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it.token import Token

MOST_PICTURE = 200_000
"""Bytes of a PNG that is put into the page; a larger one is named."""


def html_of(text: str, title: str, directory: Path | None = None) -> str:
    """The HTML of a Markdown text, without its first heading; other headings start at h3.

    Args:
        text: CommonMark with tables.
        title: names the tables for those who do not see them.
        directory: where its pictures lie; None: none are shown.
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = _without_title(parser.parse(text))
    for token in tokens:
        _fitted(token)
        token.children = _inline(token.children or [], directory)
    rendered = str(parser.renderer.render(tokens, parser.options, _no_environment()))
    region = f'<div class="wide" role="region" tabindex="0" style="overflow-x:auto" aria-label="{escape(title)}">'
    return rendered.replace("<table>", f"{region}<table>").replace("</table>", "</table></div>")


def _no_environment() -> MutableMapping[str, Any]:
    return {}


def _without_title(tokens: Sequence[Token]) -> list[Token]:
    first = next((i for i, t in enumerate(tokens) if t.type == "heading_open" and t.tag == "h1"), None)
    return [t for i, t in enumerate(tokens) if first is None or not first <= i < first + 3]


def _fitted(token: Token) -> None:
    """Headings two levels down from a page of their own; header cells that say what they head; numbers right."""
    if token.type in ("heading_open", "heading_close"):
        token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"
    elif token.type == "th_open":
        token.attrSet("scope", "col")
    if token.type in ("th_open", "td_open") and "right" in str(token.attrs.pop("style", "")):
        token.attrSet("class", "num")


def _inline(tokens: Sequence[Token], directory: Path | None) -> list[Token]:
    kept = []
    shown: list[bool] = []
    for token in tokens:
        if token.type == "link_open":
            shown.append(str(token.attrGet("href") or "").startswith(("https://", "http://")))
            token.attrSet("rel", "noreferrer")
        if token.type == "image":
            _embed(token, directory)
        if token.type not in ("link_open", "link_close") or shown[-1]:
            kept.append(token)
        if token.type == "link_close":
            shown.pop()
    return kept


def _embed(token: Token, directory: Path | None) -> None:
    """The picture as data; where it is not small or not there, its words in its place."""
    name = Path(str(token.attrGet("src") or "")).name
    path = directory / name if directory else None
    if path and path.suffix == ".png" and path.is_file() and path.stat().st_size <= MOST_PICTURE:
        token.attrSet("src", "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii"))
        token.attrSet("style", "max-width:100%;height:auto")
    else:
        where = f" (in {path})" if path and path.is_file() else ""
        token.type, token.tag, token.content = "text", "", f"{token.content}: not in this file{where}"
        token.attrs, token.children = {}, None
