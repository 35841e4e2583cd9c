"""Rule `build_report`: one HTML page and one Markdown page with every table and figure."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.report_stage_configs import BuildReportConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report.page import audit, render
from lever_pipe.report.page.compose import Drawing, Parts, StudyNote, compose
from lever_pipe.report.page.glossary import Glossary, read_glossary
from lever_pipe.report.page.tables import PageTable, read_tables
from lever_pipe.report.page.voice import Voice

log = logging.getLogger("build_report")

HTML_ONLY = ("title", "contents", "footer", "drawing:")
"""Places that the Markdown page lacks."""


def build_report(
    *,
    html_template: Input,
    style: Input,
    script: Input,
    markdown_template: Input,
    glossary: Inputs,
    tables: Inputs,
    csv: Inputs,
    figures: Inputs,
    page: Output,
    report: Output,
    config: BuildReportConfig,
) -> None:
    """Write the page as HTML and, beside it, as Markdown; links to figures and CSV files are relative.

    `csv` are the folders that hold one CSV file a table; `glossary` are no files for English. A text that has no
    translation stays in English and is named in the log. Two runs differ in the foot of the HTML page alone: its time.

    Raises:
        RecordError: an input is missing or malformed, or a page prints a number that none of its files holds.
    """
    voice = Voice(_glossary(glossary, config.language))
    read = read_tables(tables)
    parts = Parts(
        title=config.title,
        main_preset=config.main_preset,
        studies=[StudyNote(**study.model_dump()) for study in config.studies],
        tables=read,
        links=_csv_links(read, csv, page.parent),
        figures=_drawings(figures, page.parent),
        stamp=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    made = compose(parts, voice)
    html = render.html(made, template=_text(html_template), style=_text(style), script=_text(script))
    audit.audit_html(html, voice.spoken)
    markdown = render.markdown(made, template=_text(markdown_template))
    audit.audit_markdown(markdown, _of_markdown(voice.spoken))
    _warn(list(voice.missing), config.language)
    storage.write_text(page, html)
    storage.write_text(report, markdown)


def _glossary(paths: Sequence[Path], language: str) -> Glossary | None:
    found = read_glossary(paths) if paths else None
    spoken = found.language.partition("-")[0] if found else "en"
    if spoken != language:
        raise RecordError(f"a glossary of '{language}'", found=f"'{spoken}'", do="Name the files of the language.")
    return found


def _csv_links(tables: Sequence[PageTable], folders: Sequence[Path], start: Path) -> dict[str, str]:
    """Return for each table the link to its CSV file in the first folder that holds one."""
    candidates = ((table.id, folder / f"{table.id}.csv") for table in tables for folder in reversed(folders))
    return {name: _link(path, start) for name, path in candidates if path.is_file()}


def _drawings(folders: Sequence[Path], start: Path) -> dict[str, Drawing]:
    for folder in folders:
        if not folder.is_dir():
            raise RecordError(f"{folder}: expected a folder of figures", found="none", do="Run its rule.")
    drawn = [path for folder in folders for path in sorted(folder.iterdir()) if path.suffix == ".svg"]
    return {
        path.stem: Drawing(_text(path), _link(path, start), _link(path.with_suffix(".png"), start)) for path in drawn
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError) as fault:
        raise RecordError(f"{path}: expected UTF-8 text", found=str(fault), do="Restore or rebuild the file.") from None


def _link(path: Path, start: Path) -> str:
    """Return the path from `start`, because a report is read from its own folder."""
    return Path(os.path.relpath(path, start)).as_posix()


def _of_markdown(spoken: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    return {place: texts for place, texts in spoken.items() if not place.startswith(HTML_ONLY)}


def _warn(missing: Sequence[str], language: str) -> None:
    if missing:
        listed = "\n".join(f"  {text}" for text in missing)
        log.warning("%d texts have no translation into '%s' and stay in English:\n%s", len(missing), language, listed)
