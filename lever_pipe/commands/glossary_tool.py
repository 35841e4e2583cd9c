"""`python -m lever_pipe glossary LANGUAGE tables.json ... [--figures FOLDER]`: texts without a translation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lever_pipe.base.errors import UnknownMemberError
from lever_pipe.base.parsing import nearest
from lever_pipe.report.page import drawings, prose
from lever_pipe.report.page.glossary import Glossary, read_glossary
from lever_pipe.report.page.tables import read_tables

FOLDER = Path("resources/glossary")


def main(words: Sequence[str]) -> int:
    """Print each text without a translation once; return 1 if there is any.

    Raises:
        UnknownMemberError: a language without a folder.
        RecordError: a glossary or a list of tables that cannot be read.
    """
    parser = argparse.ArgumentParser(prog="python -m lever_pipe glossary", description=__doc__)
    parser.add_argument("language", help=f"a folder of {FOLDER}, as zh")
    parser.add_argument("tables", nargs="*", type=Path, help="lists of tables, as results/lever/tables/documents.json")
    parser.add_argument("--figures", nargs="+", default=[], type=Path, help="folders of SVG files")
    options = parser.parse_args(list(words)[1:])
    known = sorted({path.parent.name for path in FOLDER.glob("*/*.yaml")})
    if options.language not in known:
        near = nearest(options.language, known)
        raise UnknownMemberError(
            f"glossary: expected a language with YAML files in {FOLDER}",
            found=f"'{options.language}'; there is {', '.join(known) or 'none'}",
            do=f"Did you mean '{near}'?" if near else "Name one of them, or call this where the project lies.",
        )
    glossary = read_glossary(sorted((FOLDER / options.language).glob("*.yaml")))
    found = untranslated(glossary, [*page_texts(), *file_texts(options.tables, options.figures)])
    sys.stdout.write("".join(f"{text}\n" for text in found))
    return 1 if found else 0


def untranslated(glossary: Glossary, texts: Iterable[str]) -> list[str]:
    """Return every sentence without a translation, once."""
    return list(dict.fromkeys(part for text in texts for part in glossary.translate(text)[1]))


def page_texts() -> Iterator[str]:
    """Yield the page's own words, with names in place of what a run fills in."""
    yield from prose.LEDES.values()
    models = {prose.LEVER: "embedded Qwen2.5-VL", prose.INTENTION: "tiny Qwen3"}
    yield from (text.format(model=models[study]) for study, text in prose.WORLDS.items())
    models = {prose.LEVER: "LVLM", prose.INTENTION: "Qwen3-8B"}
    yield from (text.format(model=models[study]) for study, text in prose.PRODUCTIONS.items())
    yield from (prose.PRESET.format(preset="main"), prose.STAMP.format(time="2000-01-01 00:00 UTC"))
    yield from prose.LABELS.values()
    for section in prose.SECTIONS:
        yield from (section.title, *section.paragraphs, *(point.text for point in section.points))
    for caption in prose.CAPTIONS.values():
        yield from (caption.title, caption.text)


def file_texts(tables: Sequence[Path], figures: Sequence[Path]) -> Iterator[str]:
    """Yield the texts of lists of tables and of folders of figures."""
    for table in read_tables(tables):
        yield from table.texts()
    for path in (path for folder in figures for path in sorted(folder.iterdir())):
        if path.suffix == ".svg":
            yield from drawings.texts_of(path.read_text(encoding="utf-8"), source=str(path))
