"""Rule `tabulate_on_policy`: what groups drawn from the policy bring, what they cost, and what KL_BETA does then."""

from __future__ import annotations

import pandas as pd

from lever_pipe.experiment.stage_configs import TabulateOnPolicyConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.report.tables import frames
from lever_pipe.report.tables.comparability import guard
from lever_pipe.report.tables.evidence import read_evidence
from lever_pipe.report.tables.folder import write_tables
from lever_pipe.report.tables.lineage import read_lineage
from lever_pipe.report.tables.on_policy import files
from lever_pipe.report.tables.on_policy.all_tables import tables as build_tables
from lever_pipe.report.tables.on_policy.study import CollectedRuns, studies_of
from lever_pipe.report.tables.origin import Origin


def tabulate_on_policy(
    *,
    scores: Input,
    arms: Input,
    steps: Input,
    ties: Input,
    costs: Input,
    intervals: Input,
    comparisons: Input,
    agreement: Input,
    lineage: Input,
    tables: Output,
    csv: Output,
    config: TabulateOnPolicyConfig,
) -> None:
    """Write the tables of section `on_policy` as one JSON list, and each as CSV and Markdown into the folder `csv`.

    Raises:
        RecordError: a malformed input file, or a cell without its interval.
        ComparisonError: `config.guard` is `strict` and rows of ours differ in more than the factor of their table.
    """
    every = pd.concat([frames.read_scores(scores), frames.read_scores(arms)], ignore_index=True)
    measured = CollectedRuns(
        scores=frames.within(every, samples=config.samples, shots=config.shots),
        evidence=read_evidence(intervals, comparisons),
        tests=files.read_tests(comparisons),
        agreement=files.read_agreement(agreement),
        steps=frames.read_steps(steps),
        costs=frames.read_costs(costs),
    )
    studies = studies_of(measured, config.main_preset, config.base_rce_epoch)
    built = build_tables(studies, files.read_ties(ties), Origin(config.main_preset, config.data, config.lvlm))
    write_tables(guard(built, read_lineage(lineage), config.guard), json=tables, folder=csv)
