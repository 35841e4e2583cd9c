"""Rule `collect_results`: every score, training metric and step as plain CSV files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import Cell, EpochMetrics, PolicyRef, RewardTies, StepMetrics
from lever_pipe.experiment.stage_configs import CollectResultsConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report.inference.costs import CostRow, cost_rows, training_prompts
from lever_pipe.report.long_format import decimal, write_csv

Line = tuple[object, ...]
Run = dict[int, dict[int, StepMetrics]]
"""The steps of a run by epoch and step."""

RUN = ("stage", "mode", "base_rce_epoch", "kl_beta", "seed")
SCORES_COLUMNS = (
    *("policy", *RUN, "epoch", "subset", "samples", "shots"),
    *("accuracy", "n_questions", "n_distinct_prompts", "preset"),
)
TRAINING_COLUMNS = (*RUN, "epoch", "metric", "value", "preset")
STEPS_COLUMNS = (*RUN, "epoch", "step", "prompts", "metric", "value", "preset")
WEIGHTS = ("hard", "soft", "relevance")
STAGES = ("baseline", "init", "sft", "rce", "grpo", "reinforce", "distil", "continued")
MODES = ("", "offline", "on_policy")


def collect_results(
    *,
    cells: Inputs,
    metrics: Inputs,
    steps: Inputs,
    rl_summary: Input,
    ties: Input,
    groups: Inputs,
    scores: Output,
    training: Output,
    rl_data: Output,
    arms: Output,
    arms_training: Output,
    steps_csv: Output,
    ties_csv: Output,
    costs: Output,
    config: CollectResultsConfig,
) -> None:
    """Write baselines and the main preset to `scores` and `training`, other presets to `arms*`, all to the others.

    `groups` belong to `config.presets`, in their order.

    Raises:
        RecordError: a malformed row, two rows for one cell, metric, step or reward, a cell, epoch or step of the
            configuration that no file holds, or a nested RL summary.
    """
    cell_rows = [row for path in cells for row in storage.read_rows(path, Cell)]
    metric_rows = [storage.read_row(path, EpochMetrics) for path in metrics]
    logged = _by_run([row for path in steps for row in storage.read_rows(path, StepMetrics)])
    if missing := [*_missing_targets(cell_rows, metric_rows, config), *_missing_steps(logged, config)]:
        raise RecordError(
            "tables: expected every cell and epoch of the configuration",
            found=f"{len(missing)} missing, first {missing[0]}",
            do=f"Build it: snakemake {scores.parents[1] / missing[0]}",
        )
    presets = ("", config.main_preset)
    score_lines = _distinct(_score_lines(cell_rows), SCORES_COLUMNS, ("accuracy", "n_questions", "n_distinct_prompts"))
    training_lines = _distinct(_training_lines(metric_rows), TRAINING_COLUMNS, ("value",))
    for path, columns, lines, main in (
        (scores, SCORES_COLUMNS, score_lines, True),
        (arms, SCORES_COLUMNS, score_lines, False),
        (training, TRAINING_COLUMNS, training_lines, True),
        (arms_training, TRAINING_COLUMNS, training_lines, False),
    ):
        write_csv(path, columns, [line for line in lines if (line[-1] in presets) == main])
    write_csv(steps_csv, STEPS_COLUMNS, _step_lines(logged))
    write_csv(rl_data, ("metric", "value"), _summary_lines(rl_summary))
    write_csv(costs, CostRow._fields, _cost_lines(metric_rows, groups, config))
    _write_ties(ties_csv, storage.read_rows(ties, RewardTies))


def _missing_targets(cells: Iterable[Cell], metrics: Iterable[EpochMetrics], config: CollectResultsConfig) -> list[str]:
    """Return the targets, from the study's folder, of cells and epochs that the tables need and no file holds."""
    there = {(cell.policy.name, cell.samples, cell.shots) for cell in cells}
    logged = {row.policy.name for row in metrics}
    targets = [
        f"{policy}/scores/samples~{samples}/shots~{shots}.json"
        for policy in config.evaluated
        for samples in config.samples
        for shots in config.shots
        if (policy, samples, shots) not in there
    ]
    return targets + [f"{policy}/metrics.json" for policy in config.trained if policy not in logged]


def _by_run(rows: Iterable[StepMetrics]) -> dict[PolicyName, Run]:
    """Return the steps of each run, by its epoch 0; the same step may come from two files, but not with two values."""
    runs: dict[PolicyName, Run] = {}
    for row in rows:
        steps = runs.setdefault(PolicyName.parse(row.policy.name).at(0), {}).setdefault(row.policy.epoch or 0, {})
        if steps.setdefault(row.step, row) != row:
            raise RecordError(
                "expected one row for each step of an epoch",
                found=f"two of step {row.step} of {row.policy.name}",
                do="Remove the files of the other run.",
            )
    return runs


def _missing_steps(runs: Mapping[PolicyName, Run], config: CollectResultsConfig) -> list[str]:
    """Return the targets of epochs without all their steps, of which each epoch of a run has as many."""
    wanted, whole = dict.fromkeys(config.stepped), set()
    for run, epochs in runs.items():
        most = max(map(len, epochs.values()))
        whole |= {str(run.at(epoch)) for epoch, steps in epochs.items() if set(steps) == set(range(most))}
        wanted |= dict.fromkeys(str(run.at(epoch)) for epoch in range(1, max(epochs) + 1))
    return [f"{policy}/steps.jsonl" for policy in wanted if policy not in whole]


