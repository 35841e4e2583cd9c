"""Rule `train_grpo_epoch`: one epoch of offline GRPO from a named RCE epoch."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe import execution, storage
from lever_pipe.records import EpochMetrics, PolicyRef, beta_text
from lever_pipe.run_card import write_card
from lever_pipe.seeding import ambient_stream, torch_generator
from lever_pipe.stage_configs import Runtime, TrainGrpoEpochConfig
from lever_pipe.training import state
from lever_pipe.training.embeddings import architecture_of
from lever_pipe.training.grpo import BetaController, Policies, keep_best, plan_grpo_epoch, trained_share
from lever_pipe.training.inputs import read_training_inputs
from lever_pipe.training.loop import run_epoch, validation_loss
from lever_pipe.training.optimiser import AdamW


def train_grpo_epoch(
    *,
    groups: Path,
    embeddings: Path,
    start: Path,
    start_optimiser: Path,
    reference: Path,
    selector: Path,
    optimiser: Path,
    metrics: Path,
    card: Path,
    config: TrainGrpoEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one GRPO epoch and return its mean terms.

    Raises:
        CheckpointError: `start` or `reference` has another architecture.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    started = time.perf_counter()
    device = execution.prepare(runtime)
    grpo = config.grpo
    data = read_training_inputs(groups=groups, embeddings=embeddings, train_share=config.train_share, device=device)
    architecture = architecture_of(config.selector, data.table)
    module = state.load_selector(start, architecture).to(device)
    anchor = state.load_selector(reference, architecture).to(device)
    if grpo.freeze_projections:
        module.freeze_projections()
    adam = AdamW(module, learning_rate=grpo.learning_rate, weight_decay=grpo.weight_decay)
    resumed = state.resume_optimiser(start_optimiser, adam, stage="grpo")
    limits = grpo.adaptive_kl.model_dump() if grpo.adaptive_kl else None
    beta = BetaController(config.kl_beta if resumed is None else resumed, limits)
    kept = keep_best(
        data.train,
        grpo.top_k_first_epoch if config.epoch == 1 else grpo.top_k,
        **grpo.model_dump(include={"z_clamp", "advantage_std_floor", "advantage_clamp"}),
    )
    with ambient_stream(config.seed, "grpo dropout", config.epoch):
        plan = plan_grpo_epoch(
            Policies(module, anchor, grpo.dropout),
            data.table,
            kept,
            beta,
            batch_queries=grpo.batch_queries,
            clip_epsilon=grpo.clip_epsilon,
            generator=torch_generator(config.seed, "grpo", config.epoch),
        )
        values = run_epoch(module, adam, plan, max_gradient_norm=config.max_gradient_norm)
    values |= {
        "val_loss": validation_loss(module, data.table, data.validation),
        "kl_beta": beta.value,
        "trained_share": trained_share(module),
    }
    state.save_selector(selector, module, stage="grpo", epoch=config.epoch)
    state.save_optimiser(optimiser, adam, stage="grpo", epoch=config.epoch, kl_beta=beta.value)
    row = EpochMetrics(policy=_ref(config), values=values)
    storage.write_row(metrics, row)
    inputs = {
        "groups": groups,
        "embeddings": embeddings,
        "start": start,
        "start_optimiser": start_optimiser,
        "reference": reference,
    }
    write_card(card, stage="train_grpo_epoch", config=config, inputs=inputs, started=started, runtime=runtime)
    return row


def _ref(config: TrainGrpoEpochConfig) -> PolicyRef:
    run = f"base~{config.base_rce_epoch}/beta~{beta_text(config.kl_beta)}/seed~{config.seed}"
    return PolicyRef(
        name=f"preset~{config.preset}/grpo/{run}/epoch~{config.epoch}",
        stage="grpo",
        preset=config.preset,
        base_rce_epoch=config.base_rce_epoch,
        kl_beta=config.kl_beta,
        seed=config.seed,
        epoch=config.epoch,
    )
