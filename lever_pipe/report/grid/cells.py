"""Cells of the grid with their intervals, and the comparisons between them.

A cell is a policy in a setting: data set, sampler, LVLM. All cells of a data set answer the same questions, so any two
of them are compared question by question. Two trained cells are also compared over their common seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base.policy_names import BASELINE, OWN, PolicyName, group_of
from lever_pipe.experiment.grid import CompareCellsConfig
from lever_pipe.report.evidence import MEAN, PRIMARY
from lever_pipe.report.inference.estimates import Draws
from lever_pipe.report.inference.families import ORACLE, ComparisonFamily
from lever_pipe.report.inference.per_question import read_groups, read_scores
from lever_pipe.report.inference.policy_comparisons import ComparisonRow, IntervalRow, comparison_rows, interval_rows

RANDOM, RICES = "baseline/random", "baseline/similar_image"
OBJECTIVES = ("sft", "rce", "continued", "grpo", "on_policy")
"""Each objective is compared with the ones before it."""
AGAINST_RANDOM, BASELINE_FAMILY, SAMPLERS, AIMS, SELECTORS = (
    "against-random",
    "baselines",
    "samplers",
    "objectives",
    "selectors",
)
OWN_BASELINES, OWNS, TRANSFERS, ITEMS, ITEM_SAMPLERS = (
    "own-baselines",
    "own",
    "transfer",
    "first-items",
    "first-items-samplers",
)
QUESTIONS: Mapping[str, str] = {
    OWN_BASELINES: "Does a selector of the user's own beat the usual baselines?",
    AGAINST_RANDOM: "Does the selector choose better than chance does from the same pools?",
    BASELINE_FAMILY: "How far are policies without training from chance out of the same pools?",
    SAMPLERS: "Do pools of this sampler serve the same policy better than those of the first sampler?",
    ITEM_SAMPLERS: "Offered the first train items, does the sampler of its training data matter to a selector?",
    AIMS: "Does this objective make a better selector than the other one, the network being the same?",
    SELECTORS: "Does this selector beat the reference selector that was trained by the same objective?",
    OWNS: "Does a selector of the user's own beat the reference selector?",
    TRANSFERS: "How does a selector that was trained on another data set do against the one trained here?",
    ITEMS: "What do selectors lose that are offered the first train items in place of pools, as the published ones?",
}
"""Family -> its question, in the order of the file. Each is adjusted (Holm) separately, and within each data set."""


class CellRow(NamedTuple):
    """A line of `leaderboard.csv`: a cell at a sample and a shot count; accuracies in percent."""

    data: str
    sampler: str
    lvlm: str
    selector: str
    """Preset of a trained selector; otherwise the name of the baseline or of the user's selector."""
    objective: str
    trained_on: str
    """Data set; empty for a policy without training."""
    policy: str
    training_prompts: int
    """Maximum number of prompts that the LVLM answers before the policy can select."""
    n_runs: int
    samples: int
    shots: str
    accuracy: float
    low: float
    high: float
    share_of_oracle: float | None
    """Share of the distance from random to the oracle of the same setting; empty if these are missing or equal."""


class GridCell(NamedTuple):
    """The parts of a group's name within a data set."""

    sampler: str
    lvlm: str
    policy: PolicyName

    @classmethod
    def parse(cls, group: str) -> GridCell:
        """Return the parts of a group's name."""
        sampler, lvlm, policy = group.split("/", 2)
        return cls(sampler.removeprefix("sampler~"), lvlm.removeprefix("lvlm~"), PolicyName.parse(policy))

    @property
    def setting(self) -> str:
        """Return the prefix of the names in its setting."""
        return f"sampler~{self.sampler}/lvlm~{self.lvlm}"

    @property
    def is_trained_here(self) -> bool:
        """Return whether it was trained on its own data set and selects from its own pools."""
        return bool(self.policy.preset) and self.policy == self.policy.home

    @property
    def reads_pools(self) -> bool:
        """Return whether the sampler can affect it; a file of the user's selections is the same for each sampler."""
        return str(self.policy) not in ("baseline/zero_shot", "baseline/random_all") and self.policy.kind != OWN

    def __str__(self) -> str:
        """Return the group's name."""
        return f"{self.setting}/{self.policy}"