def _score_lines(cells: Iterable[Cell]) -> list[Line]:
    lines: list[Line] = []
    for cell in sorted(cells, key=lambda cell: (_policy_order(cell.policy), cell.samples, cell.shots)):
        policy = cell.policy
        head = (policy.name.removeprefix("baseline/"), *_identity(policy), policy.epoch)
        for score in sorted(cell.subsets, key=lambda score: _natural(score.subset)):
            counts = (score.n_questions, score.n_distinct_prompts)
            tail = (cell.samples, cell.shots, decimal(score.accuracy), *counts, policy.preset)
            lines.append((*head, score.subset, *tail))
    return lines


def _training_lines(metrics: Iterable[EpochMetrics]) -> list[Line]:
    return [
        (*_identity(row.policy), row.policy.epoch, name, decimal(row.values[name]), row.policy.preset)
        for row in sorted(metrics, key=lambda row: _policy_order(row.policy))
        for name in sorted(row.values)
    ]


def _step_lines(runs: Mapping[PolicyName, Run]) -> list[Line]:
    """Return the metrics of every step, with steps and prompts counted since the first epoch of their run began."""
    lines: list[Line] = []
    for epochs in sorted(runs.values(), key=lambda epochs: _policy_order(epochs[min(epochs)][0].policy)):
        n_steps = n_prompts = 0
        for epoch in sorted(epochs):
            rows = [row for _, row in sorted(epochs[epoch].items())]
            for row in rows:
                head = (*_identity(row.policy), epoch, n_steps + row.step, n_prompts + row.prompts)
                lines += [(*head, name, row.values[name], row.policy.preset) for name in sorted(row.values)]
            n_steps, n_prompts = n_steps + len(rows), n_prompts + rows[-1].prompts
    return lines


def _cost_lines(metrics: Iterable[EpochMetrics], groups: Sequence[Path], config: CollectResultsConfig) -> list[Line]:
    rl_prompts = {
        preset: training_prompts(storage.read_arrays(path)["valid"], share)
        for preset, share, path in zip(config.presets, config.train_shares, groups, strict=True)
    }
    rows = sorted(metrics, key=lambda row: _policy_order(row.policy))
    return _distinct(list(cost_rows(rows, rl_prompts)), CostRow._fields, ())


def _identity(policy: PolicyRef) -> Line:
    beta = "" if policy.kl_beta is None else f"{policy.kl_beta:g}"
    return (policy.stage, policy.mode, policy.base_rce_epoch, beta, policy.seed)


def _policy_order(policy: PolicyRef) -> tuple[object, ...]:
    """Return a key that puts baselines first and counts epochs, seeds and draws as numbers."""
    numbers = (policy.base_rce_epoch, policy.kl_beta, policy.seed, policy.epoch)
    known = tuple(-1.0 if number is None else float(number) for number in numbers)
    kind = (STAGES.index(policy.stage), MODES.index(policy.mode))
    return (*kind, policy.preset, known, _natural(policy.name))


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    parts = re.split(r"(\d+)", text)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


def _distinct(lines: list[Line], columns: Sequence[str], values: Sequence[str]) -> list[Line]:
    """Return the lines once each; the same row may come from two runs, but not with two values."""
    keys = [index for index, column in enumerate(columns) if column not in values]
    seen: dict[Line, Line] = {}
    for line in lines:
        key = tuple(line[index] for index in keys)
        if seen.setdefault(key, line) != line:
            raise RecordError(
                "expected one value for each policy, cell and metric",
                found=f"{seen[key]} and {line}",
                do="Remove the files of the other run.",
            )
    return list(seen.values())


def _summary_lines(path: Path) -> list[Line]:
    summary = storage.read_json(path)
    if not isinstance(summary, dict) or any(isinstance(value, dict | list) for value in summary.values()):
        raise RecordError(f"{path}: expected a flat JSON object", found="nested values", do="Rebuild the RL data.")
    values = {name: value if isinstance(value, str | float) else json.dumps(value) for name, value in summary.items()}
    return sorted(values.items())


def _write_ties(path: Path, rows: Sequence[RewardTies]) -> None:
    """Write each reward once, with a column for each number of best selections kept, `best_3`."""
    kept = sorted({int(k) for row in rows for k in row.best_differ})
    seen: dict[str, RewardTies] = {}
    for row in rows:
        key = json.dumps([row.mode, row.weights], sort_keys=True)
        if seen.setdefault(key, row) != row or len(row.best_differ) != len(kept):
            raise RecordError(
                "ties: expected one row for each reward, every row with the same numbers of best selections",
                found=f"{row.mode} with {', '.join(row.best_differ) or 'none'}",
                do="Rebuild it: remove the file and run measure_rewards again.",
            )
    columns = ("mode", *WEIGHTS, "queries", "differ", "differ_clearly", *(f"best_{k}" for k in kept))
    lines = (
        (row.mode, *map(row.weights.get, WEIGHTS), row.queries, row.differ, row.differ_clearly) for row in seen.values()
    )
    best = ((row.best_differ[str(k)] for k in kept) for row in seen.values())
    write_csv(path, columns, ((*line, *own) for line, own in zip(lines, best, strict=True)))
