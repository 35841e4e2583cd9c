"""Rule `tabulate_documents`: every table of the documents, ours beside the published numbers, and further ones."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.experiment.stage_configs import TabulateDocumentsConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
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
    scores: Input,
    training: Input,
    rl_data: Input,
    arms: Input,
    arms_training: Input,
    intervals: Input,
    comparisons: Input,
    lineage: Input,
    reference: Input,
    reference_lineage: Input,
    examples_summary: Input,
    pool_bound: Input,
    world_check: Inputs,
    counters: Inputs,
    tables: Output,
    csv: Output,
    config: TabulateDocumentsConfig,
) -> None:
    """Write all tables as one JSON list, and each as CSV and Markdown into the folder `csv`.

    Raises:
        RecordError: a malformed input file, or a cell without its interval.
        ComparisonError: `config.guard` is `strict` and rows of ours differ in more than the factor of their table.
    """
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
