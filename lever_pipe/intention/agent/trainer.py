"""GRPO of a tool-calling agent: the steps, evaluations and checkpoints of one run.

A step rolls out `group` episodes of each of `prompts` tasks, scores all tokens under the policy and the frozen
reference, and takes `minibatches` optimizer updates. Every run measures the KL to the reference, even without a KL
penalty, so that runs are comparable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from lever_pipe.base.errors import DataError, TrainingError
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.progress import Progress
from lever_pipe.base.seeding import generator
from lever_pipe.base.sums import sum_in_order
from lever_pipe.experiment.agent_training import WEIGHTS, AgentArm, Schedule, Stop, TrainAgentConfig
from lever_pipe.intention.agent.evaluation import When, evaluate
from lever_pipe.intention.agent.measures import Clock, memory_peak, rates, step_values
from lever_pipe.intention.agent.policy import prepare_for_updates, save_policy
from lever_pipe.intention.agent.resume import (
    Best,
    RunProgress,
    copies,
    load_progress,
    save_progress,
    set_weights,
    weights_of,
)
from lever_pipe.intention.agent.rollout import LET_THE_USER_ANSWER, Episode, EpisodeRequest, Player
from lever_pipe.intention.agent.scoring import Scored, score_all
from lever_pipe.intention.agent.update import (
    Credit,
    TrainingSample,
    assign_credit,
    rewarded_by_kl,
    token_positions_of,
    update,
)
from lever_pipe.intention.records import StepRow, Task
from lever_pipe.losses.schedules import adapted_weight, has_settled, scheduled_rate

T = TypeVar("T")


@dataclass(frozen=True)
class TrainingRun:
    """Configuration, policy, reference and tasks of one run."""

    config: TrainAgentConfig
    player: Player
    """Contains the policy to be trained."""
    reference: Any
    """The frozen start policy; updated in place if the arm resets the reference."""
    train: Sequence[Task]
    val: Sequence[Task]


def train(run: TrainingRun, *, state: Path, checkpoint_every: int, identity: str) -> RunProgress:
    """Train until `is_over`, starting from a checkpoint in `state` if there is one, and return all rows.

    The policy is updated in place. Checkpoints in `state` are valid only for this `identity`; the caller removes them.
    """
    config, policy = run.config, run.player.policy
    arm, grpo = config.arm, config.grpo
    prepare_for_updates(policy)
    optimiser = AdamW(policy, learning_rate=peak_rate(config), weight_decay=grpo.weight_decay)
    reference = run.reference if arm.reference_reset else None
    progress = load_progress(state, policy, optimiser, reference, identity=identity)
    if progress is None:
        progress = RunProgress()
        _validate(run, progress)
    with Progress(grpo.steps - progress.step, "train agent") as bar:
        while not is_over(config, progress):
            clock, step = Clock(policy.device), progress.step + 1
            weights = weights_at(config, step, progress.metrics[-1].values if progress.metrics else {})
            values = train_step(run, arm.model_copy(update=weights), optimiser, step, clock)
            values |= {WEIGHTS[term]: weight for term, weight in weights.items()}
            progress.step = step
            if arm.reference_reset and step % arm.reference_reset == 0:
                set_weights(run.reference, weights_of(policy))
            if step % config.evaluation.every == 0 or step == grpo.steps:
                with clock.time("validation"):
                    _validate(run, progress)
            progress.metrics.append(_row(step, values, clock))
            # The checkpoint must contain this step's row; afterwards the row gets the checkpoint's own seconds.
            if step % checkpoint_every == 0 and not is_over(config, progress):
                with clock.time("checkpoint"):
                    save_progress(state, progress, policy, optimiser, reference, identity=identity)
                progress.metrics[-1] = _row(step, values, clock)
            bar.update()
    return progress


def train_step(run: TrainingRun, arm: AgentArm, optimiser: AdamW, step: int, clock: Clock) -> dict[str, float]:
    """Roll out, compute group-relative advantages and update the policy; return the metrics of the step (from 1).

    `arm` contains the weights of the loss's terms at this step.

    Raises:
        TrainingError: the simulated user failed too often, or no group has two sound episodes.
    """
    grpo, seed, policy = run.config.grpo, run.config.seed, run.player.policy
    player = replace(run.player, environment=arm.proxy or run.player.environment)
    pad_id, precision = player.codec.pad_id, player.model.dtype
    optimiser.learning_rate = _scheduled(arm.schedule, peak_rate(run.config), step, grpo.steps)
    requests = [
        EpisodeRequest(run.train[index], index, sample, (seed, "rollout", step, index, sample))
        for index in tasks_of_step(step, len(run.train), grpo.prompts, seed)
        for sample in range(grpo.group)
    ]
    with clock.time("step"):
        with clock.time("rollout"):
            episodes, counts, clock.seconds["simulator"] = player.play(requests)
        player.require_few_failures(counts.values(), during=f"step {step}")
        credit = assign_credit(_parts(episodes, grpo.group), arm, grpo)
        if not credit.scores:
            raise TrainingError(
                f"step {step}: expected two episodes of a task without a failure or timeout of the simulated user",
                found=f"{sum(e.is_sound for e in episodes)} of {len(episodes)} episodes, no two of one task",
                do=LET_THE_USER_ANSWER,
            )
        before, training_samples = _training_samples(run, episodes, credit, clock)
        measured = step_values(episodes, counts, credit, before, training_samples, policy.config)
        compared = [i for i, advantages in enumerate(credit.advantages) if advantages is not None]
        # Episodes without a comparison stay in the batch, but contribute no tokens to the loss.
        all_samples = [training_sample.silenced() for training_sample in training_samples]
        taught = [training_samples[i] for i in compared]
        if arm.kl_form == "k1_reward":
            taught = rewarded_by_kl(taught, [len(scores) for scores in credit.scores], arm.kl)
        for i, training_sample in zip(compared, taught, strict=True):
            all_samples[i] = training_sample
        with clock.time("update"):
            updates = [
                update(policy, optimiser, batch, arm=arm, grpo=grpo, pad_id=pad_id, precision=precision)
                for batch in _parts(all_samples, len(all_samples) // grpo.minibatches)
            ]
            for parameter in policy.parameters():
                parameter.grad = None  # the next rollout needs the memory
    means = {name: sum_in_order(values[name] for values in updates) / len(updates) for name in updates[0]}
    ratio_max = max(values["ratio_max"] for values in updates)
    return {**measured, **means, "ratio_max": ratio_max, "learning_rate": optimiser.learning_rate}


def _parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _training_samples(
    run: TrainingRun, episodes: Sequence[Episode], credit: Credit, clock: Clock
) -> tuple[list[Scored], list[TrainingSample]]:
    """Return the policy's scores of every response token, and a training sample for each episode."""
    grpo, player = run.config.grpo, run.player
    positions = [token_positions_of(episode) for episode in episodes]
    tokens, pad_id = [of.tokens for of in positions], player.codec.pad_id
    with clock.time("log_probs"), player.computing():
        response = [of.response for of in positions]
        before = score_all(player.policy, tokens, response, grpo, pad_id=pad_id, entropies=True)
    # The agent's tokens suffice for the KL; entropies are reported over all response tokens.
    with clock.time("reference"), player.computing():
        agent = [of.agent for of in positions]
        reference = score_all(run.reference, tokens, agent, grpo, pad_id=pad_id, entropies=False)
    # `before` has all response tokens, a training sample only the agent's.
    training_samples = [
        TrainingSample(
            of.tokens,
            of.agent,
            torch.zeros(len(of.agent)) if advantages is None else advantages,
            policy.log_probs[of.is_agent.to(policy.log_probs.device)],
            anchor.log_probs,
        )
        for of, advantages, policy, anchor in zip(positions, credit.advantages, before, reference, strict=True)
    ]
    return before, training_samples


