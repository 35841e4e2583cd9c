"""The main page as Markdown, and its answers as plain text."""

from __future__ import annotations

from lever_pipe.report.cards import Card
from lever_pipe.report.catalogue import Voice
from lever_pipe.report.cells import Cell
from lever_pipe.report.contents import MAIN, PAGES, SECTIONS, Contents
from lever_pipe.report.format import without_html
from lever_pipe.report.table import as_markdown


def markdown(contents: Contents, voice: Voice, *, title: Cell, lead: Cell) -> str:
    """Return the answers, sentences and tables of the main page."""
    said = [f"# {voice.text(title)}", voice.text(lead)]
    for card in contents.cards:
        said += [f"## {voice.text(card.title)}", _answer(card, voice), voice.text(card.notes)]
    parts = list(map(without_html, said))
    for section in PAGES[MAIN]:
        texts, tables = contents.texts.get(section, ()), contents.tables.get(section, ())
        if texts or tables:
            head, first = SECTIONS[section]
            parts += [f"## {voice.say(head)}", voice.say(first)]
            parts += [without_html(voice.text(text)) for text in texts]
            parts += [as_markdown(table, voice).strip() for table in tables]
    return "\n\n".join(part for part in parts if part) + "\n"


def answers(contents: Contents, voice: Voice) -> str:
    """Return each question with its answer in a line of its own."""
    return "".join(f"{voice.text(card.title)} {_answer(card, voice)}\n" for card in contents.cards)


def _answer(card: Card, voice: Voice) -> str:
    return " ".join(filter(None, (voice.text(card.headline), voice.text(card.detail))))
