"""The pages of a run as HTML, each one file that needs no other."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import jinja2
from markupsafe import Markup

from lever_pipe.report.cards import Card
from lever_pipe.report.catalogue import Voice
from lever_pipe.report.cells import Cell, say
from lever_pipe.report.contents import MAIN, PAGES, Contents
from lever_pipe.report.page import dots, drawings, grids, samples
from lever_pipe.report.table import Table

LANGUAGES = {"en": "English", "zh": "中文"}
FOLDER = "report"
"""Of the appendix and the other language, beside the main page."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What every page has around its contents."""

    template: str
    style: str
    script: str


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A figure: the section it stands in, its SVG text, and its file beside the main page."""

    section: str
    svg: str
    file: str


@dataclass(frozen=True, slots=True)
class Exhibits:
    """What is shown as it was made: the figures of a language by name, gallery and dialogues."""

    figures: Mapping[str, PageFigure] = field(default_factory=dict)
    gallery: samples.Json | None = None
    dialogues: samples.Json | None = None


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of a page, as HTML."""

    id: str
    title: Markup
    texts: Sequence[Markup]
    blocks: Sequence[Markup]
    entries: Sequence[tuple[str, Markup]]


@dataclass(frozen=True, slots=True)
class ShownCard:
    """A card, as HTML."""

    title: Markup
    headline: Markup
    detail: Markup
    plot: Markup
    notes: Markup
    links: Sequence[tuple[str, Markup]]


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """What the template of a page takes."""

    language: str
    is_main: bool
    title: str
    lead: Markup
    cards: Sequence[ShownCard]
    sections: Sequence[PageSection]
    pages: Sequence[tuple[str, Markup]]
    other: tuple[str, str, str]
    home: str
    home_title: str


def file_of(page: str, language: str, first: str) -> str:
    """Return a page's path beside the main page of the first language, `report.html`."""
    if page == MAIN and language == first:
        return f"{MAIN}.html"
    return f"{FOLDER}/{page}{'' if language == first else f'.{language}'}.html"


def link(to: str, start: str) -> str:
    """Return the relative link from one page's file to another file, both beside the main page."""
    if not start.startswith(f"{FOLDER}/"):
        return to
    return to.removeprefix(f"{FOLDER}/") if to.startswith(f"{FOLDER}/") else f"../{to}"


def html_pages(
    contents: Contents, drawn: Exhibits, voice: Voice, *, title: Cell, lead: Cell, first: str, frame: Frame
) -> Iterator[tuple[str, str]]:
    """Yield every page of a language as its path beside the main page, and its text.

    Args:
        contents: what they say.
        drawn: what they show.
        voice: of the language.
        title: of the run.
        lead: line below the title.
        first: language of the configuration, whose main page is `report.html`.
        frame: template, style and script.
    """
    made = _Maker(contents, drawn, voice, first)
    shown = [page for page in PAGES if page == MAIN or made.is_filled(page)]
    render = _renderer(frame, voice)
    for page in shown:
        yield made.file(page), render(made.page(page, shown, title, lead))


