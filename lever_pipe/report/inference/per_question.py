"""Read accuracies by question: the policies of a batch, and the runs of a group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import group_of
from lever_pipe.base.records import PolicyScores
from lever_pipe.report.evidence import MEAN
from lever_pipe.report.inference.blocks import Array, Block

RERUN = "Rerun score_answers for this batch."


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
) -> dict[str, Block]:
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
    cells = (*map(str, shots), MEAN)
    return {name: Block(name, tuple(by_run), cells, np.stack(list(by_run.values()))) for name, by_run in runs.items()}


def with_mean(accuracies_NK: Array) -> Array:
    """Return [N, K + 1]: the accuracies by shot count, then their mean by question."""
    return np.concatenate([accuracies_NK, accuracies_NK.mean(axis=1, keepdims=True)], axis=1)
