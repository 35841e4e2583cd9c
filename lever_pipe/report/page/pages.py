"""The pages of a run as HTML, each a self-contained file."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import jinja2
from markupsafe import Markup

from lever_pipe.report.catalogue import JOINTS, Translator
from lever_pipe.report.cells import Cell, Estimate, code, message, numbers_in
from lever_pipe.report.contents import ENGLISH, MAIN, PAGES, Contents
from lever_pipe.report.format import ABSENT
from lever_pipe.report.page import drawings
from lever_pipe.report.summaries import Summary

LANGUAGES = {"en": "English", "zh": "中文"}
FOLDER = "report"
"""Folder of the appendix and the other language, next to the main page."""
LONG = 21
"""Number of lines from which a table is folded."""
NOTHING = Markup(f'<span class="absent" aria-hidden="true">{ABSENT}</span>')
PERCENT = re.compile(r"(?<=\d) %")
"""The space before a percent sign, where a line must not break."""
Json: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Frame:
    """Parts that all pages share."""

    templates: Mapping[str, str]
    """By name: `page`, `blocks` of its sections, and `sentences`."""
    style: str
    script: str


def frame_of(templates: Sequence[Path], style: Path, script: Path) -> Frame:
    """Return the frame from its files: templates `NAME.html.j2`, a style sheet and a script."""
    texts = {path.name.partition(".")[0]: path.read_text(encoding="utf-8") for path in templates}
    return Frame(texts, style.read_text(encoding="utf-8"), script.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A figure: its section, its SVG text, and its file next to the main page."""

    section: str
    svg: str
    file: str


@dataclass(frozen=True, slots=True)
class Exhibits:
    """Exhibits of the pages: the figures of a language by name, the gallery and the dialogues."""

    figures: Mapping[str, PageFigure] = field(default_factory=dict)
    cards: Mapping[str, str] = field(default_factory=dict)
    """The plots of the summaries by id, as SVG."""
    gallery: Json | None = None
    dialogues: Json | None = None


def file_of(page: str, language: str, first: str) -> str:
    """Return a page's path next to the main page of the first language, `report.html`."""
    if page in ENGLISH:
        return f"{FOLDER}/{page}.html"
    if page == MAIN and language == first:
        return f"{MAIN}.html"
    return f"{FOLDER}/{page}{'' if language == first else f'.{language}'}.html"


def link(to: str, start: str) -> str:
    """Return the relative link from one page's file to another file, both next to the main page."""
    if not start.startswith(f"{FOLDER}/"):
        return to
    return to.removeprefix(f"{FOLDER}/") if to.startswith(f"{FOLDER}/") else f"../{to}"


def html_pages(
    contents: Contents,
    exhibits: Exhibits,
    translator: Translator,
    *,
    title: Cell,
    subtitle: Json,
    first: str,
    frame: Frame,
) -> Iterator[tuple[str, str]]:
    """Yield every page of a language: its path next to the main page, and its text.

    Args:
        contents: contents of the pages.
        exhibits: figures, gallery and dialogues.
        translator: of the language.
        title: of the run.
        subtitle: facts of the line below the title.
        first: language of the configuration, whose main page is `report.html`.
        frame: templates, style and script.
    """
    filled = environment(frame, translator)
    texts: Any = filled.get_template("sentences").module
    maker = _Maker(contents, exhibits, translator, first, texts)
    pages = [page for page in PAGES if page == MAIN or any(map(maker.has, PAGES[page]))]
    written = [page for page in pages if page not in ENGLISH or translator.language == "en"]
    template = filled.get_template("page")
    for page in written:
        is_main = page == MAIN
        title_of, subtitle_of = (title, subtitle) if is_main else texts.pages[page]
        values = {"run": title, **maker.values(page, pages)}
        text = template.render(title=title_of, subtitle=subtitle_of, **values)
        yield maker.file(page), PERCENT.sub("\N{NO-BREAK SPACE}%", text) + "\n"


def value_of(cell: Cell) -> float | None:
    """Return the sort value of a cell: its number, or the first number in its words; None without one."""
    if isinstance(cell, int):
        return float(cell)
    value = next((number.value for number in numbers_in(cell)), math.nan)
    return None if math.isnan(value) else value


