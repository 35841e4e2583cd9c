"""GRPO of a tool-calling agent: the steps, evaluations and checkpoints of one run.

A step rolls out `group` episodes of each of `prompts` tasks, scores all tokens under the policy and the frozen start
policy, and takes `minibatches` optimiser updates. The distance to the start policy is measured in every run, with or
without a penalty on it, so that runs compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lever_pipe.base.errors import DataError, TrainingError
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.progress import Progress
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.agent_config import WEIGHTS, Schedule, Stop
from lever_pipe.experiment.agent_stage_configs import TrainAgentConfig
from lever_pipe.intention.agent.evaluation import PolicyEvaluation, When, evaluate
from lever_pipe.intention.agent.lessons import Lesson, assign_credit, places_of
from lever_pipe.intention.agent.measures import (
    Clock,
    credit_sums,
    episode_sums,
    log_prob_gap,
    memory_peak,
    rates,
    step_means,
    token_sums,
    update_flop,
)
from lever_pipe.intention.agent.policy import prepare_for_updates, save_policy
from lever_pipe.intention.agent.resume import Best, RunProgress, copies, load_progress, save_progress, weights_of
from lever_pipe.intention.agent.rollout import LET_THE_USER_ANSWER, Episode, EpisodeRequest, Player, Rollouts
from lever_pipe.intention.agent.scoring import score_all
from lever_pipe.intention.agent.update import update
from lever_pipe.intention.records import StepRow, Task
from lever_pipe.losses.schedules import adapted_weight, has_settled, scheduled_rate


@dataclass(frozen=True)
class TrainingRun:
    """What one run trains, and on what."""

    config: TrainAgentConfig
    player: Player
    reference: Any
    """The start policy, frozen."""
    train: Sequence[Task]
    val: Sequence[Task]

    @property
    def policy(self) -> Any:
        """Return the model that learns."""
        return self.player.policy

    @property
    def peak_rate(self) -> float:
        """Return the arm's highest learning rate."""
        return self.config.arm.learning_rate or self.config.grpo.learning_rate

    def weighing(self, weights: Mapping[str, float]) -> TrainingRun:
        """Return the run with these weights of its arm's terms."""
        return replace(self, config=self.config.model_copy(update={"arm": self.config.arm.model_copy(update=weights)}))


