"""Rule `train_rce_epoch`: one epoch of reward-weighted cross-entropy."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import EpochMetrics, PolicyRef
from lever_pipe.base.seeding import ambient_stream, torch_generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.run_card import write_card
from lever_pipe.experiment.stage_configs import Runtime, TrainRceEpochConfig
from lever_pipe.lever.training import state
from lever_pipe.lever.training.embeddings import architecture_of
from lever_pipe.lever.training.inputs import read_training_inputs
from lever_pipe.lever.training.loop import run_epoch, validation_loss
from lever_pipe.lever.training.rce import plan_rce_epoch


def train_rce_epoch(
    *,
    groups: Path,
    embeddings: Path,
    start: Path,
    start_optimiser: Path,
    selector: Path,
    optimiser: Path,
    metrics: Path,
    card: Path,
    config: TrainRceEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one RCE epoch and return its mean terms.

    Raises:
        CheckpointError: `start` has another architecture.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    started = time.perf_counter()
    device = execution.prepare(runtime)
    data = read_training_inputs(
        groups=groups,
        embeddings=embeddings,
        train_share=config.train_share,
        device=device,
        inputs=config.selector.inputs,
    )
    module = state.load_selector(start, architecture_of(config.selector, data.table)).to(device)
    adam = AdamW(module, learning_rate=config.rce.learning_rate, weight_decay=config.rce.weight_decay)
    state.resume_optimiser(start_optimiser, adam, stage="rce")
    order = torch_generator(config.seed, "rce", config.epoch)
    with ambient_stream(config.seed, "rce dropout", config.epoch):
        plan = plan_rce_epoch(module, adam, data.table, data.train, config.rce, config.epoch, order)
        values = run_epoch(module, adam, plan, max_gradient_norm=config.max_gradient_norm)
    values["val_loss"] = validation_loss(module, data.table, data.validation)
    state.save_selector(selector, module, stage="rce", epoch=config.epoch)
    state.save_optimiser(optimiser, adam, stage="rce", epoch=config.epoch, kl_beta=0.0)
    row = EpochMetrics(policy=_ref(config), values=values)
    storage.write_row(metrics, row)
    inputs = {"groups": groups, "embeddings": embeddings, "start": start, "start_optimiser": start_optimiser}
    write_card(card, stage="train_rce_epoch", config=config, inputs=inputs, started=started, runtime=runtime)
    return row


def _ref(config: TrainRceEpochConfig) -> PolicyRef:
    return PolicyRef(
        name=f"preset~{config.preset}/rce/seed~{config.seed}/epoch~{config.epoch}",
        stage="rce",
        preset=config.preset,
        seed=config.seed,
        epoch=config.epoch,
    )