class _Maker:
    """The pages of one language while they are made."""

    def __init__(self, contents: Contents, drawn: Exhibits, voice: Voice, first: str) -> None:
        self.contents, self.drawn, self.voice, self.first = contents, drawn, voice, first

    def file(self, page: str) -> str:
        return file_of(page, self.voice.language, self.first)

    def is_filled(self, page: str) -> bool:
        return any(self._has(section) for section in PAGES[page])

    def page(self, page: str, shown: Sequence[str], title: Cell, lead: Cell) -> HtmlPage:
        language, here = self.voice.language, self.file(page)
        other = next(each for each in LANGUAGES if each != language)
        is_main = page == MAIN
        sections = [self._section(section, here) for section in PAGES[page] if self._has(section)]
        others = [each for each in shown if each not in (page, MAIN)]
        return HtmlPage(
            language=language,
            is_main=is_main,
            title=self.voice.text(title if is_main else say(f"page.{page}.title")),
            lead=self.voice.html(lead if is_main else say(f"page.{page}.lead")),
            cards=[self._card(card, shown, here) for card in self.contents.cards] if is_main else [],
            sections=sections,
            pages=[(link(self.file(each), here), self.voice.html(say(f"page.{each}.title"))) for each in others],
            other=(link(file_of(page, other, self.first), here), other, LANGUAGES[other]),
            home=link(self.file(MAIN), here),
            home_title=self.voice.text(title),
        )

    def _has(self, section: str) -> bool:
        return bool(
            self.contents.tables.get(section)
            or self.contents.texts.get(section)
            or any(drawing.section == section for drawing in self.drawn.figures.values())
        )

    def _section(self, section: str, here: str) -> PageSection:
        tables = self.contents.tables.get(section, ())
        texts = [self.voice.html(text) for text in self.contents.texts.get(section, ())]
        lead = f"section.{section}.lead"
        if lead in self.voice.texts:
            texts.insert(0, self.voice.html(say(lead)))
        title = self.voice.html(say(f"section.{section}.title"))
        entries = [(table.id, self.voice.html(table.title)) for table in tables]
        return PageSection(section, title, texts, [*self._blocks(section, tables, here)], entries)

    def _blocks(self, section: str, tables: Sequence[Table], here: str) -> Iterator[Markup]:
        if section != "agent":
            yield from self._figures(section, here)
        for table in tables:
            csv = link(f"{FOLDER}/tables/{table.id}.csv", here)
            yield Markup(grids.html(table, self.voice, csv=csv))
        if section == "agent":
            yield from self._figures(section, here)
            yield samples.dialogues(self.drawn.dialogues, self.voice)
        elif section == "selector":
            yield samples.gallery(self.drawn.gallery, self.voice)

    def _figures(self, section: str, here: str) -> Iterator[Markup]:
        for name, drawing in self.drawn.figures.items():
            if drawing.section == section:
                title, caption = (say(f"figure.{name}.{kind}") for kind in ("title", "caption"))
                text = self.voice.text(title)
                plot = drawings.inline(drawing.svg, source=drawing.file, name=name, title=text)
                told = self.voice.html(say("page.figure", title=title, caption=caption))
                file = f'<a class="file" href="{link(drawing.file, here)}">SVG</a>'
                caption_of = f"<figcaption>{told} {file}</figcaption>"
                yield Markup(f'<figure id="figure-{name}"><div class="scroll">{plot}</div>{caption_of}</figure>')

    def _card(self, card: Card, shown: Sequence[str], here: str) -> ShownCard:
        say_html = self.voice.html
        targets = [(self._target(target, shown, here), say_html(text)) for target, text in card.links]
        links = [(target, text) for target, text in targets if target]
        plot = dots.plot(card, self.voice)
        return ShownCard(
            say_html(card.title), say_html(card.headline), say_html(card.detail), plot, say_html(card.notes), links
        )

    def _target(self, target: str, shown: Sequence[str], here: str) -> str:
        """Return the link to a page, or to a section or table of the main one; nothing where this run has none."""
        page, _, anchor = target.partition("#")
        if page:
            page = page.removesuffix(".html")
            return link(self.file(page), here) if page in shown else ""
        if anchor in PAGES[MAIN]:
            return target if self._has(anchor) else ""
        ids = {table.id for section in PAGES[MAIN] for table in self.contents.tables.get(section, ())}
        return f"#table-{anchor}" if anchor in ids else ""


def _renderer(frame: Frame, voice: Voice) -> Callable[[HtmlPage], str]:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=True
    )
    template = environment.from_string(frame.template)
    policy = "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_hash(frame.style)}'",
            f"script-src '{_hash(frame.script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    own = {"style": Markup(frame.style), "script": Markup(frame.script), "policy": policy}

    def render(page: HtmlPage) -> str:
        return template.render(page=page, say=lambda name: voice.text(say(name)), **own) + "\n"

    return render


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
