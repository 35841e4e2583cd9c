"""Rule `train_distil_epoch`: one epoch of learning what the pool oracle would choose."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import EpochMetrics, PolicyRef
from lever_pipe.base.seeding import ambient_stream, torch_generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime, TrainDistilEpochConfig
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.training import state
from lever_pipe.lever.training.distil import oracle_targets, plan_distil_epoch
from lever_pipe.lever.training.embeddings import architecture_of
from lever_pipe.lever.training.inputs import read_training_inputs
from lever_pipe.lever.training.loop import run_epoch, validation_loss


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
    """Advance the selector by one epoch of oracle distillation and return its mean terms.

    Raises:
        CheckpointError: `start` has another architecture.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    device = execution.prepare(runtime)
    data = read_training_inputs(groups, embeddings, device, config.train_share, config.selector.inputs)
    module = state.load_selector(start, architecture_of(config.selector, data.table)).to(device)
    adam = AdamW(module, learning_rate=config.distil.learning_rate, weight_decay=config.distil.weight_decay)
    state.resume_optimiser(start_optimiser, adam, stage="distil")
    with ambient_stream(config.seed, "distil dropout", config.epoch):
        plan = plan_distil_epoch(
            module,
            data.table,
            data.train,
            oracle_targets(storage.read_examples(train_examples), data.train),
            batch_queries=config.distil.batch_queries,
            passes=config.distil.passes,
            generator=torch_generator(config.seed, "distil", config.epoch),
        )
        values = run_epoch(module, adam, plan, max_gradient_norm=config.max_gradient_norm)
    values["val_loss"] = validation_loss(module, data.table, data.validation)
    state.save_selector(selector, module, stage="distil", epoch=config.epoch)
    state.save_optimiser(optimiser, adam, stage="distil", epoch=config.epoch, kl_beta=0.0)
    row = EpochMetrics(policy=_ref(config), values=values)
    storage.write_row(metrics, row)
    return row


def _ref(config: TrainDistilEpochConfig) -> PolicyRef:
    run = f"base~{config.base_rce_epoch}/seed~{config.seed}"
    return PolicyRef(
        name=f"preset~{config.preset}/distil/{run}/epoch~{config.epoch}",
        stage="distil",
        preset=config.preset,
        base_rce_epoch=config.base_rce_epoch,
        seed=config.seed,
        epoch=config.epoch,
    )
