"""Texts in a language: English texts are in the code, others in `resources/locale`; a `Translator` writes cells.

Arguments are in braces, `{gap}`. `` `words` `` are code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path
from typing import Any

from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from markupsafe import Markup, escape

from lever_pipe.base.errors import RecordError
from lever_pipe.report import verdicts
from lever_pipe.report.cells import Cell, Estimate, Message, message

CODE = re.compile(r"`([^`]+)`")
JOINTS = {
    "en": {"items": ", ", "list": " and ", "parts": "; ", "sentences": " "},
    "zh": {"items": "、", "list": "和", "parts": "；", "sentences": ""},
}
"""Separators of a list's cells, its last two cells, parts, and sentences."""


def read_translation(path: Path) -> NullTranslations:
    """Return the translations of a gettext catalogue."""
    compiled = BytesIO()
    with path.open("rb") as file:
        write_mo(compiled, read_po(file))
    compiled.seek(0)
    return GNUTranslations(compiled)


@dataclass(frozen=True, slots=True)
class Translator:
    """Formatter of cells in a language."""

    language: str
    catalogue: NullTranslations = field(default_factory=NullTranslations)

    def text(self, cell: Cell) -> str:
        """Return a cell as plain text; an absent cell as an empty text.

        Raises:
            RecordError: a text lacks an argument.
        """
        return self._write(cell, is_html=False)

    def message(self, text: str | tuple[str, str], /, **args: Any) -> str:
        """Return a message as plain text."""
        return self.text(message(text, **args))

    def html(self, cell: Cell) -> Markup:
        """Return a cell as HTML; each number is in an element that names its line of the evidence file."""
        return Markup(self._write(cell, is_html=True))

    def _write(self, cell: Cell, *, is_html: bool) -> str:
        match cell:
            case None:
                return ""
            case int():
                return f"{cell:,}"
            case float():
                return f"{cell:g}"
            case Estimate():
                return cell.__html__() if is_html else str(cell)
            case str():
                # The catalogue's entry without a text contains its head.
                text = _literal(cell and self.catalogue.gettext(cell), is_html=is_html)
                is_verdict = is_html and cell in verdicts.CLASSES
                return f'<span class="verdict {verdicts.CLASSES[cell]}">{text}</span>' if is_verdict else text
            case list() | tuple():
                texts = [text for text in (self._write(item, is_html=is_html) for item in cell) if text]
                return self._join(texts, "list" if isinstance(cell, list) else "parts")
            case Message():
                values = dict(cell.args)
                args = {name: self._write(value, is_html=is_html) for name, value in values.items()}
                n: Any = values.get("n")
                if isinstance(cell.text, str):
                    text = self.catalogue.gettext(cell.text)
                else:
                    text = self.catalogue.ngettext(*cell.text, int(n.value if isinstance(n, Estimate) else n))
                try:
                    return _literal(text, is_html=is_html).format_map(args)
                except KeyError as error:
                    lacks = f"text {cell.text!r}: expected the argument {error}"
                    do = "Pass it where the message is made."
                    raise RecordError(lacks, found=", ".join(args) or "none", do=do) from None

    def _join(self, texts: list[str], joint: str) -> str:
        joints = JOINTS[self.language]
        if joint != "list" or len(texts) < 2:
            return joints[joint].join(texts)
        return joints["items"].join(texts[:-1]) + joints["list"] + texts[-1]


def _literal(text: str, *, is_html: bool) -> str:
    # Escape first, so that the text cannot contain tags of its own.
    return CODE.sub(r"<code>\1</code>", str(escape(text))) if is_html else CODE.sub(r"\1", text)
