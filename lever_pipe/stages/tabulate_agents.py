"""Rule `tabulate_agents`: the tables of documents 003 and 004, ours beside the published numbers, and of the arms."""

from __future__ import annotations

from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.agent_stage_configs import TabulateAgentsConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report.claims.book import read_claims
from lever_pipe.report.tables import frames
from lever_pipe.report.tables.folder import write_tables
from lever_pipe.report.tables.intention.agent_runs import read_agent_runs
from lever_pipe.report.tables.intention.all_tables import build_tables
from lever_pipe.report.tables.intention.found import read_found
from lever_pipe.report.tables.intention.published import PublishedAgents
from lever_pipe.report.tables.intention.shown import Given, Shown


def tabulate_agents(
    *,
    curves: Input,
    runs: Input,
    endpoints: Input,
    comparisons: Input,
    statistics: Input,
    reference_intention: Input,
    claims: Input,
    tasks_summary: Inputs,
    tables: Output,
    csv: Output,
    config: TabulateAgentsConfig,
) -> None:
    """Write all tables as one JSON list, and each as CSV and Markdown into the folder `csv`.

    `tasks_summary` is what `prepare_tasks` says of the tasks; empty where they are not prepared here.

    Raises:
        RecordError: a malformed input file.
    """
    given = read_claims(claims).reward_curves
    shown = Shown(
        config=config,
        runs=read_agent_runs(curves, runs),
        found=read_found(endpoints, comparisons, statistics),
        published=PublishedAgents(frames.read_text_columns(reference_intention)),
        given=Given(given.ceiling, given.reward_unit, given.noise_sd, given.same_tasks_sd),
        held_out=_held_out(tasks_summary),
    )
    write_tables(build_tables(shown), json=tables, folder=csv)


def _held_out(summary: tuple[Path, ...]) -> tuple[int, int] | None:
    """Return the held-out tasks, and of them those that hide the same as a trained one; None without a summary.

    Raises:
        RecordError: more than one summary, or one without these counts.
    """
    if not summary:
        return None
    if len(summary) > 1:
        raise RecordError("tasks_summary: expected one file", found=str(len(summary)), do="Name one.")
    try:
        told = storage.read_json(summary[0])["test"]
        return int(told["n_tasks"]), int(told["n_hidden_also_trained"])
    except (KeyError, TypeError) as fault:
        do = "Run prepare_tasks again."
        raise RecordError(f"{summary[0]}: expected counts of the split `test`", found=str(fault), do=do) from None
