"""Rule `compare_policies`: each accuracy with its interval, each comparison with its test, by kind of question too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base import storage
from lever_pipe.base.records import Example
from lever_pipe.experiment.stage_configs import ComparePoliciesConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report.tables import comparability
from lever_pipe.report.tables.comparisons import breakdown as kinds
from lever_pipe.report.tables.comparisons import inference
from lever_pipe.report.tables.comparisons.breakdown import BreakdownRow
from lever_pipe.report.tables.comparisons.estimates import ComparisonRow, Draws, Groups, IntervalRow
from lever_pipe.report.tables.comparisons.estimates import comparisons as compare
from lever_pipe.report.tables.comparisons.estimates import intervals as estimate
from lever_pipe.report.tables.comparisons.families import ORACLE, Arm, ComparisonFamily, arms_of, families_of
from lever_pipe.report.tables.comparisons.per_question import mean_group, read_groups
from lever_pipe.report.tables.folder import write_tables
from lever_pipe.report.tables.lineage import read_lineage
from lever_pipe.report.tables.long_format import csv_text, decimal
from lever_pipe.report.tables.origin import Origin
from lever_pipe.report.tables.policies import BASELINE_ORDER
from lever_pipe.report.tables.table import Table

SHOWN_BASELINES = ("zero_shot", "random", "similar_both")
"""Baselines of the breakdown by kind of question, beside the oracle."""


class ArmComparison(NamedTuple):
    """What the tables of one preset are made of."""

    arm: Arm
    families: list[ComparisonFamily]
    rows: list[ComparisonRow]


def compare_policies(
    *,
    per_question: Inputs,
    eval_examples: Input,
    lineage: Input,
    intervals: Output,
    comparisons: Output,
    breakdown: Output,
    tables: Output,
    csv: Output,
    config: ComparePoliciesConfig,
) -> None:
    """Write the long-format files, and the tables of section `statistics`.

    `per_question` belong to `config.policies`, in their order. The families of `comparisons`, each of the main preset
    and, behind `preset~NAME/`, of every other one; left minus right. At the primary endpoint (`evaluation.primary`),
    each adjusted on its own:

    * `grpo-over-betas`, `on-policy-over-betas`: the mean over all betas (`beta~all`) against the RCE base;
    * `grpo-against-rce`, `on-policy-against-rce`: each beta against the RCE base;
    * `grpo-betas`, `on-policy-betas`: each beta against the smallest;
    * `on-policy-against-offline`: each beta of on-policy GRPO against offline GRPO of the same beta.

    Secondary, at each shot count and their mean:

    * `document-001/epoch~E`: each beta against 0.15 (or the middle beta), at the sample count nearest to 200;
    * `document-002/epoch~E`: 0.18 and 0.12 against 0.15, and 0.18 against 0.12, at the same count;
    * `highest-beta`: each beta against the highest one after the last common GRPO epoch, at the largest count, and
      `other-betas`: all pairs without it. Both are adjusted as one family, since the same data chose the highest;
    * `learning`: the last RCE epoch against each baseline;
    * `marks`: REINFORCE and oracle distillation after the last epoch that all on-policy runs have against what they
      mark;
    * `NAME-by-shots`: four of the primary families at the other shot counts.

    Comparisons of one run infer to further questions only; beside others they are a family `NAME-one-run`.

    Raises:
        RecordError: a malformed file, or policies that were not scored on the same questions.
        ComparisonError: `config.guard` is `strict` and betas differ otherwise.
    """
    examples = storage.read_examples(eval_examples)
    questions = [example.example_id for example in examples]
    groups = read_groups(config.policies, per_question, questions=questions, shots=config.shots)
    draws = Draws(config.seed, config.n_resamples)
    found = estimate(groups, config.samples, draws)
    compared = [_compared(arm, groups, config, draws) for arm in arms_of(groups, config.main_preset)]
    rows, by_kind = _by_kind(examples, groups, compared[0].arm, config, draws)
    _write_csv(intervals, IntervalRow, found)
    _write_csv(comparisons, ComparisonRow, [row for of_arm in compared for row in of_arm.rows])
    _write_csv(breakdown, BreakdownRow, rows)
    built = [*_tables(compared, found, config), *by_kind]
    write_tables(comparability.guard(built, read_lineage(lineage), config.guard), json=tables, folder=csv)


def _compared(arm: Arm, groups: Groups, config: ComparePoliciesConfig, draws: Draws) -> ArmComparison:
    baselines = [f"baseline/{name}" for name in BASELINE_ORDER if f"baseline/{name}" in groups]
    largest = max(config.samples)
    over = {**arm.over_betas("grpo"), **arm.over_betas("on_policy")}
    means = (mean_group(name, [groups[member] for member in of]) for name, of in over.items())
    groups = {**groups, **{group.name: group for group in means if group is not None}}
    families = families_of(
        arm,
        config.primary,
        is_main=arm.preset == config.main_preset,
        baselines=baselines,
        columns=groups[next(iter(groups))].columns,
        samples=config.samples,
        accuracy=lambda group: float(groups[group].accuracies[:, :largest, -1].mean()),
    )
    families = [replace(of, pairs=tuple(pair for pair in of.pairs if pair[0] in groups)) for of in families]
    return ArmComparison(arm, families, compare(groups, families, draws))


def _by_kind(
    examples: Sequence[Example], groups: Groups, arm: Arm, config: ComparePoliciesConfig, draws: Draws
) -> tuple[list[BreakdownRow], list[Table]]:
    """Return the accuracies by kind of question at the largest count, and a table for each way to sort."""
    largest = max(config.samples)
    ways = kinds.ways_of(examples[:largest], is_world=config.data == "world")
    names = [f"baseline/{name}" for name in SHOWN_BASELINES]
    reference = arm.last_grpo.get(arm.reference_beta) if arm.reference_beta is not None else None
    names += [name for name in (arm.last_rce, reference, ORACLE) if name is not None]
    shown = [groups[name].first(largest) for name in names if name in groups]
    rows = kinds.breakdown_rows(shown, ways, draws)
    if arm.last_rce is None or ORACLE not in groups:
        return rows, []
    policy, oracle = groups[arm.last_rce].first(largest), groups[ORACLE].first(largest)
    origin = Origin(config.main_preset, config.data, config.lvlm)
    lost = {by: kinds.gaps(policy, oracle, by, of_kind, draws) for by, of_kind in ways.items()}
    return rows, [origin.named(kinds.table(by, rows, gaps, policy.name)) for by, gaps in lost.items()]


def _tables(
    compared: Sequence[ArmComparison], found: Sequence[IntervalRow], config: ComparePoliciesConfig
) -> Iterator[Table]:
    for arm, families, rows in compared:
        is_main = arm.preset == config.main_preset
        origin = Origin(arm.preset, config.data, config.lvlm)
        if arm.last_grpo:
            yield origin.named(inference.highest_table(arm, found, families, rows, is_main=is_main))
        for table in inference.family_tables(families, rows):
            yield origin.named(table)


def _write_csv(
    path: Path,
    columns: type[IntervalRow | ComparisonRow | BreakdownRow],
    rows: Sequence[IntervalRow | ComparisonRow | BreakdownRow],
) -> None:
    lines = [[decimal(value) if isinstance(value, float) else value for value in row] for row in rows]
    storage.write_text(path, csv_text(columns._fields, lines))
