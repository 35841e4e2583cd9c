"""Rule `score_emulation`: accuracies and choices of every emulated policy, and the KL without updates, as CSV files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from lever_pipe.base import storage
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import AnswerRow, EpochMetrics, Example, ExampleId, PolicyRef
from lever_pipe.experiment.faults import CONTROL, EmulatedPolicy
from lever_pipe.experiment.stage_configs import ScoreEmulationConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.lever.emulation import Chosen, identical_prompts, prompts_a_query, repeated_share
from lever_pipe.metrics.cells import Demonstrations, build_cells, score_questions
from lever_pipe.report.long_format import write_csv

Line = tuple[object, ...]
EMULATED_SCORES_COLUMNS = (
    *("arm", "kl_beta", "epoch", "samples", "shots"),
    *("accuracy", "n_questions", "n_distinct_prompts"),
)
EMULATED_PROMPTS_COLUMNS = ("arm", "shots", "repeated_share", "prompts_a_query_mean", "prompts_a_query_max")
EMULATED_AGREEMENT_COLUMNS = ("arm", "kl_beta", "epoch", "other_kl_beta", "other_epoch", "shots", "identical")
EMULATED_TRAINING_COLUMNS = ("arm", "base_rce_epoch", "epoch", "metric", "value")
Selected = Mapping[EmulatedPolicy, Mapping[ExampleId, Demonstrations]]


def score_emulation(
    *,
    selections: Inputs,
    answers: Inputs,
    eval_examples: Input,
    untouched: Input,
    scores: Output,
    prompts: Output,
    agreement: Output,
    training: Output,
    config: ScoreEmulationConfig,
) -> int:
    """Write the four files and return how many policies were scored.

    Raises:
        RecordError: a query has no selection, a prompt no answer, or a cell wants more queries than there are.
    """
    selected: Selected = {
        policy: storage.read_selections(path) for policy, path in zip(config.policies, selections, strict=True)
    }
    score_lines = list(_score_lines(selected, storage.read_examples(eval_examples), answers, config))
    for path, columns, lines in (
        (scores, EMULATED_SCORES_COLUMNS, score_lines),
        (prompts, EMULATED_PROMPTS_COLUMNS, _prompt_lines(selected, config.shots)),
        (agreement, EMULATED_AGREEMENT_COLUMNS, _agreement_lines(selected, config.shots)),
        (training, EMULATED_TRAINING_COLUMNS, _training_lines(storage.read_rows(untouched, EpochMetrics))),
    ):
        write_csv(path, columns, lines)
    return len(selected)


def _score_lines(
    selected: Selected, queries: Sequence[Example], answers: Sequence[Path], config: ScoreEmulationConfig
) -> Iterable[Line]:
    for (policy, chosen), path in zip(selected.items(), answers, strict=True):
        said = {(row.query_id, row.demonstrations): row.answer for row in storage.read_rows(path, AnswerRow)}
        scores, keys = score_questions(queries, chosen, said, config.shots, files=(policy.name, str(path)))
        ref = PolicyRef.of(policy.name)
        for cell in build_cells(ref, scores, keys, samples=config.samples, n_random_subsets=0, seed=0):
            (prefix,) = cell.subsets
            counts = (prefix.n_questions, prefix.n_distinct_prompts)
            yield (*_identity(policy), cell.samples, cell.shots, prefix.accuracy, *counts)


def _identity(policy: EmulatedPolicy) -> Line:
    return policy.arm, f"{policy.kl_beta:g}", policy.epoch


def _arms(selected: Selected) -> Iterable[tuple[str, dict[EmulatedPolicy, Chosen]]]:
    for arm, policies in groupby(selected, key=lambda policy: policy.arm):
        chosen = {policy: sorted(selected[policy].items()) for policy in policies}
        yield arm, {policy: np.array([of for _, of in rows], dtype=np.int64) for policy, rows in chosen.items()}


def _prompt_lines(selected: Selected, shots: Sequence[int]) -> Iterable[Line]:
    """Yield one line for each shot count of an arm, and one for all of them together, whose shots are absent."""
    for arm, policies in _arms(selected):
        chosen = list(policies.values())
        by_shots = [prompts_a_query(chosen, k) for k in shots]
        for k, distinct in zip(shots, by_shots, strict=True):
            repeated = float(np.mean([repeated_share(one, k) for one in chosen]))
            yield arm, k, repeated, float(distinct.mean()), int(distinct.max())
        together = np.sum(by_shots, axis=0)
        yield arm, None, None, float(together.mean()), int(together.max())


def _agreement_lines(selected: Selected, shots: Sequence[int]) -> Iterable[Line]:
    for arm, policies in _arms(selected):
        for k in shots:
            for one, other, identical in identical_prompts(policies, k):
                yield arm, *_identity(one)[1:], *_identity(other)[1:], k, identical


def _training_lines(rows: Iterable[EpochMetrics]) -> Iterable[Line]:
    """Yield every metric of the epochs without updates."""
    for row in rows:
        policy = row.policy
        arm = PolicyName.parse(policy.name).member or CONTROL
        for name in sorted(row.values):
            yield arm, policy.base_rce_epoch, policy.epoch, name, row.values[name]
