"""Initialize a selector and train it, one epoch per call, with one function per objective.

Every epoch refuses a `start` or `reference` of another architecture (CheckpointError), malformed groups (RecordError),
and a non-finite loss or gradient (TrainingError).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.progress import Progress
from lever_pipe.base.records import EpochMetrics, StepMetrics
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.distil import TrainDistilEpochConfig
from lever_pipe.experiment.grpo import TrainGrpoEpochConfig
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.on_policy import TrainOnPolicyEpochConfig
from lever_pipe.experiment.rce import TrainContinuedEpochConfig, TrainRceEpochConfig
from lever_pipe.experiment.selector import InitialiseSelectorConfig
from lever_pipe.experiment.sft import TrainSftEpochConfig
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output
from lever_pipe.lever.selector.embeddings import read_table
from lever_pipe.lever.selector.network import architecture_of, build_selector, initialise, load_into, save_selector
from lever_pipe.lever.training.distil import distil_epoch, oracle_targets
from lever_pipe.lever.training.draws import SampledSelections, load_draws, save_draws
from lever_pipe.lever.training.epoch import (
    EpochFiles,
    SelectorEpoch,
    TrainingInputs,
    anchor,
    save_epoch,
    save_optimiser,
    streams,
)
from lever_pipe.lever.training.grpo import grpo_epoch, selected_in_epoch
from lever_pipe.lever.training.loop import trained_share
from lever_pipe.lever.training.on_policy import EpochSettings, on_policy_epoch, scored_by_lvlm
from lever_pipe.lever.training.supervised import rce_epoch, sft_epoch, targets_of
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Wording

TRAINING_ALONE = ("dropout", "attention_dropout")
"""Settings that affect training only, not the selections of a trained selector."""


def initialise_selector(
    *,
    embeddings: Input,
    start: Inputs,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: InitialiseSelectorConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Write the selector of `config.seed` before any training, with an optimiser state of zeros.

    Its tensors are random, or come from the checkpoint in `start`, which has one file or none.
    """
    device = execution.prepare(runtime)
    table = read_table(embeddings, device, inputs=config.selector.inputs)
    module = build_selector(architecture_of(config.selector, table.width))
    initialise(module, torch_generator(config.seed, "selector"))
    for path in start:
        _require_same_selector(path, config)
        module = load_into(module, path)
    save_selector(selector, module, stage="init", epoch=0)
    # Every epoch loads an optimizer state, the first one too; training starts from zeros.
    unused = AdamW(module, learning_rate=0.0, weight_decay=0.0)
    save_optimiser(optimiser, unused, stage="init", epoch=0, kl_beta=0.0)
    policy = PolicyName(kind="init", preset=config.preset, seed=config.seed)
    row = EpochMetrics(policy=policy, values={"parameters": float(sum(p.numel() for p in module.parameters()))})
    storage.write_row(metrics, row)
    return row


def _require_same_selector(path: Path, config: InitialiseSelectorConfig) -> None:
    """Refuse a checkpoint with another selector in its record; tensors do not show the number of attention heads."""
    settings = config.selector.model_dump(mode="json", exclude=set(TRAINING_ALONE))
    for record in filter(Path.is_file, (path.with_name(f"{name}.json") for name in ("run", "import"))):
        stated = storage.read_json(record)
        stated_settings = stated.get("config", stated).get("selector", {})
        pairs = [(name, stated_settings[name], settings[name]) for name in settings if name in stated_settings]
        if other := [f"{name} {value!r}, here {expected!r}" for name, value, expected in pairs if value != expected]:
            raise CheckpointError(
                f"{path}: expected the selector of presets.{config.preset}, whose start_from names it",
                found=f"{'; '.join(other)} ({record.name} next to it)",
                do=f"Set presets.{config.preset}.selector to the values of the checkpoint, or name another checkpoint.",
            )


