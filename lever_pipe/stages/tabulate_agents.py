"""Rule `tabulate_agents`: the tables of documents 003 and 004, ours beside the published numbers, and of the arms."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe.agent_stage_configs import TabulateAgentsConfig
from lever_pipe.claims.book import read_claims
from lever_pipe.run_card import Inputs, write_card
from lever_pipe.stage_configs import Runtime
from lever_pipe.tables import frames
from lever_pipe.tables.folder import write_tables
from lever_pipe.tables.intention.agent_runs import read_agent_runs
from lever_pipe.tables.intention.all_tables import build_tables
from lever_pipe.tables.intention.found import read_found
from lever_pipe.tables.intention.published import PublishedRuns
from lever_pipe.tables.intention.shown import Given, Shown


def tabulate_agents(
    *,
    curves: Path,
    runs: Path,
    endpoints: Path,
    comparisons: Path,
    statistics: Path,
    reference_intention: Path,
    claims: Path,
    tables: Path,
    csv: Path,
    card: Path,
    config: TabulateAgentsConfig,
    runtime: Runtime = Runtime(),
) -> None:
    """Write all tables as one JSON list, and each as CSV and Markdown into the folder `csv`.

    Raises:
        RecordError: a malformed input file.
    """
    started = time.perf_counter()
    given = read_claims(claims).reward_curves
    shown = Shown(
        config=config,
        runs=read_agent_runs(curves, runs),
        found=read_found(endpoints, comparisons, statistics),
        published=PublishedRuns(frames.read_text_columns(reference_intention)),
        given=Given(given.ceiling, given.reward_unit, given.noise_sd),
    )
    write_tables(build_tables(shown), json=tables, folder=csv)
    inputs: Inputs = {"curves": curves, "runs": runs, "endpoints": endpoints, "comparisons": comparisons}
    inputs = {**inputs, "statistics": statistics, "reference_intention": reference_intention, "claims": claims}
    write_card(card, stage="tabulate_agents", config=config, inputs=inputs, started=started, runtime=runtime)
