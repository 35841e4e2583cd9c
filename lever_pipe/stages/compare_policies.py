"""Compare policies: accuracies with intervals, and comparisons with tests."""

from __future__ import annotations

from dataclasses import replace

from lever_pipe.base import storage
from lever_pipe.experiment.collected import ComparePoliciesConfig
from lever_pipe.experiment.selections import BASELINES
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.experiment.sweeps import swept
from lever_pipe.report.inference.estimates import ComparisonRow, Draws, Groups, IntervalRow
from lever_pipe.report.inference.estimates import comparisons as compare
from lever_pipe.report.inference.estimates import intervals as estimate
from lever_pipe.report.inference.families import (
    Arm,
    ComparisonFamily,
    arms_of,
    families_of,
    family_of_sweep,
)
from lever_pipe.report.inference.per_question import mean_group, read_groups
from lever_pipe.report.long_format import write_csv


def compare_policies(
    *,
    per_question: Inputs,
    eval_examples: Input,
    intervals: Output,
    comparisons: Output,
    config: ComparePoliciesConfig,
) -> None:
    """Write the intervals and comparisons, one per line.

    `per_question` belong to `config.policies`, in the same order. A comparison is left minus right. Every preset has
    the families below, with the prefix `preset~NAME/` unless it is the main preset. At the primary endpoint
    (`evaluation.primary`), each family is adjusted separately, or jointly with the same family of other presets
    (`NAME-together`, `evaluation.families`):

    * `grpo-over-betas`, `on-policy-over-betas`: the mean over all betas (`beta~all`) against the RCE base;
    * `grpo-against-rce`, `on-policy-against-rce`: each beta against the RCE base;
    * `grpo-betas`, `on-policy-betas`: each beta against the smallest;
    * `on-policy-against-offline`: each beta of on-policy GRPO against offline GRPO of the same beta.

    Secondary, at each shot count and their mean:

    * `document-001/epoch~E`: each beta against 0.15 (or the middle beta), at the sample count nearest to 200;
    * `document-002/epoch~E`: 0.18 and 0.12 against 0.15, and 0.18 against 0.12, at the same count;
    * `learning`: the last RCE epoch against each baseline;
    * `supervised`: the last SFT epoch against each baseline, and the last RCE epoch against it;
    * `extra_objectives`: REINFORCE, oracle distillation and continued RCE, after the last epoch common to all on-policy
      runs, against the runs that they bound;
    * `NAME-by-shots`: four of the primary families at the other shot counts;
    * `sweep~NAME`: each cell of a sweep against the swept arm, at the primary endpoint only.

    Comparisons of single runs generalize to further questions only; if a family has others, too, they form a separate
    family `NAME-one-run`. Resampling and permutation treat the questions of an image as one unit.
    """
    examples = storage.read_examples(eval_examples)
    questions = [example.example_id for example in examples]
    groups = read_groups(config.policies, per_question, questions=questions, shots=config.shots)
    draws = Draws(config.seed, config.n_resamples, images=[example.image_id for example in examples])
    rows = estimate(groups, config.samples, draws)
    arms = {arm.preset: arm for arm in arms_of(groups, config.main_preset)}
    cells = swept(config.sweeps)
    families: list[ComparisonFamily] = []
    for arm in (arm for arm in arms.values() if arm.preset not in cells):
        over = arm.over_betas("grpo") | arm.over_betas("on_policy")
        means = (mean_group(name, [groups[member] for member in members]) for name, members in over.items())
        groups |= {group.name: group for group in means if group is not None}
        families += _families(arm, groups, config)
    families += [family_of_sweep(sweep, arms, config.primary, config.samples) for sweep in config.sweeps]
    write_csv(intervals, IntervalRow._fields, rows)
    write_csv(comparisons, ComparisonRow._fields, compare(groups, families, draws))


def _families(arm: Arm, groups: Groups, config: ComparePoliciesConfig) -> list[ComparisonFamily]:
    families = families_of(
        arm,
        config.primary,
        together={(name, preset) for name, presets in config.families.items() for preset in presets},
        is_main=arm.preset == config.main_preset,
        baselines=[f"baseline/{name}" for name in BASELINES if f"baseline/{name}" in groups],
        columns=groups[next(iter(groups))].columns,
        samples=config.samples,
    )
    return [replace(family, pairs=tuple(pair for pair in family.pairs if pair[0] in groups)) for family in families]