def train_sft_epoch(
    *,
    groups: Input,
    embeddings: Input,
    start: Input,
    start_optimiser: Input,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: TrainSftEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one epoch on the beams of `groups` and return its mean terms."""
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    epoch = SelectorEpoch(files, config, config.sft, "sft", execution.prepare(runtime))
    table, *parts = epoch.data
    train, validation = (targets_of(part, config.sft) for part in parts)
    epoch.data = TrainingInputs(table, train, validation)
    with streams(epoch) as order:
        sft_epoch(epoch.updates, table, train, config.sft, config.epoch, order)
    return save_epoch(epoch, config.policy("sft"), temperature=config.sft.temperature)


def train_rce_epoch(
    *,
    groups: Input,
    embeddings: Input,
    start: Input,
    start_optimiser: Input,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: TrainRceEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one RCE epoch and return its mean terms."""
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    epoch = SelectorEpoch(files, config, config.rce, "rce", execution.prepare(runtime))
    table, train, _ = epoch.data
    with streams(epoch) as order:
        rce_epoch(epoch.updates, table, train, config.rce, config.epoch, order)
    return save_epoch(epoch, config.policy("rce"))


def train_continued_epoch(
    *,
    groups: Input,
    embeddings: Input,
    start: Input,
    start_optimiser: Input,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: TrainContinuedEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one pass of RCE over the train queries and return its mean terms.

    This is the control for GRPO's gain over its base: the same data and number of updates, without GRPO's objective.
    """
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    epoch = SelectorEpoch(files, config, config.continued, "continued", execution.prepare(runtime))
    table, train, _ = epoch.data
    with streams(epoch) as order:
        rce_epoch(epoch.updates, table, train, config.continued, config.epoch, order)
    return save_epoch(epoch, config.policy("continued", base=config.base_rce_epoch))


def train_grpo_epoch(
    *,
    groups: Input,
    embeddings: Input,
    start: Input,
    start_optimiser: Input,
    reference: Input,
    draws: Inputs,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: TrainGrpoEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one GRPO epoch and return its mean terms.

    Trains on the stored selections of `groups`, or on the `draws` of one on-policy epoch.
    """
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    epoch = SelectorEpoch(files, config, config.grpo, "grpo", execution.prepare(runtime))
    train = load_draws(draws[0], epoch.data.train) if draws else epoch.data.train
    # An adapted KL_BETA continues from the previous epoch, which stores it with the optimizer's state.
    kl_beta = grpo_epoch(
        epoch.updates,
        anchor(epoch, reference),
        epoch.data.table,
        selected_in_epoch(train, config.grpo, config.epoch),
        kl_beta=config.kl_beta if epoch.kl_beta is None else epoch.kl_beta,
        settings=config.grpo,
        generator=torch_generator(config.seed, "grpo", config.epoch),
    )
    policy = config.policy("grpo", base=config.base_rce_epoch, beta=config.kl_beta)
    more = {"kl_beta": kl_beta, "trained_share": trained_share(epoch.module)}
    return save_epoch(epoch, policy, kl_beta=kl_beta, more=more)


def train_on_policy_epoch(
    *,
    groups: Input,
    embeddings: Input,
    train_examples: Input,
    train_images: External,
    lvlm: External,
    start: Input,
    start_optimiser: Input,
    reference: Input,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    steps: Output,
    draws: Output,
    counters: Output,
    config: TrainOnPolicyEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one pass over train queries and return its mean terms.

    From `groups` it uses the queries, their pools and the split, and the stored selections for the validation loss.
    """
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    epoch = SelectorEpoch(files, config, config.on_policy, config.objective, execution.prepare(runtime))
    train = storage.read_examples(train_examples)
    model = load_lvlm(config.lvlm, lvlm, [(train, train_images)], runtime)
    settings, wording = config.on_policy, Wording(config.lvlm.prompt)
    score_selections = partial(
        scored_by_lvlm,
        train=train,
        model=model,
        wording=wording,
        reward=settings.reward,
        rule=config.normalise_references,
    )
    policy = config.policy(config.objective, base=config.base_rce_epoch, beta=config.kl_beta)
    steps_taken = on_policy_epoch(
        epoch.updates,
        anchor(epoch, reference),
        epoch.data.table,
        epoch.data.train,
        score_selections,
        EpochSettings(settings, config.epoch, config.kl_beta, clips=config.objective == "on_policy"),
        torch_generator(config.seed, "on policy", config.epoch),
    )
    steps_done, sampled = list[StepMetrics](), list[SampledSelections]()
    n_queries = settings.queries_of(len(epoch.data.train))
    with Progress(-(-n_queries // settings.batch_queries), "batches of draws") as progress:
        for batch in steps_taken:
            steps_done.append(StepMetrics(policy=policy, step=batch.step, prompts=batch.prompts, values=batch.values))
            # Detached, so that the stored draws do not keep each batch's graph in memory until the epoch ends.
            sampled.append(replace(batch.sampled, scores=batch.sampled.scores.detach()))
            progress.update()
    more = {"kl_beta": config.kl_beta, "trained_share": trained_share(epoch.module)}
    more |= {"lvlm_prompts": float(steps_done[-1].prompts)}
    row = save_epoch(epoch, policy, kl_beta=config.kl_beta, more=more)
    storage.write_rows(steps, steps_done)
    save_draws(draws, sampled)
    storage.write_json(counters, model.counters)
    return row


def train_distil_epoch(
    *,
    groups: Input,
    embeddings: Input,
    train_examples: Input,
    start: Input,
    start_optimiser: Input,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: TrainDistilEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one epoch of oracle distillation and return its mean terms."""
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    epoch = SelectorEpoch(files, config, config.distil, "distil", execution.prepare(runtime))
    table, train, _ = epoch.data
    targets_BK = oracle_targets(storage.read_examples(train_examples), train, config.normalise_references)
    with streams(epoch) as order:
        distil_epoch(epoch.updates, table, train, targets_BK, config.distil, order)
    return save_epoch(epoch, config.policy("distil", base=config.base_rce_epoch))
