"""Collect scores, training metrics and steps of all policies as CSV files, and the lineage of each policy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.artefacts import Artefact, read_artefact
from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.base.records import Cell, EpochMetrics, Manifest, RewardTies, StepMetrics
from lever_pipe.experiment.collected import CollectLineageConfig, CollectResultsConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report import lineage as fields_of
from lever_pipe.report.inference.costs import CostRow, cost_rows, training_prompts
from lever_pipe.report.long_format import decimal, write_csv

Line = tuple[object, ...]
Fields = dict[str, dict[str, set[str]]]
"""Values of a lineage by group and field."""

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

    `groups` belong to `config.presets`, in the same order.
    """
    cell_rows = [row for path in cells for row in storage.read_rows(path, Cell)]
    metric_rows = [storage.read_row(path, EpochMetrics) for path in metrics]
    logged = [row for path in steps for row in storage.read_rows(path, StepMetrics)]
    presets = ("", config.main_preset)
    score_lines, training_lines = _score_lines(cell_rows), _training_lines(metric_rows)
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
    of_rewards = storage.read_rows(ties, RewardTies)
    top_ks = sorted({k for row in of_rewards for k in row.best_differ}, key=int)
    tie_columns = ("mode", *WEIGHTS, "queries", "differ", "differ_clearly", *(f"best_{k}" for k in top_ks))
    write_csv(ties_csv, tie_columns, _tie_lines(of_rewards, top_ks))


def _score_lines(cells: Iterable[Cell]) -> list[Line]:
    lines: list[Line] = []
    for cell in sorted(cells, key=lambda cell: (_policy_order(cell.policy), cell.samples, cell.shots)):
        policy = cell.policy
        head = (str(policy).removeprefix("baseline/"), *_identity(policy), policy.epoch)
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


def _step_lines(rows: Iterable[StepMetrics]) -> list[Line]:
    """Return the metrics of every step, with steps and prompts accumulated over the epochs of a run."""
    lines: list[Line] = []
    ordered = sorted(rows, key=lambda row: (_policy_order(row.policy), row.step))
    for _, run in groupby(ordered, key=lambda row: row.policy.at(0)):
        n_steps = n_prompts = 0
        for epoch, steps in groupby(run, key=lambda row: row.policy.epoch):
            taken = list(steps)
            for row in taken:
                head = (*_identity(row.policy), epoch, n_steps + row.step, n_prompts + row.prompts)
                lines += [(*head, name, row.values[name], row.policy.preset) for name in sorted(row.values)]
            n_steps, n_prompts = n_steps + len(taken), n_prompts + taken[-1].prompts
    return lines


def _cost_lines(metrics: Iterable[EpochMetrics], groups: Sequence[Path], config: CollectResultsConfig) -> list[Line]:
    rl_prompts = {
        preset: training_prompts(storage.read_arrays(path)["valid"], share)
        for preset, share, path in zip(config.presets, config.train_shares, groups, strict=True)
    }
    rows = sorted(metrics, key=lambda row: _policy_order(row.policy))
    return list(dict.fromkeys(cost_rows(rows, rl_prompts)))


def _identity(policy: PolicyName) -> Line:
    beta = "" if policy.beta is None else f"{policy.beta:g}"
    return (policy.phase, policy.mode, policy.base, beta, policy.seed)


def _policy_order(policy: PolicyName) -> tuple[object, ...]:
    """Return a sort key with baselines first, and epochs, seeds and draws in numerical order."""
    numbers = (policy.base, policy.beta, policy.seed, policy.epoch)
    parts = tuple(-1.0 if number is None else float(number) for number in numbers)
    kind = (STAGES.index(policy.phase), MODES.index(policy.mode))
    return (*kind, policy.preset, parts, _natural(str(policy)))


def _natural(text: str, *, number: str = r"(\d+)") -> list[tuple[float, str]]:
    parts = re.split(number, text)
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]


def _summary_lines(path: Path) -> list[Line]:
    summary = storage.read_json(path)
    values = {name: value if isinstance(value, str | float) else json.dumps(value) for name, value in summary.items()}
    return sorted(values.items())


def _tie_lines(rows: Iterable[RewardTies], top_ks: Sequence[str]) -> list[Line]:
    """Return a line for each reward, with a column for each top k."""
    rewards = {json.dumps([row.mode, row.weights], sort_keys=True): row for row in rows}  # presets may share one
    return [
        (
            *(row.mode, *map(row.weights.get, WEIGHTS), row.queries, row.differ, row.differ_clearly),
            *(row.best_differ[k] for k in top_ks),
        )
        for row in rewards.values()
    ]


