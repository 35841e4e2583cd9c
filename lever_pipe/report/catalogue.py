"""Texts in a language: English texts are in the code, others in `resources/locale`; a `Translator` writes cells.

Arguments are in braces, `{gap}`; a count includes its noun, `{n:seed|seeds}`. `` `words` `` are code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from babel.messages.pofile import read_po
from markupsafe import Markup, escape

from lever_pipe.base.errors import RecordError
from lever_pipe.report import verdicts
from lever_pipe.report.cells import Cell, Estimate, Message, message

SLOT = re.compile(r"\{(?P<name>\w+)(?::(?P<one>[^{}|]*)\|(?P<many>[^{}|]*))?\}")
CODE = re.compile(r"`([^`]+)`")
JOINTS = {
    "en": {"items": ", ", "list": " and ", "parts": "; ", "sentences": " "},
    "zh": {"items": "、", "list": "和", "parts": "；", "sentences": ""},
}
"""Separators of a list's cells, its last two cells, parts, and sentences."""


def read_translation(path: Path) -> dict[str, str]:
    """Return the translation of each English text in a gettext catalogue."""
    with path.open("rb") as file:
        entries = [(entry.id, entry.string) for entry in read_po(file) if entry.id and entry.string]
    # Of a text with plural forms the first one counts: Chinese has one form.
    return {_first(text): _first(translated) for text, translated in entries}


def _first(text: str | Sequence[str]) -> str:
    return text if isinstance(text, str) else text[0]


@dataclass(frozen=True, slots=True)
class Translator:
    """Formatter of cells in a language; `texts` maps English texts to translations."""

    language: str
    texts: Mapping[str, str] = field(default_factory=dict)

    def text(self, cell: Cell) -> str:
        """Return a cell as plain text; an absent cell as an empty text.

        Raises:
            RecordError: a text lacks an argument.
        """
        return self._write(cell, is_html=False)

    def gettext(self, text: str) -> str:
        """Return the translation of a text, or the text itself if there is none."""
        return self.texts.get(text, text)

    def ngettext(self, singular: str, plural: str, n: int) -> str:
        """Return the translation of a text with a count."""
        return self.texts.get(singular, singular if n == 1 else plural)

    def message(self, text: str, /, **args: Any) -> str:
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
                text = _literal(self.texts.get(cell, cell), is_html=is_html)
                return (
                    f'<span class="verdict {verdicts.CLASSES[cell]}">{text}</span>'
                    if is_html and cell in verdicts.CLASSES
                    else text
                )
            case list() | tuple():
                texts = [text for text in (self._write(item, is_html=is_html) for item in cell) if text]
                return self._join(texts, "list" if isinstance(cell, list) else "parts")
            case Message():
                text = _literal(self.texts.get(cell.text, cell.text), is_html=is_html)
                return self._filled(cell, text, lambda value: self._write(value, is_html=is_html))

    def _filled(self, message: Message, text: str, write: Callable[[Cell], str]) -> str:
        args = dict(message.args)

        def fill(match: re.Match[str]) -> str:
            if match["name"] not in args:
                lacks = f"text '{message.text}': expected the argument '{match['name']}'"
                raise RecordError(lacks, found=", ".join(args) or "none", do="Pass it where the message is made.")
            value = args[match["name"]]
            if match["one"] is None:
                return write(value)
            is_one = (value.value if isinstance(value, Estimate) else value) == 1
            return f"{write(value)} {match['one'] if is_one else match['many']}"

        return SLOT.sub(fill, text)

    def _join(self, texts: list[str], joint: str) -> str:
        joints = JOINTS[self.language]
        if joint != "list" or len(texts) < 2:
            return joints[joint].join(texts)
        return joints["items"].join(texts[:-1]) + joints["list"] + texts[-1]


def _literal(text: str, *, is_html: bool) -> str:
    # Escape first, so that the text cannot contain tags of its own.
    return CODE.sub(r"<code>\1</code>", str(escape(text))) if is_html else CODE.sub(r"\1", text)
