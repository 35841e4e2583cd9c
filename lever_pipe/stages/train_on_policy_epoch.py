"""Rule `train_on_policy_epoch`: one epoch on selections that the policy draws and the LVLM judges."""

from __future__ import annotations

from lever_pipe.base import storage
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.progress import Progress
from lever_pipe.base.records import EpochMetrics, PolicyRef, StepMetrics, beta_text
from lever_pipe.base.seeding import torch_generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime, TrainOnPolicyEpochConfig
from lever_pipe.experiment.stage_files import External, Input, Output
from lever_pipe.lever.judging import LvlmJudge
from lever_pipe.lever.training import state
from lever_pipe.lever.training.embeddings import FrozenSelector, architecture_of
from lever_pipe.lever.training.inputs import TrainingInputs, read_training_inputs
from lever_pipe.lever.training.loop import run_epoch, validation_loss
from lever_pipe.lever.training.on_policy import Spent, plan_on_policy_epoch
from lever_pipe.lever.training.policies import Policies, trained_share
from lever_pipe.lvlms.asking.answering import Prompter, load_lvlm


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
    device = execution.prepare(runtime)
    data = read_training_inputs(groups, embeddings, device, config.train_share, config.selector.inputs)
    architecture = architecture_of(config.selector, data.table)
    module, anchor = (state.load_selector(path, architecture).to(device) for path in (start, reference))
    policies = Policies(module, FrozenSelector(anchor, data.table))
    if config.on_policy.freeze_projections:
        policies.policy.freeze_projections()
    adam = AdamW(
        policies.policy, learning_rate=config.on_policy.learning_rate, weight_decay=config.on_policy.weight_decay
    )
    state.resume_optimiser(start_optimiser, adam, stage=config.objective)
    train = storage.read_examples(train_examples)
    model = load_lvlm(config.lvlm, lvlm, [(train, train_images)], runtime)
    judge = LvlmJudge(train, model, Prompter(config.lvlm, train), config.on_policy.reward)
    values, spent = _epoch(policies, adam, data, judge, config)
    state.save_selector(selector, policies.policy, stage=config.objective, epoch=config.epoch)
    state.save_optimiser(optimiser, adam, stage=config.objective, epoch=config.epoch, kl_beta=config.kl_beta)
    row = EpochMetrics(policy=_ref(config), values=values)
    storage.write_row(metrics, row)
    storage.write_rows(steps, [StepMetrics(policy=row.policy, **one._asdict()) for one in spent])
    storage.write_json(counters, model.counters)
    return row


def _epoch(
    policies: Policies, adam: AdamW, data: TrainingInputs, judge: LvlmJudge, config: TrainOnPolicyEpochConfig
) -> tuple[dict[str, float], list[Spent]]:
    spent: list[Spent] = []
    n_steps = -(-len(data.train) // config.on_policy.batch_queries)
    with Progress(n_steps, "batches of draws") as progress:

        def on_step(step: Spent) -> None:
            spent.append(step)
            progress.advance()

        plan = plan_on_policy_epoch(
            policies,
            adam,
            data.table,
            data.train,
            judge,
            config.on_policy,
            epoch=config.epoch,
            kl_beta=config.kl_beta,
            clips=config.objective == "on_policy",
            generator=torch_generator(config.seed, "on policy", config.epoch),
            on_step=on_step,
        )
        values = run_epoch(policies.policy, adam, plan, max_gradient_norm=config.max_gradient_norm)
    values |= {
        "val_loss": validation_loss(policies.policy, data.table, data.validation),
        "kl_beta": config.kl_beta,
        "trained_share": trained_share(policies.policy),
        "lvlm_prompts": float(judge.prompts),
    }
    return values, spent


def _ref(config: TrainOnPolicyEpochConfig) -> PolicyRef:
    run = f"base~{config.base_rce_epoch}/beta~{beta_text(config.kl_beta)}/seed~{config.seed}"
    return PolicyRef(
        name=f"preset~{config.preset}/{config.objective}/{run}/epoch~{config.epoch}",
        stage="grpo" if config.objective == "on_policy" else "reinforce",
        mode="on_policy",
        preset=config.preset,
        base_rce_epoch=config.base_rce_epoch,
        kl_beta=config.kl_beta,
        seed=config.seed,
        epoch=config.epoch,
    )
