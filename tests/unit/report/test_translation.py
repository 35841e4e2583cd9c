"""The Chinese of the report: each text is in the code with the same arguments, and no page in Chinese lacks one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
from babel.messages.pofile import read_po
from jinja2 import Environment

from lever_pipe.report.claims import read_claims

with Path("resources/locale/zh/LC_MESSAGES/report.po").open("rb") as file:
    ENTRIES = [[np.atleast_1d(of) for of in (entry.id, entry.string)] for entry in read_po(file) if entry.id]
CHINESE = {english[0]: chinese[0] for english, chinese in ENTRIES}
REPORT = Path("lever_pipe/report")
ARGUMENT = re.compile(r"\{(\w+)\}|%\((\w+)\)s")


def _texts() -> set[str]:
    """Return every text of the code; of a template those between quotes."""
    files = [*REPORT.rglob("*.py"), Path("lever_pipe/stages/build_report.py")]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    found = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    environment = Environment(extensions=["jinja2.ext.i18n", "jinja2.ext.do"], trim_blocks=True, lstrip_blocks=True)
    environment.newstyle_gettext = True  # type: ignore[attr-defined]
    for template in REPORT.glob("templates/*.j2"):
        text = template.read_text(encoding="utf-8")
        marked = (of for _, _, of in environment.extract_translations(text))  # type: ignore[attr-defined]
        found.update(of if isinstance(of, str) else of[0] for of in marked)
        found.update(text.replace("'", '"').split('"'))
    claims = read_claims(Path("resources/claims.yaml"))
    return found | {text for claim in claims for text in (claim.quote, claim.reason, claim.otherwise)}


def test_each_translated_text_stands_in_the_code() -> None:
    assert set(CHINESE) <= _texts()


def test_a_translation_has_the_arguments_of_its_text() -> None:
    slots = [{match[1] or match[2] for match in ARGUMENT.finditer(text)} for of in CHINESE.items() for text in of]
    assert slots[::2] == slots[1::2]