def environment(frame: Frame, translator: Translator) -> jinja2.Environment:
    """Return the Jinja environment of a language."""
    filled = jinja2.Environment(
        loader=jinja2.DictLoader(dict(frame.templates)),
        # A missing fact must fail instead of printing nothing.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        extensions=["jinja2.ext.i18n", "jinja2.ext.do"],
    )
    filled.install_gettext_translations(translator.catalogue, newstyle=True)  # type: ignore[attr-defined]
    sentence_joint = JOINTS[translator.language]["sentences"]
    filled.globals |= {
        "absent": NOTHING,
        "codes": lambda names: translator.html(list(map(code, names))),
        "html": translator.html,
        "is_number": lambda cell: isinstance(cell, Estimate | int | None),
        "joined": lambda sentences: Markup(sentence_joint).join(map(translator.html, sentences)),
        "language": translator.language,
        "listed": lambda cells: translator.html(list(cells)),
        "long": LONG,
        "message": translator.message,
        "parts": lambda cells: translator.html(tuple(cells)),
        "policy": _policy(frame),
        "script": Markup(frame.script),
        "space": sentence_joint,
        "style": Markup(frame.style),
        "text": translator.text,
        "value_of": value_of,
        "words": lambda text, **args: translator.html(message(text, **args)),
    }
    return filled


@dataclass(frozen=True, slots=True)
class _Maker:
    """Builder of the pages of one language; `texts` is the module of `sentences.html.j2`."""

    contents: Contents
    exhibits: Exhibits
    translator: Translator
    first: str
    texts: Any

    def file(self, page: str) -> str:
        return file_of(page, self.translator.language, self.first)

    def has(self, section: str) -> bool:
        contents = self.contents.tables.get(section) or self.contents.facts.get(section)
        return bool(contents) or any(figure.section == section for figure in self.exhibits.figures.values())

    def values(self, page: str, pages: Sequence[str]) -> dict[str, Any]:
        """Return the template's values for a page, except its title and subtitle."""
        here = self.file(page)
        other = next(language for language in LANGUAGES if language != self.translator.language)
        others = [each for each in pages if each not in (page, MAIN)]
        there = None if page in ENGLISH else link(file_of(page, other, self.first), here)
        return {
            "is_main": page == MAIN,
            "summaries": [self._summary(summary, pages, here) for summary in self.contents.summaries]
            if page == MAIN
            else [],
            "sections": [self._section(section, here) for section in PAGES[page] if self.has(section)],
            "pages": [(link(self.file(each), here), self.texts.pages[each][0]) for each in others],
            "other": (there, other, LANGUAGES[other]),
            "home": link(self.file(MAIN), here),
            "gallery": self.exhibits.gallery,
            "dialogues": self.exhibits.dialogues,
        }

    def _section(self, section: str, here: str) -> dict[str, Any]:
        title, subtitle = self.texts.sections[section]
        return {
            "id": section,
            "title": title,
            "subtitle": subtitle,
            "facts": self.contents.facts.get(section),
            "figures": [
                self._figure(name, figure, here)
                for name, figure in self.exhibits.figures.items()
                if figure.section == section
            ],
            "tables": [
                (table, link(f"{FOLDER}/tables/{table.id}", here)) for table in self.contents.tables.get(section, ())
            ],
        }

    def _figure(self, name: str, figure: PageFigure, here: str) -> tuple[str, Markup, str, tuple[Cell, Cell]]:
        title, caption = self.texts.captions[name]
        plot = drawings.inline(figure.svg, source=figure.file, name=name, title=title)
        return name, plot, link(figure.file, here), (title, caption)

    def _summary(self, summary: Summary, pages: Sequence[str], here: str) -> tuple[Summary, Markup, Sequence[Any]]:
        """Return a summary with its plot, and its links to parts of this run."""
        links = [(target, text) for to, text in summary.links if (target := self._target(to, pages, here))]
        if summary.id not in self.exhibits.cards:
            return summary, Markup(), links
        name, title = f"card-{summary.id}", self.translator.text(summary.title)
        svg = self.exhibits.cards[summary.id]
        return summary, drawings.inline(svg, source=name, name=name, title=title, is_card=True), links

    def _target(self, target: str, pages: Sequence[str], here: str) -> str:
        """Return the link to a page, or to a section or table of the main page; empty if this run has none."""
        page, _, anchor = target.partition("#")
        if page:
            page = page.removesuffix(".html")
            return link(self.file(page), here) if page in pages else ""
        if anchor in PAGES[MAIN]:
            return target if self.has(anchor) else ""
        ids = {table.id for section in PAGES[MAIN] for table in self.contents.tables.get(section, ())}
        return f"#table-{anchor}" if anchor in ids else ""


def _policy(frame: Frame) -> str:
    """Return the content security policy: a page may load only its own style and script, and embedded images."""
    # Digests allow exactly this inline style and script.
    digests = (hashlib.sha256(content.encode()).digest() for content in (frame.style, frame.script))
    style, script = (f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    allowed = (f"style-src {style}", f"script-src {script}", "base-uri 'none'", "form-action 'none'")
    return "; ".join(("default-src 'none'", "img-src data:", *allowed))
