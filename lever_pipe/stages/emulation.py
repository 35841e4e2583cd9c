"""Emulate published bugs: the policies' selections, scores and training metrics with each bug."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np

from lever_pipe.base import storage
from lever_pipe.base.policy_names import EMULATION, PolicyName
from lever_pipe.base.records import EpochMetrics, Example, ExampleId, Pool
from lever_pipe.base.torch_streams import ambient_stream, torch_generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.emulation import (
    CONTROL,
    DROPOUT,
    EmulatedPolicy,
    EmulateSelectionsConfig,
    EmulateUntouchedConfig,
    ScoreEmulationConfig,
)
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.selections import EmulateFirstItemsConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output, Outputs
from lever_pipe.lever.emulation import decode_with_repeats, drop_head, first_items, prompts_a_query, repeated_share
from lever_pipe.lever.emulation_dropout import epoch_without_updates
from lever_pipe.lever.selector.decoding import choose, greedy
from lever_pipe.lever.selector.embeddings import FrozenSelector, read_table
from lever_pipe.lever.selector.network import architecture_of, load_selector
from lever_pipe.lever.training.epoch import read_training_inputs
from lever_pipe.lever.training.grpo import selected_in_epoch
from lever_pipe.metrics.cells import Demonstrations, build_cells, score_questions
from lever_pipe.report.long_format import write_csv

EPOCHS = (1, 2)
"""Both values of top k: the first epoch selects fewer trajectories of a group than all later ones."""
Line = tuple[object, ...]
EMULATED_SCORES_COLUMNS = (
    *("arm", "kl_beta", "epoch", "samples", "shots"),
    *("accuracy", "n_questions", "n_distinct_prompts"),
)
EMULATED_PROMPTS_COLUMNS = ("arm", "shots", "repeated_share", "prompts_a_query_mean", "prompts_a_query_max")
EMULATED_TRAINING_COLUMNS = ("arm", "base_rce_epoch", "epoch", "metric", "value")
Selected = Mapping[EmulatedPolicy, Mapping[ExampleId, Demonstrations]]


def emulate_first_items(
    *,
    selector: Input,
    eval_pools: Input,
    train_embeddings: Input,
    eval_embeddings: Input,
    selections: Output,
    config: EmulateFirstItemsConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Write the selections from the first train items; return the number of policies."""
    return emulate_selections(
        selectors=(selector,),
        eval_pools=eval_pools,
        train_embeddings=train_embeddings,
        eval_embeddings=eval_embeddings,
        selections=(selections,),
        config=EmulateSelectionsConfig(
            arm="", selector=config.selector, shots=config.shots, head_seed=None, pool_items=config.items
        ),
        runtime=runtime,
    )


def emulate_selections(
    *,
    selectors: Inputs,
    eval_pools: Input,
    train_embeddings: Input,
    eval_embeddings: Input,
    selections: Outputs,
    config: EmulateSelectionsConfig,
    runtime: Runtime = Runtime(),
) -> int:
    """Write the greedy selections of each selector, with the bugs of an arm; return the number of policies."""
    device, inputs = execution.prepare(runtime), config.selector.inputs
    train, queries = (read_table(path, device, inputs=inputs) for path in (train_embeddings, eval_embeddings))
    architecture = architecture_of(config.selector, train.width)
    pools, decode = storage.read_rows(eval_pools, Pool), greedy
    if config.pool_items is not None:
        pools, decode = first_items(pools, config.pool_items), decode_with_repeats
    for source, target in zip(selectors, selections, strict=True):
        module = load_selector(source, architecture)
        if config.head_seed is not None:
            module = drop_head(module, config.head_seed)
        storage.write_rows(target, choose(module.to(device), train, queries, pools, config.shots, decode=decode))
    return len(selections)


