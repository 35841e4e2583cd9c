"""Cells of the grid with their intervals, and the comparisons between them.

A cell is a policy in a setting: data set, sampler, LVLM. All cells of a data set answer the same questions, so any two
of them are compared question by question. Two trained cells are also compared over their common seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base.policy_names import BASELINE, OWN, PolicyName, group_of
from lever_pipe.experiment.grid import CompareCellsConfig
from lever_pipe.report.evidence import MEAN, PRIMARY
from lever_pipe.report.inference import estimates
from lever_pipe.report.inference.estimates import ComparisonRow, Draws, IntervalRow
from lever_pipe.report.inference.families import ORACLE, ComparisonFamily, Pairs
from lever_pipe.report.inference.per_question import read_groups, read_scores

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
    AIMS: "Does this objective make a better selector than the other one, the network being the same?",
    SELECTORS: "Does this selector beat the reference selector that was trained by the same objective?",
    OWNS: "Does a selector of the user's own beat the reference selector?",
    ITEMS: "What do selectors lose that are offered the first train items in place of pools, as the published ones?",
    ITEM_SAMPLERS: "Offered the first train items, does the sampler of its training data matter to a selector?",
    TRANSFERS: "How does a selector that was trained on another data set do against the one trained here?",
}
"""Family -> its question, left minus right. Each family is adjusted (Holm) separately, and within each data set."""


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
        rows += _leaderboard(data, estimates.intervals(groups, config.samples, draws), prompts)
        families = families_of(list(map(GridCell.parse, groups)), config, data)
        compared[data] = estimates.comparisons(groups, families, draws)
    return rows, compared


def families_of(grid_cells: Sequence[GridCell], config: CompareCellsConfig, data: str) -> list[ComparisonFamily]:
    """Return the families of a data set at the largest sample count and the mean over shots."""
    first, chance = config.evaluated[0].sampler, PolicyName.parse(RANDOM)
    references = [grid_cell for grid_cell in grid_cells if grid_cell.policy.kind == BASELINE]
    offered = [grid_cell for grid_cell in grid_cells if grid_cell.policy.items]
    learned = [grid_cell for grid_cell in grid_cells if grid_cell not in (*references, *offered)]
    trained = [
        grid_cell for grid_cell in grid_cells if grid_cell.policy.preset and grid_cell.policy == grid_cell.policy.home
    ]
    away = [grid_cell for grid_cell in grid_cells if grid_cell.policy.origin]

    def with_other(chosen: Sequence[GridCell], other: Callable[[GridCell], GridCell]) -> Pairs:
        return tuple(
            (str(grid_cell), str(other(grid_cell)))
            for grid_cell in chosen
            if other(grid_cell) in grid_cells and other(grid_cell) != grid_cell
        )

    def with_random(grid_cell: GridCell) -> GridCell:
        return grid_cell._replace(policy=chance)

    def from_first(grid_cell: GridCell) -> GridCell:
        return grid_cell._replace(sampler=first)

    def at_home(grid_cell: GridCell) -> GridCell:
        return grid_cell._replace(policy=grid_cell.policy.home)

    comparisons = [
        (OWN_BASELINES, tuple(_own_with_baselines(grid_cells, references))),
        (AGAINST_RANDOM, with_other(learned, with_random)),
        (BASELINE_FAMILY, with_other(references, with_random)),
        (
            SAMPLERS,
            with_other(
                [grid_cell for grid_cell in grid_cells if grid_cell not in offered and _reads_pools(grid_cell)],
                from_first,
            ),
        ),
        (ITEM_SAMPLERS, with_other(offered, from_first)),
        (AIMS, tuple(_with_earlier_objectives(trained))),
        (SELECTORS, tuple(_with_reference(trained, config.reference))),
        (OWNS, tuple(_own_with_reference(grid_cells, trained, config.reference))),
        (TRANSFERS, with_other(away, at_home)),
        (ITEMS, with_other(offered, at_home)),
    ]
    return [
        ComparisonFamily(name, max(config.samples), pairs, f"{name} on {data}", (MEAN,), PRIMARY)
        for name, pairs in comparisons
        if pairs
    ]


def _reads_pools(grid_cell: GridCell) -> bool:
    """Return whether the sampler can affect a policy; a file of the user's selections is the same for each sampler."""
    return str(grid_cell.policy) not in ("baseline/zero_shot", "baseline/random_all") and grid_cell.policy.kind != OWN


def _with_earlier_objectives(trained: Sequence[GridCell]) -> Iterator[tuple[str, str]]:
    for left, right in product([grid_cell for grid_cell in trained if grid_cell.policy.kind in OBJECTIVES], repeat=2):
        is_same = (left.setting, left.policy.preset) == (right.setting, right.policy.preset)
        if is_same and right.policy.kind in OBJECTIVES[: OBJECTIVES.index(left.policy.kind)]:
            yield str(left), str(right)


def _with_reference(trained: Sequence[GridCell], reference: str) -> Iterator[tuple[str, str]]:
    references = {
        (grid_cell.setting, grid_cell.policy.kind, grid_cell.policy.beta): str(grid_cell)
        for grid_cell in trained
        if grid_cell.policy.preset == reference
    }
    for grid_cell in trained:
        reference_cell = references.get((grid_cell.setting, grid_cell.policy.kind, grid_cell.policy.beta))
        if reference_cell is not None and grid_cell.policy.preset != reference:
            yield str(grid_cell), reference_cell


def _own_with_reference(
    grid_cells: Sequence[GridCell], trained: Sequence[GridCell], reference: str
) -> Iterator[tuple[str, str]]:
    references = [
        grid_cell for grid_cell in trained if grid_cell.policy.preset == reference
    ]  # none if no arm is the reference
    owns = [grid_cell for grid_cell in grid_cells if grid_cell.policy.kind == OWN]
    yield from (
        (str(own), str(reference_cell))
        for own, reference_cell in product(owns, references)
        if reference_cell.setting == own.setting
    )


def _own_with_baselines(grid_cells: Sequence[GridCell], baselines: Sequence[GridCell]) -> Iterator[tuple[str, str]]:
    """Yield the pairs with every baseline of the setting, RICES first.

    Random selection is excluded because `AGAINST_RANDOM` compares it, the oracle because it reads the query's
    annotations.
    """
    usual = [grid_cell for grid_cell in baselines if str(grid_cell.policy) not in (RANDOM, ORACLE)]
    usual.sort(key=lambda grid_cell: str(grid_cell.policy) != RICES)
    owns = [grid_cell for grid_cell in grid_cells if grid_cell.policy.kind == OWN]
    yield from ((str(own), str(baseline)) for own, baseline in product(owns, usual) if baseline.setting == own.setting)


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