def collect_lineage(
    *,
    training: Inputs,
    started: Inputs,
    rewards: Inputs,
    selections: Inputs,
    answers: Inputs,
    scores: Inputs,
    lineage: Output,
    config: CollectLineageConfig,
) -> None:
    """Write one line for each group of seeds or draws and each field that applies to it.

    `started` are the untrained selectors of presets that start from a checkpoint; if there are any, the lineages of all
    presets include their start. `rewards` belong to `config.presets`, and `selections` to the evaluated policies, batch
    by batch; `config.batch_sizes` has the number of policies in each of `answers` and `scores`. Several values of a
    field are sorted and joined. Field `exchanged` lists a policy's source files that differ from their rule's output.
    """
    fields: Fields = {}
    shared = dict(zip(config.presets, map(_manifest, rewards), strict=True))
    scored = [
        _of_policy(read_artefact(path), position)
        for path, n in zip(scores, config.batch_sizes, strict=True)
        for position in range(n)
    ]
    artefacts = [read_artefact(path) for path in (*training, *started, *rewards, *selections)]
    exchanged = _exchanged([*artefacts, *scored])  # without the answers: a file of them belongs to a batch of policies
    starts = {row.config["preset"]: fields_of.of_start(row) for row in map(_manifest, started)}
    for path, row in zip(training, map(_manifest, training), strict=True):
        base, rewarded = fields_of.of_training(row), fields_of.learns_from_rewards(row)
        stored = fields_of.of_reward(shared[row.config["preset"]]) if rewarded else {}
        values = base | {name: value for name, value in stored.items() if name not in base}
        values |= starts.get(row.config["preset"], fields_of.UNTRAINED) if starts else {}
        values |= fields_of.of_environment(row)
        _add(fields, fields_of.group_of_training(row), [*values.items(), *exchanged[path]])
    of_batches = [(_manifest(answer), _manifest(score)) for answer, score in zip(answers, scores, strict=True)]
    batches = [pair for pair, n in zip(of_batches, config.batch_sizes, strict=True) for _ in range(n)]
    names = [policy["name"] for _, score in of_batches for policy in score.config["policies"]]
    for policy, part, selection, (batch, score) in zip(names, scored, map(_manifest, selections), batches, strict=True):
        values = {"scale": config.scale, **fields_of.of_selection(selection, policy)}
        values |= {**fields_of.of_answers(batch), **fields_of.of_scores(score)}
        environments = (field for row in (selection, batch, score) for field in fields_of.of_environment(row).items())
        _add(fields, group_of(policy), [*values.items(), *environments, *exchanged[part.manifest]])
    write_csv(lineage, fields_of.COLUMNS, _lineage_lines(fields))


def _manifest(path: Path) -> Manifest:
    return storage.read_row(path, Manifest)


def _of_policy(scores: Artefact, position: int) -> Artefact:
    """Return the scores of a batch, restricted to the inputs of one of its policies."""
    origin = scores.origin
    if origin is not None:
        name = f"selections[{position}]"
        origin = origin.model_copy(
            update={"inputs": {name: origin.inputs[name]} if name in origin.inputs else {}, "outputs": {}}
        )
    return scores._replace(manifest=scores.manifest / str(position), origin=origin)


def _exchanged(artefacts: Sequence[Artefact]) -> dict[Path, set[tuple[str, str]]]:
    """Return, by manifest, the source files whose content when read differed from their rule's output."""
    sound = [(artefact, artefact.origin) for artefact in artefacts if artefact.origin is not None]
    makers = {
        artefact.paths.get(name): (artefact, digest)
        for artefact, origin in sound
        for name, digest in origin.outputs.items()
    }
    files: dict[Path, set[str]] = {}

    def source_files(artefact: Artefact) -> set[str]:
        if artefact.manifest not in files:
            files[artefact.manifest] = own_files = set[str]()
            for name, digest in artefact.origin.inputs.items() if artefact.origin else ():
                path = artefact.paths.get(name)
                if path is not None and path in makers:
                    maker, given = makers[path]
                    own_files |= source_files(maker) | ({str(path)} if given != digest else set())
        return files[artefact.manifest]

    return {
        artefact.manifest: {(fields_of.EXCHANGED, file) for file in source_files(artefact)} for artefact in artefacts
    }


def _add(fields: Fields, group: str, values: Iterable[tuple[str, str]]) -> None:
    for field, value in values:
        fields.setdefault(group, {}).setdefault(field, set()).add(value)


def _lineage_lines(fields: Fields) -> Iterable[tuple[str, str, str]]:
    """Yield lines by group, `beta~0.145` before `beta~0.15`, with values in order, version `2.9` before `2.12`."""
    for group in sorted(fields, key=partial(_natural, number=r"(\d+(?:\.\d+)?)")):
        for field, values in fields[group].items():
            yield group, field, ", ".join(sorted(values, key=_natural))
