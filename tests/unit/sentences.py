"""The report's text outside the cells of tables, as plain text in English."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lever_pipe.report.catalogue import Translator
from lever_pipe.report.page import pages
from lever_pipe.report.summaries import Summary
from lever_pipe.report.table import Table

TEMPLATES = Path(__file__).parents[2] / "lever_pipe/report/templates"
FRAME = pages.frame_of(tuple(TEMPLATES.glob("*.j2")), TEMPLATES / "report.css", TEMPLATES / "report.js")
SENTENCES: Any = pages.environment(FRAME, Translator("en")).get_template("sentences").module


def sentence(macro: str, of: Any) -> str:
    """Return what a macro of `sentences.html.j2` writes."""
    return str(getattr(SENTENCES, macro)(of).striptags())


def answer(summary: Summary) -> str:
    """Return a summary's sentences."""
    return sentence(f"answer_{summary.id}", summary.facts)


def notes(summary: Summary) -> str:
    """Return a summary's text below its plot."""
    return sentence(f"notes_{summary.id}", summary.facts)


def messages(table: Table) -> str:
    """Return the text before and below a table."""
    macros = (name for name in (f"intro_{table.macro}", f"notes_{table.macro}") if hasattr(SENTENCES, name))
    return " ".join(sentence(name, table.facts) for name in macros)
