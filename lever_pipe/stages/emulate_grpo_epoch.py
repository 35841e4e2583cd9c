"""Rule `emulate_grpo_epoch`: one GRPO epoch with dropout in the policy alone, as published."""

from __future__ import annotations

from lever_pipe.base.policy_names import EMULATION, PolicyName
from lever_pipe.base.records import EpochMetrics, PolicyRef
from lever_pipe.base.seeding import ambient_stream
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import EmulateGrpoEpochConfig, Runtime
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.emulation.dropout import NoisyPolicies
from lever_pipe.lever.training.epoch import EpochFiles
from lever_pipe.lever.training.grpo import train_grpo


def emulate_grpo_epoch(
    *,
    groups: Input,
    embeddings: Input,
    start: Input,
    start_optimiser: Input,
    reference: Input,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: EmulateGrpoEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one epoch whose ratio holds dropout noise, and return its mean terms.

    Raises:
        CheckpointError: `start` or `reference` has another architecture.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    device = execution.prepare(runtime)
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    of = config.training
    run = PolicyName(kind=EMULATION, member="dropout", base=of.base_rce_epoch, beta=of.kl_beta, seed=of.seed)
    policy = PolicyRef.of(run.at(of.epoch), preset=of.preset)
    with ambient_stream(of.seed, policy.name):  # published runs are unseeded: each has noise of its own
        return train_grpo(files, reference, of, policy, pairing=NoisyPolicies, device=device)
