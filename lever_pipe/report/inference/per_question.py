"""Accuracies by question: the policies of a batch, and the runs of a group in one array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import PolicyName, group_of, values_in
from lever_pipe.base.records import PolicyScores
from lever_pipe.report.evidence import MEAN

Array = NDArray[np.float64]


RERUN = "Rerun score_answers for this batch."


@dataclass(frozen=True, slots=True)
class GroupScores:
    """The S runs of one group over the same N questions."""

    name: str
    runs: tuple[str, ...]
    columns: tuple[str, ...]
    """The shot counts, then `mean`."""
    accuracies: Array
    """[S, N, C] by run, question and column."""

    @property
    def is_trained(self) -> bool:
        """Return whether the runs were trained; baselines are untrained."""
        return bool(self.seeds)

    @property
    def seeds(self) -> tuple[str, ...]:
        """Return the seed of each run; empty for baselines, whose draws are unrelated to seeds."""
        return tuple(seed for run in self.runs if (seed := values_in(run).get("seed")))

    def over(self, questions: slice | NDArray[np.bool_]) -> GroupScores:
        """Return the same runs over some of the questions."""
        return replace(self, accuracies=self.accuracies[:, questions])

    def at(self, columns: Sequence[str]) -> GroupScores:
        """Return the same runs at these columns, or at all columns if none is named."""
        positions = [self.columns.index(column) for column in columns or self.columns]
        return replace(
            self, columns=tuple(self.columns[k] for k in positions), accuracies=self.accuracies[..., positions]
        )

    def of_seeds(self, seeds: Iterable[str]) -> GroupScores:
        """Return the runs of these seeds, in their order."""
        positions = [self.seeds.index(seed) for seed in seeds]
        return replace(self, runs=tuple(self.runs[run] for run in positions), accuracies=self.accuracies[positions])

    def shares_seeds_with(self, other: GroupScores) -> bool:
        """Return whether run s of both groups has the same seed, or is the same draw of one baseline, for every s."""
        return self.runs == other.runs or (self.is_trained and self.seeds == other.seeds)


def read_scores(path: Path) -> dict[str, pd.DataFrame]:
    """Return the accuracies in [0, 1] of each policy in the `per_question.jsonl` of a batch.

    The frames are by query id and shot count, both ascending.

    Raises:
        RecordError: a malformed row, or a missing question.
    """
    return {row.policy: _scores_of(row, path) for row in storage.read_rows(path, PolicyScores)}


def _scores_of(row: PolicyScores, path: Path) -> pd.DataFrame:
    scores = {(int(score.query_id), score.shots): score.accuracy for score in row.questions}
    questions, shots = sorted({query for query, _ in scores}), sorted({k for _, k in scores})
    if not scores or len(scores) < len(questions) * len(shots):
        raise RecordError(
            f"{path}: expected a score of each question at each shot count for {row.policy}",
            found=f"{len(scores)} of {len(questions)} x {len(shots)}",
            do=RERUN,
        )
    return pd.DataFrame([[scores[query, k] for k in shots] for query in questions], questions, shots)


def read_groups(
    policies: Sequence[str],
    paths: Sequence[Path],
    *,
    questions: Sequence[int],
    shots: Sequence[int],
    names: Sequence[str] = (),
) -> dict[str, GroupScores]:
    """Return the groups of these policies by name, each with its runs in the order given.

    Args:
        policies: policies to read.
        paths: the file of each policy's batch; adjacent equal paths are read once.
        questions: required query ids of each policy.
        shots: shot counts.
        names: of the runs, if they differ from the policies' names.

    Raises:
        RecordError: as in `read_scores`, or a policy has no scores, or scores of other questions or shot counts.
    """
    runs: dict[str, dict[str, Array]] = {}
    for path, of_batch in groupby(zip(names or policies, policies, paths, strict=True), key=lambda run: run[2]):
        by_policy = read_scores(path)
        for name, policy, _ in of_batch:
            scores = by_policy.get(policy, pd.DataFrame())
            if list(scores.index) != list(questions) or not set(shots) <= set(scores):
                raise RecordError(
                    f"{path}: expected scores of {len(questions)} questions at shots {list(shots)} for {policy}",
                    found=f"{len(scores)} questions, of these "
                    f"{len(set(questions) & set(scores.index))} expected, at shots {list(scores)}",
                    do=RERUN,
                )
            runs.setdefault(group_of(name), {})[name] = with_mean(scores[list(shots)].to_numpy())
    columns = (*map(str, shots), MEAN)
    return {
        name: GroupScores(name, tuple(by_run), columns, np.stack(list(by_run.values())))
        for name, by_run in runs.items()
    }


def on_common_seeds(left: GroupScores, right: GroupScores) -> tuple[GroupScores, GroupScores]:
    """Return two trained groups restricted to their common seeds, so that runs pair; other groups stay unchanged."""
    common = [seed for seed in left.seeds if seed in right.seeds]
    return (left.of_seeds(common), right.of_seeds(common)) if common else (left, right)


def mean_group(name: str, groups: Sequence[GroupScores]) -> GroupScores | None:
    """Return the mean of several trained groups, seed by seed over their common seeds; None without one.

    Args:
        name: of the mean group, to which each run adds its seed.
        groups: over the same questions and columns.
    """
    common = [seed for seed in groups[0].seeds if all(seed in group.seeds for group in groups)]
    if not common:
        return None
    runs = tuple(str(replace(PolicyName.parse(name), seed=int(seed))) for seed in common)
    values = np.mean([group.of_seeds(common).accuracies for group in groups], axis=0)
    return GroupScores(name, runs, groups[0].columns, values)


def with_mean(accuracies_NK: Array) -> Array:
    """Return [N, K + 1]: the accuracies by shot count, then their mean by question."""
    return np.concatenate([accuracies_NK, accuracies_NK.mean(axis=1, keepdims=True)], axis=1)
