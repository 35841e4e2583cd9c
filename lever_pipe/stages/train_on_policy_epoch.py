"""Rule `train_on_policy_epoch`: one epoch on selections that the policy draws and the LVLM judges."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.progress import Progress
from lever_pipe.base.records import EpochMetrics, StepMetrics
from lever_pipe.base.seeding import torch_generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime, TrainOnPolicyEpochConfig
from lever_pipe.experiment.stage_files import External, Input, Output
from lever_pipe.lever.training.epoch import EpochFiles, SelectorEpoch
from lever_pipe.lever.training.judge import LvlmJudge
from lever_pipe.lever.training.on_policy import on_policy_epoch
from lever_pipe.lever.training.policies import Policies, trained_share
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Prompter, Wording


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
    counters: Output,
    config: TrainOnPolicyEpochConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Advance the selector by one pass over the train queries and return its mean terms.

    Of `groups` the queries, their pools and the split are read, and for the validation loss the stored selections.
    One process: what is asked follows from the weights, which several processes would have to keep equal.

    Raises:
        CheckpointError: `start` or `reference` has another architecture, or the LVLM's folder is incomplete.
        ImageError: an image cannot be read.
        RecordError: malformed groups.
        TrainingError: a loss or a gradient is not finite.
    """
    files = EpochFiles(groups, embeddings, start, start_optimiser, selector, optimiser, metrics)
    device, freezes = execution.prepare(runtime), config.on_policy.freeze_projections
    epoch = SelectorEpoch(files, config, config.on_policy, config.objective, device, freezes=freezes)
    policies = Policies(epoch.module, epoch.anchor(reference))
    train = storage.read_examples(train_examples)
    model = load_lvlm(config.lvlm, lvlm, [(train, train_images)], runtime)
    judge = LvlmJudge(train, model, Prompter(Wording(config.lvlm.prompt), train), config.on_policy.reward)
    settings = config.on_policy
    policy = config.policy(config.objective, base=config.base_rce_epoch, beta=config.kl_beta)
    steps_taken = on_policy_epoch(
        epoch.updates,
        policies,
        epoch.data.table,
        epoch.data.train,
        judge,
        settings,
        epoch=config.epoch,
        kl_beta=config.kl_beta,
        clips=config.objective == "on_policy",
        generator=torch_generator(config.seed, "on policy", config.epoch),
    )
    spent: list[StepMetrics] = []
    with Progress(-(-len(epoch.data.train) // settings.batch_queries), "batches of draws") as progress:
        for one in steps_taken:
            spent.append(StepMetrics(policy=policy, **one._asdict()))
            progress.advance()
    more = {"kl_beta": config.kl_beta, "trained_share": trained_share(epoch.module)}
    more |= {"lvlm_prompts": float(judge.prompts)}
    row = epoch.finish(policy, kl_beta=config.kl_beta, more=more)
    storage.write_rows(steps, spent)
    storage.write_json(counters, model.counters)
    return row
