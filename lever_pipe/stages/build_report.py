"""Build the report: the main page, and its appendix in both languages with tables and evidence."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lever_pipe.base import storage
from lever_pipe.base.atomic import write_texts
from lever_pipe.experiment.report import BuildReportConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report.catalogue import Translator, read_translation
from lever_pipe.report.cells import Cell, message, numbers_in
from lever_pipe.report.claim_evaluation import evaluate_claims
from lever_pipe.report.claims import read_claims
from lever_pipe.report.comparability import read_lineages
from lever_pipe.report.contents import Contents, contents_of
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, evidence_text, read_evidence
from lever_pipe.report.page import pages
from lever_pipe.report.setting import doubts
from lever_pipe.report.table import TABLE_FORMS

FIGURE_SECTIONS = "sections.json"
"""File in the folder of figures: the section of each figure."""
TITLES = {
    "both": "GRPO and its KL penalty: what two studies show when they are run again",
    "lever": "GRPO and its KL penalty: what the study of the selector shows when it is run again",
    "intention": "GRPO and its KL penalty: what the study of the agent shows when it is run again",
}


def build_report(
    *,
    evidence: Input,
    reference_lineage: Input,
    lineage: Inputs,
    claims: Input,
    chinese: Input,
    gallery: Inputs,
    dialogues: Inputs,
    figures: Input,
    templates: Inputs,
    style: Input,
    script: Input,
    page: Output,
    appendix: Output,
    config: BuildReportConfig,
) -> None:
    """Write the main page, and the rest of the report to the folder `appendix`.

    `chinese` is the translation of the pages' text; `figures` is the folder of `plot_figures`; `lineage`, `gallery` and
    `dialogues` are one file or none. `appendix` contains the appendix pages, the pages of the other language, `tables/`
    with each table as CSV, LaTeX and Markdown, `evidence.csv` (the pages' numbers refer to its lines), `index.json`
    (titles of tables and figures, and the lines of `evidence.csv` in each cell) and `answers.txt`.
    """
    lineages = read_lineages(lineage[0], reference_lineage) if lineage else {}
    book, context = read_claims(claims), ReportContext(Evidence(read_evidence(evidence)), config, lineages)
    context = replace(context, claims=evaluate_claims(book, context))
    contents = contents_of(context)
    translators = {"en": Translator("en"), "zh": Translator("zh", read_translation(chinese))}
    translator = translators[config.language]
    frame = pages.frame_of(templates, style, script)
    written: dict[str, str] = {}
    subtitle = _subtitle(config, context)
    for each in translators.values():
        exhibits = pages.Exhibits(_drawings(figures, each.language, page.parent), _json(gallery), _json(dialogues))
        words: dict[str, Any] = {"title": _title(config), "subtitle": subtitle, "first": config.language}
        written |= pages.html_pages(contents, exhibits, each, **words, frame=frame)
    main = written.pop(page.name)
    texts = {Path(name).relative_to(pages.FOLDER).as_posix(): text for name, text in written.items()}
    tables = [table for of_section in contents.tables.values() for table in of_section]
    texts |= {
        f"tables/{table.id}.{end}": write(table, translator) for table in tables for end, write in TABLE_FORMS.items()
    }
    texts["evidence.csv"] = _text(evidence) + evidence_text(contents.ledger.rows)
    sentences: Any = pages.environment(frame, translator).get_template("sentences").module
    texts["index.json"] = json.dumps(index_of(contents, _sections(figures), translator, sentences), ensure_ascii=False)
    answers = (
        (summary.title, getattr(sentences, f"answer_{summary.id}")(summary.facts).striptags())
        for summary in contents.summaries
    )
    doubted = sentences.doubts(subtitle).striptags()
    texts["answers.txt"] = "".join(f"{translator.text(title)} {text}\n" for title, text in answers)
    texts["answers.txt"] += f"{doubted}\n" if doubted else ""
    storage.write_text(page, main)
    write_texts(appendix, texts)


def _title(config: BuildReportConfig) -> Cell:
    """Return the configured title, or a title with the studies' names."""
    names = [study.name for study in config.studies]
    return config.title if config.title else message(TITLES[names[0] if len(names) == 1 else "both"])


def _subtitle(config: BuildReportConfig, context: ReportContext) -> dict[str, Any]:
    """Return the facts of the subtitle: the run's description and its warnings."""
    kinds = {study.is_world for study in config.studies}
    world = "some" if len(kinds) > 1 else "all" if True in kinds else "none"
    facts = {"world": world, "studies": config.studies, "data": [study.data for study in config.studies if study.data]}
    return {**facts, **doubts(context.evidence, context.lineages)}


def _drawings(folder: Path, language: str, start: Path) -> dict[str, pages.PageFigure]:
    sections = _sections(folder)
    paths = {name: folder / language / f"{name}.svg" for name in sections}
    # os.path.relpath, because Path.relative_to cannot ascend from the page's folder.
    files = {name: Path(os.path.relpath(path, start)).as_posix() for name, path in paths.items()}
    return {name: pages.PageFigure(sections[name], _text(path), files[name]) for name, path in paths.items()}


def _sections(folder: Path) -> dict[str, str]:
    """Return the section of each figure."""
    return dict(json.loads(_text(folder / FIGURE_SECTIONS)))


def _json(paths: Sequence[Path]) -> Any:
    return json.loads(_text(paths[0])) if paths else None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def index_of(contents: Contents, figures: Mapping[str, str], translator: Translator, sentences: Any) -> dict[str, Any]:
    """Return the titles of tables and figures, and the evidence lines in each cell of a table.

    Args:
        contents: the report's contents, with all derived numbers in its ledger.
        figures: section of each figure by name.
        translator: translator of the tables' CSV files.
        sentences: the module of `sentences.html.j2`.
    """
    tables = {
        table.id: {
            "title": translator.text(table.title),
            "section": sentences.sections[section][0],
            "columns": [translator.text(head) for head in table.heads],
            "cells": [[_references(cell) for cell in row.values()] for row in table.rows],
        }
        for section, group in contents.tables.items()
        for table in group
    }
    texts = {name: dict(zip(("title", "caption"), sentences.captions[name], strict=True)) for name in figures}
    return {"tables": tables, "figures": texts}


def _references(cell: Cell) -> list[str]:
    """Return the line of each number in a cell, as `e12`, or as `e12:p_holm` for a column other than `value`."""
    numbers = numbers_in(cell)
    return [f"e{number.line}" if number.part == "value" else f"e{number.line}:{number.part}" for number in numbers]
