"""A page through its templates: one HTML file that needs no other, and one Markdown file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence

import jinja2
from markupsafe import Markup, escape

from lever_pipe.report.page.compose import Page
from lever_pipe.report.page.tables import ColumnView, RowView
from lever_pipe.report.tables.table import markdown_grid

CODE = re.compile(r"`([^`]+)`")
STRESS = re.compile(r"(?<![\w*])\*([^*`\s][^*`]*)\*(?![\w*])", re.ASCII)
TAG = re.compile(r"<(?=[A-Za-z/!?])")


def html(page: Page, *, template: str, style: str, script: str) -> str:
    """Return the page as HTML; its policy lets it run this style and this script, and load nothing.

    A name that the template misspells is an error, not an empty text; every text is escaped.
    """
    environment = _environment(autoescape=True)
    environment.filters |= {"inline": _inline, "head": _head}
    policy = "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    own = {"style": Markup(style), "script": Markup(script)}
    return environment.from_string(template).render(page=page, policy=policy, **own) + "\n"


def markdown(page: Page, *, template: str) -> str:
    """Return the page as Markdown; a name that the template misspells is an error."""
    environment = _environment(autoescape=False)
    environment.finalize = _without_tags
    environment.filters["grid"] = _grid
    text = environment.from_string(template).render(page=page)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _environment(*, autoescape: bool) -> jinja2.Environment:
    return jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=autoescape
    )


def _inline(text: str) -> Markup:
    """Return a text with `code` and *stress* as elements, all else escaped."""
    marked = CODE.sub(r"<code>\1</code>", str(escape(text)))
    return Markup(STRESS.sub(r"<em>\1</em>", marked))


def _head(text: str) -> Markup:
    """Return a column's head, which may break behind `KL_BETA=`."""
    return Markup(str(_inline(text)).replace("=", "=<wbr>"))


def _without_tags(value: object) -> object:
    """Return a text whose `<` opens no HTML tag; Markdown passes tags on."""
    return TAG.sub(r"\\<", value) if isinstance(value, str) else value


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _grid(rows: Sequence[RowView], columns: Sequence[ColumnView]) -> str:
    return markdown_grid([column.head for column in columns], [_line(row) for row in rows])


def _line(row: RowView) -> list[str]:
    cells = [cell.whole for cell in row.cells]
    return [f"{cells[0]} ({row.marks})" if row.marks else cells[0], *cells[1:]]
