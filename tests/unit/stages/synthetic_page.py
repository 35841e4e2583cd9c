"""A finished page of synthetic results, with a small table in every section that other stages fill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import synthetic_results as synthetic
from test_plot_curves import plot
from test_tabulate_documents import tabulate

from lever_pipe.report.page.glossary import Glossary, read_glossary
from lever_pipe.report.tables.folder import write_tables
from lever_pipe.report.tables.table import Table
from lever_pipe.stages.build_report import build_report

ROOT = Path(__file__).parents[3]
TEMPLATES = ROOT / "lever_pipe" / "report" / "templates"
GLOSSARY = sorted((ROOT / "resources" / "glossary" / "zh").glob("*.yaml"))

OTHERS = (
    (
        *("highest-kl-beta", "statistics", ["KL_BETA", "Mean", "Holm p"]),
        [["0.15", "57.00 [54.1, 59.8]", "<0.001"], ["0", "", "1.000"]],
    ),
    ("agreement", "agreement", ["Policy", "Shot 1"], [["RCE epoch 5", "99.9%"]]),
    (
        *("emulated", "why", ["KL_BETA", "Source", "Shot 1"]),
        [["0.12", "emulated", "57.00"], ["0.12", "published", "57.00"]],
    ),
    ("claims", "claims", ["Quantity", "Published", "Ours"], [["Mean", "supported", "contradicted"]]),
)


def write_inputs(
    folder: Path, size: synthetic.Size, *, data: str = "world", figures: Path | None = None
) -> dict[str, Any]:
    """Write tables and, unless they are drawn already, figures below `folder`; return what `build_report` takes."""
    tabulate(folder, size, data)
    figures = figures or plot(folder, size)
    tables = [
        Table(name, section, "Mean", "Mean over seeds.", pd.DataFrame(rows, columns=columns))
        for name, section, columns, rows in OTHERS
    ]
    write_tables(tables, json=folder / "others.json", folder=folder / "others")
    return {
        **templates(),
        "tables": (folder / "tables.json", folder / "others.json"),
        "csv": (folder / "csv", folder / "others"),
        "figures": (figures,),
    }


def templates() -> dict[str, Path]:
    return {
        "html_template": TEMPLATES / "report.html.j2",
        "style": TEMPLATES / "report.css",
        "script": TEMPLATES / "report.js",
        "markdown_template": TEMPLATES / "report.md.j2",
    }


def build(
    inputs: dict[str, Any],
    folder: Path,
    *,
    language: str = "en",
    glossary: Sequence[Path] | None = None,
    **changes: Any,
) -> Path:
    """Build the page below `folder` and return it; `changes` are values of the config."""
    config = synthetic.report_config().model_copy(update={"language": language, **changes})
    found = GLOSSARY if glossary is None and language != "en" else glossary or []
    page = folder / "report.html"
    build_report(**inputs, glossary=tuple(found), page=page, report=folder / "report.md", config=config)
    return page


def chinese() -> Glossary:
    return read_glossary(GLOSSARY)