def compare_cells(
    paths: Sequence[Path], config: CompareCellsConfig
) -> tuple[list[CellRow], dict[str, list[ComparisonRow]]]:
    """Return the lines of the leaderboard, and the comparisons by data set.

    Raises:
        RecordError: a malformed file, or policies of a data set that were scored on different questions.
    """
    rows: list[CellRow] = []
    compared: dict[str, list[ComparisonRow]] = {}
    for data in dict.fromkeys(cell.data for cell in config.evaluated):
        evaluated = [(cell, path) for cell, path in zip(config.evaluated, paths, strict=True) if cell.data == data]
        names = [f"sampler~{cell.sampler}/lvlm~{cell.lvlm}/{cell.policy}" for cell, _ in evaluated]
        policies, files = [cell.policy for cell, _ in evaluated], [path for _, path in evaluated]
        # All cells of a data set must have the questions of its first cell.
        questions = list(read_scores(files[0])[policies[0]].index)
        groups = read_groups(policies, files, questions=questions, shots=config.shots, names=names)
        draws = Draws(config.seed, config.n_resamples, over=f"questions of {data}")
        prompts = {group_of(name): cell.training_prompts for name, (cell, _) in zip(names, evaluated, strict=True)}
        rows += _leaderboard(data, interval_rows(groups, config.samples, draws), prompts)
        families = families_of(list(map(GridCell.parse, groups)), config, data)
        compared[data] = comparison_rows(groups, families, draws)
    return rows, compared


def families_of(cells: Sequence[GridCell], config: CompareCellsConfig, data: str) -> list[ComparisonFamily]:
    """Return the families of a data set at the largest sample count and the mean over shots, RICES first."""
    pairs: dict[str, list[tuple[str, str]]] = {name: [] for name in QUESTIONS}
    rights = sorted(cells, key=lambda cell: str(cell.policy) != RICES)
    for left, right in product(cells, rights):
        for name in _families_of_pair(left, right, config) if left != right else ():
            pairs[name].append((str(left), str(right)))
    n = max(config.samples)
    return [
        ComparisonFamily(name, n, tuple(of_family), f"{name} on {data}", (MEAN,), PRIMARY)
        for name, of_family in pairs.items()
        if of_family
    ]


def _families_of_pair(left: GridCell, right: GridCell, config: CompareCellsConfig) -> Iterator[str]:
    """Yield the families that compare two different cells, left minus right."""
    ours, other = left.policy, right.policy
    if right == left._replace(sampler=config.evaluated[0].sampler) and left.reads_pools:
        yield ITEM_SAMPLERS if ours.items else SAMPLERS
    if left.setting != right.setting:
        return
    if str(other) == RANDOM and not ours.items:
        yield BASELINE_FAMILY if ours.kind == BASELINE else AGAINST_RANDOM
    # `AGAINST_RANDOM` compares with random selection, and the oracle reads the query's annotations.
    if (ours.kind, other.kind) == (OWN, BASELINE) and str(other) not in (RANDOM, ORACLE):
        yield OWN_BASELINES
    if other == ours.home and (ours.origin or ours.items):
        yield TRANSFERS if ours.origin else ITEMS
    is_reference = right.is_trained_here and other.preset == config.reference
    if ours.kind == OWN and is_reference:
        yield OWNS
    if left.is_trained_here and right.is_trained_here:
        earlier = OBJECTIVES[: OBJECTIVES.index(ours.kind)] if ours.kind in OBJECTIVES else ()
        if ours.preset == other.preset and other.kind in earlier:
            yield AIMS
        if is_reference and ours.preset != other.preset and (ours.kind, ours.beta) == (other.kind, other.beta):
            yield SELECTORS


def _leaderboard(data: str, rows: Sequence[IntervalRow], prompts: Mapping[str, int]) -> Iterator[CellRow]:
    accuracy = {(row.group, row.samples, row.shots): row.accuracy for row in rows}
    for row in rows:
        grid_cell = GridCell.parse(row.group)
        chance, best = (
            accuracy.get((f"{grid_cell.setting}/{baseline}", row.samples, row.shots)) for baseline in (RANDOM, ORACLE)
        )
        is_known = chance is not None and best is not None and best > chance
        policy = grid_cell.policy
        yield CellRow(
            data=data,
            sampler=grid_cell.sampler,
            lvlm=grid_cell.lvlm,
            selector=policy.preset or policy.variant,
            objective=policy.kind,
            trained_on=(policy.origin or data) if policy.preset else "",
            policy=str(policy),
            training_prompts=prompts[row.group],
            n_runs=row.n_runs,
            samples=row.samples,
            shots=row.shots,
            accuracy=row.accuracy,
            low=row.low,
            high=row.high,
            share_of_oracle=(row.accuracy - chance) / (best - chance) if is_known else None,  # type: ignore[operator]
        )