def emulate_untouched(
    *,
    groups: Input,
    embeddings: Input,
    reference: Input,
    untouched: Output,
    config: EmulateUntouchedConfig,
    runtime: Runtime = Runtime(),
) -> list[EpochMetrics]:
    """Write and return the metrics of an epoch without updates, for each arm and each top k."""
    device = execution.prepare(runtime)
    data = read_training_inputs(groups, embeddings, device, config.train_share, config.selector.inputs)
    architecture = architecture_of(config.selector, data.table.width)
    module, anchor = (load_selector(reference, architecture).to(device) for _ in range(2))
    frozen = FrozenSelector(anchor, data.table)
    preset, base, seed = config.preset, config.base_rce_epoch, config.seed
    run = PolicyName(kind=EMULATION, preset=preset, base=base, seed=seed, is_untouched=True)
    rows: list[EpochMetrics] = []
    for arm in (CONTROL, DROPOUT):
        for epoch in EPOCHS:
            policy = replace(run, variant=arm, epoch=epoch)
            with ambient_stream(config.seed, str(policy)):
                values = epoch_without_updates(
                    module,
                    frozen,
                    data.table,
                    selected_in_epoch(data.train, config.grpo, epoch),
                    has_dropout=arm == DROPOUT,
                    clip_epsilon=config.grpo.clip_epsilon,
                    generator=torch_generator(config.seed, "grpo", epoch),
                )
            rows.append(EpochMetrics(policy=policy, values=values))
    storage.write_rows(untouched, rows)
    return rows


def score_emulation(
    *,
    selections: Inputs,
    answers: Input,
    eval_examples: Input,
    untouched: Input,
    scores: Output,
    prompts: Output,
    training: Output,
    config: ScoreEmulationConfig,
) -> int:
    """Write scores, prompt statistics and training metrics; return the number of scored policies."""
    selected: Selected = {
        policy: storage.read_selections(path) for policy, path in zip(config.policies, selections, strict=True)
    }
    score_lines = list(_score_lines(selected, storage.read_examples(eval_examples), answers, config))
    for path, columns, lines in (
        (scores, EMULATED_SCORES_COLUMNS, score_lines),
        (prompts, EMULATED_PROMPTS_COLUMNS, _prompt_lines(selected, config.shots)),
        (training, EMULATED_TRAINING_COLUMNS, _training_lines(storage.read_rows(untouched, EpochMetrics))),
    ):
        write_csv(path, columns, lines)
    return len(selected)


def _score_lines(
    selected: Selected, queries: Sequence[Example], answers: Path, config: ScoreEmulationConfig
) -> Iterable[Line]:
    replies = storage.read_answers(answers)
    for policy, selections in selected.items():
        files, rule = (policy.name, str(answers)), config.normalise_references
        scores, keys = score_questions(
            queries, selections, replies, config.shots, files=files, normalise_references=rule
        )
        for cell in build_cells(
            PolicyName.parse(policy.name), scores, keys, samples=config.samples, n_random_subsets=0, seed=0
        ):
            (prefix,) = cell.subsets  # without random subsets, the prefix is the only one
            counts = (prefix.n_questions, prefix.n_distinct_prompts)
            yield (policy.arm, f"{policy.kl_beta:g}", policy.epoch, cell.samples, cell.shots, prefix.accuracy, *counts)


def _prompt_lines(selected: Selected, shots: Sequence[int]) -> Iterable[Line]:
    """Yield one line for each shot count of an arm, and one line, without shots, for all of them together."""
    for arm, policies in groupby(selected, key=lambda policy: policy.arm):
        rows = (sorted(selected[policy].items()) for policy in policies)
        stacks = [np.array([ids for _, ids in of_policy], dtype=np.int64) for of_policy in rows]
        by_shots = [prompts_a_query(stacks, k) for k in shots]
        for k, distinct in zip(shots, by_shots, strict=True):
            repeated = float(np.mean([repeated_share(selections, k) for selections in stacks]))
            yield arm, k, repeated, float(distinct.mean()), int(distinct.max())
        together = np.sum(by_shots, axis=0)
        yield arm, None, None, float(together.mean()), int(together.max())


def _training_lines(rows: Iterable[EpochMetrics]) -> Iterable[Line]:
    """Yield every metric of the epochs without updates."""
    for row in rows:
        policy = row.policy
        arm = policy.variant or CONTROL
        for name in sorted(row.values):
            yield arm, policy.base, policy.epoch, name, row.values[name]
