"""Does the page print the numbers of its files, and no other?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html.parser import HTMLParser

from lever_pipe.base.errors import RecordError
from lever_pipe.report.page.numbers import numbers_in

OUTSIDE = "outside of every place"
SILENT = {"script", "style", "template"}
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "wbr"}
LINK_TARGET = re.compile(r"\]\([^)]*\)")


def audit_html(html: str, spoken: Mapping[str, Sequence[str]]) -> None:
    """Compare the visible numbers of every `data-place` of a page with those of the texts that belong there.

    Raises:
        RecordError: a place prints a number that its files do not hold, or lacks one that they hold.
    """
    reader = _PageReader()
    reader.feed(html)
    reader.close()
    for place in [*spoken, *(name for name in reader.shown if name not in spoken)]:
        _compare(place, reader.shown.get(place, []), spoken.get(place, ()))


def audit_markdown(text: str, spoken: Mapping[str, Sequence[str]]) -> None:
    """Compare the numbers of a Markdown page, links aside, with those of all texts in it.

    Raises:
        RecordError: the page prints a number that no file holds, or lacks one.
    """
    _compare(
        "report.md", LINK_TARGET.sub("]", text).splitlines(), [line for lines in spoken.values() for line in lines]
    )


def _compare(place: str, shown: Sequence[str], sources: Iterable[str]) -> None:
    printed, held = _count(shown), _count(sources)
    for number in printed - held:
        line = next(" ".join(text.split()) for text in shown if number in numbers_in(text))
        raise RecordError(
            f"{place}: expected only numbers that a file of this run holds",
            found=f"{number} in '{line[:120]}'",
            do="Take the number from a table; the page computes nothing.",
        )
    for number in held - printed:
        raise RecordError(
            f"{place}: expected every number of its files",
            found=f"{number} is not shown",
            do="Let the template print the whole table or text.",
        )


def _count(texts: Iterable[str]) -> Counter[str]:
    return Counter(number for text in texts for number in numbers_in(text))


class _PageReader(HTMLParser):
    """Collects the visible texts of each place; a place within a place has its own."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[str, list[str]] = {}
        self.open: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("data-place") or ""))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if any(tag in SILENT for tag, _ in self.open):
            return
        place = next((name for _, name in reversed(self.open) if name), OUTSIDE)
        self.shown.setdefault(place, []).append(data)
