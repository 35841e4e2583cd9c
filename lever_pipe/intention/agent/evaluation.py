"""Evaluation of policies on held-out tasks: one greedy episode per task, and several sampled ones.

The transcript of a greedy test episode contains the agent's texts, its tool calls, the replies and the rewards.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from lever_pipe.base.errors import TrainingError
from lever_pipe.base.progress import Progress
from lever_pipe.experiment.agent_evaluation import AgentEvaluation, EvaluationMode
from lever_pipe.intention.agent.rollout import LET_THE_USER_ANSWER, Episode, EpisodeRequest, Player
from lever_pipe.intention.records import (
    END_REASONS,
    Checkpoint,
    DialogueCall,
    DialogueRow,
    DialogueTurn,
    EpisodeRow,
    EvaluationRow,
    HiddenDetail,
    Mode,
    Split,
    Task,
)
from lever_pipe.statistics.summary import mean_and_sd

if TYPE_CHECKING:
    from lever_pipe.intention.agent.served import ServedPlayer

    AnyPlayer = Player | ServedPlayer

log = logging.getLogger(__name__)

MOST_CHARACTERS = 2_000
"""Maximum length of one text in a transcript; a longer one is cut and its full length appended."""
MEANS: dict[str, Callable[[Episode], float]] = {
    "reward": lambda episode: math.fsum(episode.rewards),
    "normalised_reward": lambda episode: math.fsum(episode.rewards) / episode.ceiling,
    "coverage": lambda episode: episode.coverage,
    "turns": lambda episode: len(episode.rewards),
    "agent_tokens": lambda episode: episode.n_agent_tokens,
}
MODES: tuple[EvaluationMode, ...] = ("greedy", "sampled")


class When(NamedTuple):
    """Training step, checkpoint and split of an evaluation."""

    step: int
    split: Split
    checkpoint: Checkpoint


class PolicyEvaluation(NamedTuple):
    """One row per decoding mode, greedy first, and the evaluated episodes."""

    rows: list[EvaluationRow]
    episodes: list[EpisodeRow]
    dialogues: list[DialogueRow]
    """Transcripts of the greedy episodes of the test split; empty for other splits."""

    def value(self, metric: str, mode: Mode) -> float:
        """Return the mean of a metric over the episodes of a decoding mode."""
        return next(row.values[metric] for row in self.rows if row.mode == mode)


def evaluate(
    player: AnyPlayer,
    tasks: Sequence[Task],
    when: When,
    config: AgentEvaluation,
    modes: Sequence[EvaluationMode] = MODES,
) -> PolicyEvaluation:
    """Play one greedy episode and the configured number of sampled episodes of every task, with a progress bar.

    The draws of an episode come from the stream (seed, "evaluation", split, task, sample): the same at every step and
    for every arm. These common random numbers reduce the noise of differences between policies; the estimates of one
    evaluation are as good as with fresh draws. Episodes that the simulator ended are counted but excluded from means.
    """
    evaluation = PolicyEvaluation([], [], [])
    n_sampled = config.test_samples if when.split == "test" else config.samples
    # Greedy episodes of a task are all equal, so one suffices.
    n_each: dict[Mode, int] = {mode: n for mode, n in zip(MODES, (1, n_sampled), strict=True) if mode in modes}
    heated = {mode: replace(player, temperature=temperature) for mode, temperature in config.by_temperature.items()}
    if when.split == "test":
        n_each |= dict.fromkeys(heated, n_sampled)
    with Progress(len(tasks) * sum(n_each.values()), f"evaluate the policy of step {when.step}") as bar:
        for mode, n in n_each.items():
            requests = [
                EpisodeRequest(task, index, sample, (config.seed, "evaluation", when.split, index, sample))
                for index, task in enumerate(tasks)
                for sample in range(n)
            ]
            label = f"{mode} evaluation of split {when.split} at step {when.step}"
            episodes, counts, _ = heated.get(mode, player).play(requests, greedy=mode == "greedy", progress=bar)
            work = counts.values()
            player.require_few_failures(work, during=label)
            values = _values(episodes, label, (*END_REASONS, *player.ends))
            values |= {name: work[name] for name in player.counted if name != "simulator_requests"}
            row = EvaluationRow(**when._asdict(), mode=mode, n_tasks=len(tasks), n_samples=n, values=values)
            rows = [_row(episode, when, mode) for episode in episodes]
            evaluation.rows.append(row)
            evaluation.episodes.extend(rows)
            if when.split == "test" and mode == "greedy":
                evaluation.dialogues.extend(map(dialogue_of, episodes, rows, [player] * len(rows)))
    return evaluation


def relabelled(evaluation: PolicyEvaluation, when: When) -> PolicyEvaluation:
    """Return a copy of the evaluation with another step, split and checkpoint."""
    change = when._asdict()
    return PolicyEvaluation(
        [row.model_copy(update=change) for row in evaluation.rows],
        [row.model_copy(update=change) for row in evaluation.episodes],
        [row.model_copy(update=change) for row in evaluation.dialogues],
    )


def _row(episode: Episode, when: When, mode: Mode) -> EpisodeRow:
    return EpisodeRow(
        **when._asdict(),
        mode=mode,
        task_id=episode.task.id,
        sample=episode.sample,
        rewards=tuple(episode.rewards),
        ceiling=episode.ceiling,
        end=episode.end,
        n_agent_tokens=episode.n_agent_tokens,
    )


def _values(episodes: Sequence[Episode], label: str, ends: Sequence[str]) -> dict[str, float]:
    """Return means over tasks, each task with the mean of its sound episodes, and shares of end reasons."""
    tasks: dict[str, list[Episode]] = {episode.task.id: [] for episode in episodes}
    for episode in episodes:
        if episode.is_sound:
            tasks[episode.task.id].append(episode)
    selected = [group for group in tasks.values() if group]
    missing = [name for name, group in tasks.items() if not group]
    if not selected:
        raise TrainingError(
            f"{label}: expected an episode without a failure or timeout of the simulated user",
            found=f"none of {len(episodes)} on {len(tasks)} tasks",
            do=LET_THE_USER_ANSWER,
        )
    if missing:
        message = "%s: %d of %d tasks have no sound episode and are excluded, for example %s"
        log.warning(message, label, len(missing), len(tasks), missing[0])
    means = {name: [math.fsum(map(value, group)) / len(group) for group in selected] for name, value in MEANS.items()}
    rewards = [math.fsum(episode.rewards) for group in selected for episode in group]
    return {
        **{name: math.fsum(values) / len(values) for name, values in means.items()},
        **{f"end_{reason}": sum(e.end == reason for e in episodes) / len(episodes) for reason in ends},
        # The standard error is over tasks, because the episodes of one task are not independent. One task has none.
        "reward_se": mean_and_sd(means["reward"])[1] / math.sqrt(len(selected)) if len(selected) > 1 else 0.0,
        "reward_min": min(rewards),
        "reward_max": max(rewards),
        "tasks_lost": float(len(missing)),
    }


def dialogue_of(episode: Episode, row: EpisodeRow, player: AnyPlayer) -> DialogueRow:
    """Return the transcript of an episode; `row` supplies its other values."""
    task = episode.task
    return DialogueRow(
        **row.model_dump(),
        category=task.category,
        request=_cut(task.task),
        hidden=tuple(HiddenDetail(text=_cut(d.description), importance=d.importance) for d in task.missing_details),
        turns=tuple(_turn(episode, turn_index, player) for turn_index in range(len(episode.rewards))),
    )


def _turn(episode: Episode, turn_index: int, player: AnyPlayer) -> DialogueTurn:
    text, calls = player.utterance(episode, turn_index)
    result = episode.results[turn_index]
    return DialogueTurn(
        text=_cut(text),
        calls=tuple(DialogueCall(choice=call.choice, content=_cut(call.content)) for call in calls),
        reply="" if result is None else _cut(result.feedback),
        uncovered=() if result is None else result.covered,
    )


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} [... {len(text)} characters]"
