"""Rule `build_report`: the main page with its appendix in both languages, as Markdown, tables and evidence."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lever_pipe.base import storage
from lever_pipe.base.atomic import write_folder
from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.report_stage_configs import BuildReportConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report.catalogue import Voice, read_catalogue
from lever_pipe.report.cells import Cell, say
from lever_pipe.report.contents import Contents, contents_of
from lever_pipe.report.evidence import Evidence, evidence_text, read_evidence
from lever_pipe.report.material import Material
from lever_pipe.report.page import pages
from lever_pipe.report.page.markdown import answers, markdown
from lever_pipe.report.table import as_csv
from lever_pipe.report.tables.lineage import read_lineage


def build_report(
    *,
    evidence: Input,
    lineage: Inputs,
    messages: Inputs,
    declared: Inputs,
    gallery: Inputs,
    dialogues: Inputs,
    figures: Inputs,
    template: Input,
    style: Input,
    script: Input,
    page: Output,
    report: Output,
    appendix: Output,
    config: BuildReportConfig,
) -> None:
    """Write the main page, its Markdown, and the folder `appendix` with all else that the report is.

    `messages` are the catalogues of all languages, each in a folder of its language's name; `figures` are folders;
    `lineage`, `gallery` and `dialogues` are one file or none. In `appendix` lie the appendix pages and those of the
    other language, `tables/*.csv`, `evidence.csv` (which the pages' numbers name by line), `index.json` (titles of
    tables and figures) and `answers.txt`.

    Raises:
        RecordError: an input is missing or malformed, a number has no row, or a message is missing.
    """
    material = Material(Evidence(read_evidence(evidence)), config, read_lineage(lineage[0]) if lineage else {})
    contents = contents_of(material, declared)
    lines = {row.key: line for line, row in enumerate(material.evidence, start=2)}
    voices = {name: Voice(name, read_catalogue(of), lines) for name, of in _by_language(messages).items()}
    voice = voices[config.language]
    drawn = pages.Drawn(_drawings(figures, page.parent), _json(gallery), _json(dialogues))
    frame = pages.Frame(_text(template), _text(style), _text(script))
    written: dict[str, str] = {}
    for each in voices.values():
        told: dict[str, Any] = {"title": config.title, "lead": _lead(config), "first": config.language}
        written |= pages.html_pages(contents, drawn, each, **told, frame=frame)
    main = written.pop(page.name)
    beside = {Path(name).relative_to(pages.FOLDER).as_posix(): text for name, text in written.items()}
    beside |= {f"tables/{table.id}.csv": as_csv(table, voice) for of in contents.tables.values() for table in of}
    beside["evidence.csv"] = _text(evidence) + evidence_text(contents.ledger.rows)
    beside["index.json"] = json.dumps(_index(contents, drawn, voice), ensure_ascii=False, indent=1)
    beside["answers.txt"] = answers(contents, voice)
    storage.write_text(page, main)
    storage.write_text(report, markdown(contents, voice, title=config.title, lead=_lead(config)))
    write_folder(appendix, lambda folder: _write_all(folder, beside))


def _lead(config: BuildReportConfig) -> Cell:
    """Return the line that says whose worlds these are."""
    kinds = {study.is_world for study in config.studies}
    kind = "mixed" if len(kinds) > 1 else "world" if True in kinds else "files"
    return say(f"lead.{kind}", models=[study.model for study in config.studies])


def _by_language(messages: Sequence[Path]) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in messages:
        found.setdefault(path.parent.name, []).append(path)
    return found


def _drawings(folders: Sequence[Path], start: Path) -> dict[str, tuple[str, str]]:
    for folder in folders:
        if not folder.is_dir():
            raise RecordError(f"{folder}: expected a folder of figures", found="none", do="Run its rule.")
    drawn = [path for folder in folders for path in sorted(folder.iterdir()) if path.suffix == ".svg"]
    return {path.stem: (_text(path), Path(os.path.relpath(path, start)).as_posix()) for path in drawn}


def _json(paths: Sequence[Path]) -> Mapping[str, Any] | None:
    return json.loads(_text(paths[0])) if paths else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError) as fault:
        raise RecordError(f"{path}: expected UTF-8 text", found=str(fault), do="Restore or rebuild the file.") from None


def _index(contents: Contents, drawn: pages.Drawn, voice: Voice) -> dict[str, Any]:
    tables = {
        table.id: {"title": voice.text(table.title), "section": voice.text(say(f"section.{section}.title"))}
        for section, of in contents.tables.items()
        for table in of
    }
    figures = {
        name: {"title": pages.figure_text(name, "title", voice), "caption": pages.figure_text(name, "caption", voice)}
        for name in drawn.figures
    }
    return {"tables": tables, "figures": figures}


def _write_all(folder: Path, files: Mapping[str, str]) -> None:
    (folder / "tables").mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