def tasks_of_step(step: int, n_tasks: int, n_prompts: int, seed: int) -> list[int]:
    """Return the places of a step's tasks: the next ones of a random order that is drawn anew for each pass.

    A pass leaves out the tasks that do not fill a step.

    Raises:
        DataError: fewer tasks than a step takes.
    """
    if n_tasks < n_prompts:
        raise DataError(
            f"expected at least grpo.prompts={n_prompts} train tasks",
            found=str(n_tasks),
            do="Lower grpo.prompts or give more tasks.",
        )
    number, place = divmod(step - 1, n_tasks // n_prompts)
    order = generator(seed, "tasks", number).permutation(n_tasks)
    return [int(index) for index in order[place * n_prompts : (place + 1) * n_prompts]]


def weights_at(run: TrainingRun, step: int, before: Mapping[str, float]) -> dict[str, float]:
    """Return what those terms of the loss weigh at a step whose weight is scheduled.

    Args:
        run: its arm has the schedules.
        step: from 1.
        before: the values of the step before; none at the first.
    """
    arm, grpo, found = run.config.arm, run.config.grpo, dict[str, float]()
    for term, told in WEIGHTS.items():
        peak, schedule = getattr(arm, term), getattr(arm, f"{term}_schedule")
        if schedule.kind != "adaptive":
            found |= {} if schedule == Schedule() else {term: _scheduled(schedule, peak, step, grpo.steps)}
        elif not before:
            found[term] = peak
        else:
            found[term] = adapted_weight(
                before[told],
                before[term],
                target=schedule.target,
                episodes=grpo.episodes,
                horizon=schedule.horizon,
                is_bonus=term == "entropy",
            )
    return found


def _scheduled(schedule: Schedule, peak: float, step: int, steps: int) -> float:
    shape = schedule.model_dump(include={"kind", "warmup_steps", "minimum"})
    return scheduled_rate(step - 1, steps, peak=peak, **shape)


def is_over(run: TrainingRun, progress: RunProgress) -> bool:
    """Return whether the run has its last step behind it: the configured one, or where its arm stops."""
    stop = run.config.arm.stop
    if stop is None or progress.step >= run.config.grpo.steps:
        return progress.step >= run.config.grpo.steps
    curve = [row.values[stop.metric] for row in progress.evaluations if row.mode == stop.mode]
    return has_settled(curve, patience=stop.patience, least_change=stop.least_change)


def train_step(run: TrainingRun, optimiser: AdamW, step: int, clock: Clock) -> dict[str, float]:
    """Take one step and return its values."""
    with clock.time("step"):
        with clock.time("rollout"):
            rollouts = _roll_out(run, step)
        clock.seconds["simulator"] = rollouts.seconds_simulator
        work = rollouts.counts.values()
        run.player.require_few_failures(work, during=f"step {step}")
        lessons, sums = _learnable(run, rollouts.episodes, clock)
        _require_groups(sums, step)
        with clock.time("update"):
            updated = _update_all(run, optimiser, lessons, step)
    extremes = _extremes(rollouts.episodes, lessons)
    return {**step_means(sums | work), **extremes, **updated}


def _roll_out(run: TrainingRun, step: int) -> Rollouts:
    """Play the episodes of a step, task by task."""
    grpo, seed = run.config.grpo, run.config.seed
    chosen = tasks_of_step(step, len(run.train), grpo.prompts, seed)
    requests = [
        EpisodeRequest(run.train[index], index, sample, (seed, "rollout", step, index, sample))
        for index in chosen
        for sample in range(grpo.group)
    ]
    return run.player.play(requests)


def _learnable(run: TrainingRun, episodes: Sequence[Episode], clock: Clock) -> tuple[list[Lesson], dict[str, float]]:
    """Return a lesson for each episode, silent unless it is compared, and what was measured before the first update."""
    grpo, pad_id = run.config.grpo, run.player.codec.pad_id
    groups = [episodes[start : start + grpo.group] for start in range(0, len(episodes), grpo.group)]
    credit = assign_credit(groups, run.config.arm, grpo)
    places = [places_of(episode) for episode in episodes]
    tokens = [each.tokens for each in places]
    with clock.time("log_probs"), run.player.arithmetic.context():
        responses = [each.response for each in places]
        before = score_all(run.policy, tokens, responses, grpo, pad_id=pad_id, entropies=True)
    with clock.time("reference"), run.player.arithmetic.context():
        said = [each.agent for each in places]
        reference = score_all(run.reference, tokens, said, grpo, pad_id=pad_id, entropies=False)
    lessons = [
        Lesson(
            each.tokens,
            each.agent,
            torch.zeros(len(each.agent)) if advantages is None else advantages,
            mine.log_probs[each.is_agent.to(mine.log_probs.device)],
            theirs.log_probs,
        )
        for each, advantages, mine, theirs in zip(places, credit.advantages, before, reference, strict=True)
    ]
    sound = [place for place, episode in enumerate(episodes) if episode.is_sound]
    measured = token_sums([before[place] for place in sound], [lessons[place] for place in sound])
    sums = {**episode_sums(episodes), **credit_sums(credit), **measured}
    sums["flop_update"] = update_flop(run.policy.config, [len(each) for each in tokens])
    compared = [advantages is not None for advantages in credit.advantages]
    return [each if heard else each.silenced() for each, heard in zip(lessons, compared, strict=True)], sums


def _require_groups(sums: Mapping[str, float], step: int) -> None:
    """Refuse a step in which no two episodes of a task say anything about the policy.

    Args:
        sums: of its episodes.
        step: its number.

    Raises:
        TrainingError: as above.
    """
    if not sums["groups"]:
        n_sound, n_episodes = int(sums["sound"]), int(sums["episodes"])
        raise TrainingError(
            f"step {step}: expected two episodes of a task that the simulated user neither failed nor left out of time",
            found=f"{n_sound} of {n_episodes} episodes, no two of one task",
            do=LET_THE_USER_ANSWER,
        )


def _update_all(run: TrainingRun, optimiser: AdamW, lessons: Sequence[Lesson], step: int) -> dict[str, float]:
    """Take the step's updates at its one learning rate and return their means; of the ratio the maximum."""
    config = run.config
    rate = _scheduled(config.arm.schedule, run.peak_rate, step, config.grpo.steps)
    size = len(lessons) // config.grpo.minibatches
    found = [
        update(
            run.policy,
            optimiser,
            lessons[start : start + size],
            arm=config.arm,
            grpo=config.grpo,
            pad_id=run.player.codec.pad_id,
            arithmetic=run.player.arithmetic,
            learning_rate=rate,
        )
        for start in range(0, len(lessons), size)
    ]
    for parameter in run.policy.parameters():
        parameter.grad = None  # the next rollout needs the memory
    means = {name: sum(values[name] for values in found) / len(found) for name in found[0]}
    return {**means, "ratio_max": max(values["ratio_max"] for values in found), "learning_rate": rate}


def _extremes(episodes: Sequence[Episode], lessons: Sequence[Lesson]) -> dict[str, float]:
    rewards = [sum(episode.rewards) for episode in episodes if episode.is_sound]
    gap = log_prob_gap(episodes, lessons)
    return {"reward_min": min(rewards), "reward_max": max(rewards), "rollout_log_prob_gap": gap}


def train(run: TrainingRun, *, state: Path, checkpoint_every: int, identity: str) -> RunProgress:
    """Train until `is_over`, from the run's checkpoint in `state` where there is one, and return all rows.

    Args:
        run: what is trained; its policy is moved in place.
        state: folder of checkpoints; left to the caller to remove.
        checkpoint_every: steps between checkpoints.
        identity: which run a checkpoint must belong to (`resume.identity_of`).

    Raises:
        DataError: fewer train tasks than a step takes.
        TrainingError: a loss or gradient is not finite, or the simulator fails too often or in all episodes.
    """
    grpo = run.config.grpo
    prepare_for_updates(run.policy)
    optimiser = AdamW(run.policy, learning_rate=run.peak_rate, weight_decay=grpo.weight_decay)
    progress = load_progress(state, run.policy, optimiser, identity=identity) or RunProgress()
    if progress.best is None:
        _note(run, progress, _validate(run, step=0))
    with Progress(grpo.steps - progress.step, "train agent") as bar:
        while not is_over(run, progress):
            clock, step = Clock(run.player.arithmetic.device), progress.step + 1
            weights = weights_at(run, step, progress.metrics[-1].values if progress.metrics else {})
            values = train_step(run.weighing(weights), optimiser, step, clock)
            values |= {WEIGHTS[term]: weight for term, weight in weights.items()}
            progress.step = step
            if step % run.config.evaluation.every == 0 or step == grpo.steps:
                with clock.time("validation"):
                    _note(run, progress, _validate(run, step=step))
            progress.metrics.append(_row(run, step, values, clock))
            if step % checkpoint_every == 0 and not is_over(run, progress):
                with clock.time("checkpoint"):
                    save_progress(state, progress, run.policy, optimiser, identity=identity)
                progress.metrics[-1] = _row(run, step, values, clock)
            bar.advance()
    return progress


def _row(run: TrainingRun, step: int, values: dict[str, float], clock: Clock) -> StepRow:
    """Return a step's row with its times."""
    timed = {**values, **{f"seconds_{name}": value for name, value in clock.seconds.items()}}
    device = run.player.arithmetic.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return StepRow(step=step, values={**timed, **memory_peak(device), **rates(timed, name)})


def _validate(run: TrainingRun, *, step: int) -> PolicyEvaluation:
    evaluation = run.config.evaluation
    return evaluate(
        run.player, run.val, When(step, "val", "current"), n_samples=evaluation.samples, seed=evaluation.seed
    )


def _note(run: TrainingRun, progress: RunProgress, evaluation: PolicyEvaluation) -> None:
    """Add an evaluation, and keep the policy if none before was as good."""
    progress.evaluations += evaluation.rows
    progress.episodes += evaluation.episodes
    looked_at = run.config.arm.stop or Stop()
    value = evaluation.value(looked_at.metric, looked_at.mode)
    if progress.best is None or value > progress.best.value:
        weights = copies(weights_of(run.policy))
        progress.best = Best(progress.evaluations[-1].step, value, weights)


def save_policies(run: TrainingRun, progress: RunProgress, *, last: Path, best: Path) -> None:
    """Write the last and the best policy as model folders of the configured precision."""
    if progress.best is None:
        return
    found = copies(weights_of(run.policy))
    dtype = getattr(torch, run.config.policy.model.dtype)
    for folder, weights in ((last, found), (best, progress.best.weights)):
        cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
        save_policy(folder, run.policy, run.player.codec, cast)
