"""The values that the report's template prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2

from lever_pipe.tables.results import standard_error
from lever_pipe.tables.table import markdown_grid
from lever_pipe.tables.text import number

SECTIONS = {
    "000": "Document 000: training curves of KL_BETA 0.12 and 0.15",
    "001": "Document 001: KL_BETA 0.12, 0.145, 0.15, 0.155 and 0.18",
    "002": "Document 002: KL_BETA 0.18 against 0.15 and 0.12",
}
PLACED = ("overview", "rl-data", "world-order")
"""Tables that the template puts outside of the further results."""
EXAMPLE_COUNTS = (100, 200, 400, 800)
PROBE_COLUMNS = {"accuracy": "VQA accuracy (%)", "truth": "Equals the world's fact (%)", "n_queries": "Queries"}


@dataclass(frozen=True, slots=True)
class ReportParts:
    """Everything that the report is made of; figure values are paths relative to the report."""

    title: str
    main_preset: str
    is_world: bool
    lvlm: str
    tables: Sequence[Mapping[str, Any]]
    figures: Mapping[str, str]
    csv_folder: str
    world_checks: Sequence[Mapping[str, Any]]
    rl_summary: Mapping[str, Any]
    examples_summary: Mapping[str, Any]
    pool_bound: Mapping[str, Any]
    counters: Sequence[Mapping[str, Any]] = field(default=())


def render(template: str, parts: ReportParts) -> str:
    """Return the report as Markdown; a name that the template misspells is an error, not an empty text."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["grid"] = _grid
    text = environment.from_string(template).render(
        parts=parts,
        overview=[table for table in parts.tables if table["id"] == "overview"],
        sections=_sections(parts.tables),
        rl_tables=[table for table in parts.tables if table["id"] == "rl-data"],
        order_tables=[table for table in parts.tables if table["id"] == "world-order"],
        further=[t for t in parts.tables if t["document"] == "extra" and t["id"] not in PLACED],
        worlds=[_world(check) for check in parts.world_checks],
        rl_facts=flat(parts.rl_summary),
        example_facts=flat(parts.examples_summary),
        bound_facts=flat(parts.pool_bound),
        totals=totals(parts.counters),
        errors=[(n, number(standard_error(50.0, n), 1)) for n in EXAMPLE_COUNTS],
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def totals(counters: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the sum of each counter over the files, by name; a ratio is taken anew over the sums."""
    sums: dict[str, float] = {}
    limited = 0.0  # seconds of the files that know their limit
    for file in counters:
        limited += file["seconds"] if "limit_seconds" in file else 0.0
        for name, value in file.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                sums[name] = sums.get(name, 0) + value
    if sums.get("limit_seconds"):
        sums["seconds_per_limit"] = limited / sums["limit_seconds"]
    return [(name.replace("_", " "), plain(sums[name])) for name in sorted(sums)]


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested values as `outer: inner` names with their texts, in the order of the file."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        full = f"{prefix}{str(name).replace('_', ' ')}"
        if isinstance(value, Mapping):
            found += flat(value, f"{full}: ")
        else:
            found.append((full, plain(value)))
    return found


def plain(value: object) -> str:
    """Return a value as the report prints it: whole numbers grouped, others with four significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _sections(tables: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"title": title, "document": name, "tables": [table for table in tables if table["document"] == name]}
        for name, title in SECTIONS.items()
    ]


def _world(check: Mapping[str, Any]) -> dict[str, Any]:
    """Return the probes as a grid, the missed bounds as texts, and the other facts."""
    probes = {name: score for name, score in check.get("probes", {}).items() if isinstance(score, Mapping)}
    rows = [[name.replace("_", " "), *(plain(s.get(key, "")) for key in PROBE_COLUMNS)] for name, s in probes.items()]
    rest = {name: value for name, value in check.items() if name not in ("bounds", "probes")}
    return {
        "columns": ["Probe", *PROBE_COLUMNS.values()],
        "rows": rows,
        "missed": [plain(bound) for bound in check.get("bounds", [])],
        "facts": flat(rest),
    }


def _grid(rows: Iterable[Iterable[object]], columns: Iterable[object]) -> str:
    return markdown_grid(columns, rows)
