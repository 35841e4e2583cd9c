"""From finished tables and figures to a page: every text spoken, every part in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from lever_pipe.base.errors import RecordError
from lever_pipe.report.page import drawings, prose
from lever_pipe.report.page.tables import PageTable, TableView, view
from lever_pipe.report.page.voice import Voice


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure's files: the text of the SVG, and links to it and to the PNG."""

    svg: str
    svg_link: str
    png_link: str


@dataclass(frozen=True, slots=True)
class StudyNote:
    """A study on the page: its name, whether its world is the embedded one, and which model it runs."""

    name: str
    is_world: bool
    model: str


@dataclass(frozen=True, slots=True)
class Banner:
    """Where a study's numbers come from."""

    label: str
    text: str
    is_world: bool


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a page is made of; `links` leads from a table's id to its CSV file."""

    title: str
    main_preset: str
    studies: Sequence[StudyNote]
    tables: Sequence[PageTable]
    links: Mapping[str, str]
    figures: Mapping[str, Drawing]
    stamp: str


@dataclass(frozen=True, slots=True)
class FigureView:
    """A figure ready to print."""

    name: str
    title: str
    caption: str
    drawing: Markup
    svg: str
    png: str


@dataclass(frozen=True, slots=True)
class SectionView:
    """A section ready to print."""

    name: str
    title: str
    paragraphs: tuple[str, ...]
    points: tuple[str, ...]
    tables: tuple[TableView, ...]
    figures: tuple[FigureView, ...]
    is_emulated: bool
    shows_figures_first: bool

    @property
    def anchor(self) -> str:
        """Return the section's name within the page."""
        return f"section-{self.name}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the contents, with the lines below it."""

    anchor: str
    title: str
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A page ready to print, in one language."""

    language: str
    title: str
    ledes: tuple[str, ...]
    banners: tuple[Banner, ...]
    preset: str
    labels: Mapping[str, str]
    sections: tuple[SectionView, ...]
    contents: tuple[Entry, ...]
    stamp: str


def compose(parts: Parts, voice: Voice) -> Page:
    """Return the page; a section without tables and figures is left out.

    Raises:
        RecordError: a table belongs to no section, or has no CSV file.
    """
    belongs = _sections_of(parts.tables)
    sections = [_section(section, belongs.get(section.name, []), parts, voice) for section in prose.SECTIONS]
    shown = tuple(section for section in sections if section is not None)
    header = voice.at("header")
    voice.at("title", is_given=True)(parts.title)  # stands above the page and in the window's frame
    label = voice.at("labels")
    has_presets = any(study.name == prose.LEVER for study in parts.studies)
    return Page(
        language=voice.language,
        title=voice.at("header", is_given=True)(parts.title),
        ledes=tuple(header(prose.LEDES[study.name]) for study in parts.studies),
        banners=tuple(_banner(study, voice) for study in parts.studies),
        preset=header(prose.PRESET.format(preset=parts.main_preset)) if has_presets else "",
        labels={name: label(text) for name, text in prose.LABELS.items()},
        sections=shown,
        contents=tuple(_contents(shown, parts, voice)),
        stamp=voice.at("footer")(prose.STAMP.format(time=parts.stamp)),
    )


def _banner(study: StudyNote, voice: Voice) -> Banner:
    texts = prose.WORLDS if study.is_world else prose.PRODUCTIONS
    label = prose.LABELS["world" if study.is_world else "production"]
    text = texts[study.name].format(model=study.model)
    return Banner(voice.at("labels")(label), voice.at("header")(text), study.is_world)


def _sections_of(tables: Iterable[PageTable]) -> dict[str, list[PageTable]]:
    placed = {name: section.name for section in prose.SECTIONS for name in section.placed}
    names = {section.name for section in prose.SECTIONS}
    found: dict[str, list[PageTable]] = {}
    for table in tables:
        name = placed.get(table.id, table.document)
        if name not in names:
            raise RecordError(
                f"table '{table.id}': expected a section, one of {', '.join(sorted(names))}",
                found=f"'{name}'",
                do="Name one of them, or add the section to prose.py beside this module.",
            )
        found.setdefault(name, []).append(table)
    return found


def _section(section: prose.PageSection, tables: Sequence[PageTable], parts: Parts, voice: Voice) -> SectionView | None:
    names = [name for name in parts.figures if prose.caption_of(name).section == section.name]
    if not tables and not names and not section.has_words_only:
        return None
    say = voice.at(f"section:{section.name}")
    order = {name: index for index, name in enumerate(section.placed)}
    studies = {"", *(study.name for study in parts.studies)}
    return SectionView(
        name=section.name,
        title=say(section.title),
        paragraphs=tuple(say(text) for text in section.paragraphs),
        points=tuple(say(point.text) for point in section.points if point.study in studies),
        tables=tuple(
            view(table, csv=_link(table, parts), say=voice.at(f"table:{table.id}"))
            for table in sorted(tables, key=lambda table: order.get(table.id, len(order)))
        ),
        figures=tuple(_figure(name, parts.figures[name], voice) for name in sorted(names, key=_rank)),
        is_emulated=section.is_emulated,
        shows_figures_first=section.shows_figures_first,
    )


def _figure(name: str, drawing: Drawing, voice: Voice) -> FigureView:
    caption, say, draw = prose.caption_of(name), voice.at(f"figure:{name}"), voice.at(f"drawing:{name}")
    return FigureView(
        name=name,
        title=voice.at("labels")(caption.title),
        caption=say(caption.text) if caption.text else "",
        drawing=drawings.inline(
            drawing.svg,
            source=f"{name}.svg",
            name=f"figure-{name}",
            title=draw(caption.title),
            description=draw(caption.text) if caption.text else "",
            say=draw,
        ),
        svg=drawing.svg_link,
        png=drawing.png_link,
    )


def _rank(name: str) -> tuple[int, str]:
    known = list(prose.CAPTIONS)
    return (known.index(name) if name in known else len(known), name)


def _link(table: PageTable, parts: Parts) -> str:
    if table.id not in parts.links:
        raise RecordError(f"table '{table.id}': expected a CSV file", found="none", do="Run the rule of its table.")
    return parts.links[table.id]


def _contents(sections: Iterable[SectionView], parts: Parts, voice: Voice) -> Iterable[Entry]:
    """Yield one entry a section; its titles are spoken again, because they are printed again."""
    say = voice.at("contents")
    english = {table.id: table.title for table in parts.tables} | {s.name: s.title for s in prose.SECTIONS}
    for section in sections:
        tables = (Entry(table.anchor, say(english[table.id])) for table in section.tables)
        yield Entry(section.anchor, say(english[section.name]), tuple(tables))
