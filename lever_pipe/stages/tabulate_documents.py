"""Rule `tabulate_documents`: every table of the documents, ours beside the published numbers, and further ones."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.experiment.run_card import Inputs, write_card
from lever_pipe.experiment.stage_configs import Runtime, TabulateDocumentsConfig
from lever_pipe.report.tables import frames
from lever_pipe.report.tables.comparability import guard, read_lineages
from lever_pipe.report.tables.documents.all_tables import Collected, build_tables
from lever_pipe.report.tables.documents.document_002 import Setup
from lever_pipe.report.tables.documents.facts import Facts
from lever_pipe.report.tables.evidence import read_evidence
from lever_pipe.report.tables.folder import write_tables
from lever_pipe.report.tables.origin import Origin
from lever_pipe.report.tables.published import Published
from lever_pipe.report.tables.results import Results, choose_base


def tabulate_documents(
    *,
    scores: Path,
    training: Path,
    rl_data: Path,
    arms: Path,
    arms_training: Path,
    intervals: Path,
    comparisons: Path,
    lineage: Path,
    reference: Path,
    reference_lineage: Path,
    examples_summary: Path,
    pool_bound: Path,
    world_check: tuple[Path, ...],
    counters: tuple[Path, ...],
    tables: Path,
    csv: Path,
    card: Path,
    config: TabulateDocumentsConfig,
    runtime: Runtime = Runtime(),
) -> None:
    """Write all tables as one JSON list, and each as CSV and Markdown into the folder `csv`.

    Raises:
        RecordError: a malformed input file, or a cell without its interval.
        ComparisonError: `config.guard` is `strict` and rows of ours differ in more than the factor of their table.
    """
    started = time.perf_counter()
    counts = {"samples": config.samples, "shots": config.shots}
    wanted, training_rows = frames.within(frames.read_scores(scores), **counts), frames.read_training(training)
    rl_facts = frames.read_text_columns(rl_data)
    measured = dict(zip(rl_facts["metric"], rl_facts["value"], strict=True))
    base = choose_base(wanted, training_rows, config.base_rce_epoch)
    results = Results(wanted, training_rows, base, config.main_preset, read_evidence(intervals, comparisons))
    facts = Facts(
        examples=storage.read_json(examples_summary),
        pools=storage.read_json(pool_bound),
        world_checks=[storage.read_json(path) for path in world_check],
        counters=[storage.read_json(path) for path in counters],
    )
    arm_rows = frames.within(frames.read_scores(arms), **counts)
    collected = Collected(results, arm_rows, frames.read_training(arms_training), measured, facts)
    setup = Setup(config.grpo.learning_rate, config.grpo.freeze_projections, config.reward.mode, measured)
    origin = Origin(config.main_preset, config.data, config.lvlm)
    built = build_tables(collected, Published(frames.read_text_columns(reference)), setup, origin)
    lineages = read_lineages(lineage, reference_lineage)
    write_tables(guard(built, lineages, config.guard), json=tables, folder=csv)
    inputs: Inputs = {"scores": scores, "training": training, "rl_data": rl_data, "arms": arms}
    inputs = {**inputs, "arms_training": arms_training, "intervals": intervals, "comparisons": comparisons}
    inputs = {**inputs, "lineage": lineage, "reference": reference, "reference_lineage": reference_lineage}
    inputs = {**inputs, "examples_summary": examples_summary, "pool_bound": pool_bound}
    inputs = {**inputs, "world_check": world_check, "counters": counters}
    write_card(card, stage="tabulate_documents", config=config, inputs=inputs, started=started, runtime=runtime)
