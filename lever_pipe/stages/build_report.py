"""Rule `build_report`: one Markdown page with every table and figure."""

from __future__ import annotations

import os
import time
from pathlib import Path

from lever_pipe import storage
from lever_pipe.errors import RecordError
from lever_pipe.run_card import Inputs, write_card
from lever_pipe.stage_configs import BuildReportConfig, Runtime
from lever_pipe.tables.report import ReportParts, render


def build_report(
    *,
    template: Path,
    tables: Path,
    csv: Path,
    figures: Path,
    world_check: tuple[Path, ...],
    rl_summary: Path,
    examples_summary: Path,
    pool_bound: Path,
    counters: tuple[Path, ...],
    report: Path,
    card: Path,
    config: BuildReportConfig,
    runtime: Runtime = Runtime(),
) -> None:
    """Write the report; its links to figures and CSV files are relative to it.

    Raises:
        RecordError: an input file is missing or not JSON, or the folder of figures is missing.
    """
    started = time.perf_counter()
    parts = ReportParts(
        title=config.title,
        main_preset=config.main_preset,
        is_world=config.data == "world",
        lvlm=config.lvlm,
        tables=storage.read_json(tables),
        figures=_figure_links(figures, report.parent),
        csv_folder=_link(csv, report.parent),
        world_checks=[storage.read_json(path) for path in world_check],
        rl_summary=storage.read_json(rl_summary),
        examples_summary=storage.read_json(examples_summary),
        pool_bound=storage.read_json(pool_bound),
        counters=[storage.read_json(path) for path in counters],
    )
    storage.write_text(report, render(template.read_text(encoding="utf-8"), parts))
    inputs: Inputs = {"template": template, "tables": tables, "csv": csv, "figures": figures, "rl_summary": rl_summary}
    inputs = {**inputs, "examples_summary": examples_summary, "world_check": world_check}
    inputs = {**inputs, "pool_bound": pool_bound, "counters": counters}
    write_card(card, stage="build_report", config=config, inputs=inputs, started=started, runtime=runtime)


def _figure_links(figures: Path, start: Path) -> dict[str, str]:
    if not figures.is_dir():
        raise RecordError(f"{figures}: expected a folder of figures", found="none", do="Run plot_curves.")
    drawn = sorted(path for path in figures.iterdir() if path.suffix == ".png")
    return {path.stem: _link(path, start) for path in drawn}


def _link(path: Path, start: Path) -> str:
    """Return the path from `start`, because a report is read from its own folder."""
    return Path(os.path.relpath(path, start)).as_posix()