def tasks_of_step(step: int, n_tasks: int, n_prompts: int, seed: int) -> list[int]:
    """Return the indices of a step's tasks: the next ones of a random order, with a new order for each epoch.

    An epoch omits the last tasks if they do not fill a step.

    Raises:
        DataError: fewer tasks than a step needs.
    """
    if n_tasks < n_prompts:
        raise DataError(
            f"expected at least grpo.prompts={n_prompts} train tasks",
            found=str(n_tasks),
            do="Lower grpo.prompts or give more tasks.",
        )
    number, i = divmod(step - 1, n_tasks // n_prompts)
    order = generator(seed, "tasks", number).permutation(n_tasks)
    return [int(index) for index in order[i * n_prompts : (i + 1) * n_prompts]]


def peak_rate(config: TrainAgentConfig) -> float:
    """Return the arm's highest learning rate."""
    return config.arm.learning_rate or config.grpo.learning_rate


def weights_at(config: TrainAgentConfig, step: int, before: Mapping[str, float]) -> dict[str, float]:
    """Return the weights of the loss's terms with a schedule; `before` are the last step's values."""
    arm, grpo, weights = config.arm, config.grpo, dict[str, float]()
    for term, metric in WEIGHTS.items():
        peak, schedule = getattr(arm, term), getattr(arm, f"{term}_schedule")
        if schedule == Schedule():
            continue
        if schedule.kind != "adaptive":
            weights[term] = _scheduled(schedule, peak, step, grpo.steps)
        elif not before:
            weights[term] = peak
        else:
            weights[term] = adapted_weight(
                before[metric],
                before[term],
                target=schedule.target,
                episodes=grpo.episodes,
                horizon=schedule.horizon,
                is_bonus=term == "entropy",
            )
    return weights


def _scheduled(schedule: Schedule, peak: float, step: int, steps: int) -> float:
    shape = schedule.model_dump(include={"kind", "warmup_steps", "minimum"})
    return scheduled_rate(step - 1, steps, peak=peak, **shape)


def is_over(config: TrainAgentConfig, progress: RunProgress) -> bool:
    """Return whether the run is complete: after the configured number of steps, or by the arm's stop rule."""
    stop = config.arm.stop
    if stop is None or progress.step >= config.grpo.steps:
        return progress.step >= config.grpo.steps
    curve = [row.values[stop.metric] for row in progress.evaluations if row.mode == stop.mode]
    return has_settled(curve, patience=stop.patience, least_change=stop.least_change)


def _row(step: int, values: Mapping[str, float], clock: Clock) -> StepRow:
    """Return a step's row with its times."""
    timed = {**values, **{f"seconds_{name}": value for name, value in clock.seconds.items()}}
    return StepRow(step=step, values={**timed, **memory_peak(clock.device), **rates(timed, clock.device)})


def _validate(run: TrainingRun, progress: RunProgress) -> None:
    """Evaluate the current policy, and save a copy of its weights if it is the best so far."""
    evaluation = evaluate(run.player, run.val, When(progress.step, "val", "current"), run.config.evaluation)
    progress.evaluations += evaluation.rows
    progress.episodes += evaluation.episodes
    looked_at = run.config.arm.stop or Stop()
    value = evaluation.value(looked_at.metric, looked_at.mode)
    if value > progress.best.value:
        progress.best = Best(progress.step, value, copies(weights_of(run.player.policy)))


def save_policies(run: TrainingRun, progress: RunProgress, *, last: Path, best: Path) -> None:
    """Write the last and the best policy as model folders of the configured precision."""
    policy, dtype = run.player.policy, getattr(torch, run.config.policy.model.dtype)
    for folder, weights in ((last, copies(weights_of(policy))), (best, progress.best.weights)):
        cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
        save_policy(folder, policy, run.player.codec, cast)
