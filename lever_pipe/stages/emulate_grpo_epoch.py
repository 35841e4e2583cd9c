"""Rule `emulate_grpo_epoch`: one GRPO epoch with dropout in the policy alone, as published."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe.base.records import EpochMetrics, PolicyRef, beta_text
from lever_pipe.base.seeding import ambient_stream
from lever_pipe.experiment import execution
from lever_pipe.experiment.faults import EMULATION
from lever_pipe.experiment.run_card import write_card
from lever_pipe.experiment.stage_configs import EmulateGrpoEpochConfig, Runtime, TrainGrpoEpochConfig
from lever_pipe.lever.emulation.dropout import NoisyPolicies
from lever_pipe.lever.training.grpo_epoch import EpochInputs, EpochOutputs, advance


def emulate_grpo_epoch(
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
    config: EmulateGrpoEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one epoch whose ratio holds dropout noise, and return its mean terms.

    Raises:
        CheckpointError: `start` or `reference` has another architecture.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    started = time.perf_counter()
    device = execution.prepare(runtime)
    inputs = EpochInputs(groups, embeddings, start, start_optimiser, reference)
    outputs = EpochOutputs(selector, optimiser, metrics)
    policy = _ref(config.training)
    with ambient_stream(config.training.seed, policy.name):  # published runs are unseeded: each has noise of its own
        row = advance(inputs, outputs, config.training, policy, pairing=NoisyPolicies, device=device)
    named = inputs.named()
    write_card(card, stage="emulate_grpo_epoch", config=config, inputs=named, started=started, runtime=runtime)
    return row


def _ref(config: TrainGrpoEpochConfig) -> PolicyRef:
    run = f"base~{config.base_rce_epoch}/beta~{beta_text(config.kl_beta)}/seed~{config.seed}"
    return PolicyRef(
        name=f"{EMULATION}/dropout/{run}/epoch~{config.epoch}",
        stage="grpo",
        mode="offline",
        preset=config.preset,
        base_rce_epoch=config.base_rce_epoch,
        kl_beta=config.kl_beta,
        seed=config.seed,
        epoch=config.epoch,
    )
