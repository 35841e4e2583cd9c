"""Rule `tabulate_documents`: every table of the documents, ours beside the published numbers, and further ones."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe.run_card import write_card
from lever_pipe.stage_configs import Runtime, TabulateDocumentsConfig
from lever_pipe.tables import frames
from lever_pipe.tables.all_tables import Collected, build_tables
from lever_pipe.tables.document_002 import Setup
from lever_pipe.tables.folder import write_tables
from lever_pipe.tables.origin import Origin
from lever_pipe.tables.published import Published
from lever_pipe.tables.results import Results, choose_base


def tabulate_documents(
    *,
    scores: Path,
    training: Path,
    rl_data: Path,
    arms: Path,
    arms_training: Path,
    reference: Path,
    tables: Path,
    csv: Path,
    card: Path,
    config: TabulateDocumentsConfig,
    runtime: Runtime = Runtime(),
) -> None:
    """Write all tables as one JSON list, and each as CSV and Markdown into the folder `csv`.

    Raises:
        RecordError: a malformed input file.
    """
    started = time.perf_counter()
    counts = {"samples": config.samples, "shots": config.shots}
    wanted, training_rows = frames.within(frames.read_scores(scores), **counts), frames.read_training(training)
    rl_facts = frames.read_text_columns(rl_data)
    facts = dict(zip(rl_facts["metric"], rl_facts["value"], strict=True))
    results = Results(wanted, training_rows, choose_base(wanted, training_rows, config.base_rce_epoch))
    arm_rows = frames.within(frames.read_scores(arms), **counts)
    setup = Setup(config.grpo.learning_rate, config.grpo.freeze_projections, config.reward.mode, facts)
    built = build_tables(
        Collected(results, arm_rows, frames.read_training(arms_training), facts),
        Published(frames.read_text_columns(reference)),
        setup,
        Origin(config.main_preset, config.data, config.lvlm),
    )
    write_tables(built, json=tables, folder=csv)
    inputs = {"scores": scores, "training": training, "rl_data": rl_data, "arms": arms}
    inputs = {**inputs, "arms_training": arms_training, "reference": reference}
    write_card(card, stage="tabulate_documents", config=config, inputs=inputs, started=started, runtime=runtime)
