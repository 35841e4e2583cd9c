"""Policies on tasks that they are not trained on: one greedy episode a task, and several sampled ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from lever_pipe.base.progress import Progress
from lever_pipe.base.records import Row
from lever_pipe.intention.agent.measures import END_REASONS
from lever_pipe.intention.agent.processes import own_share
from lever_pipe.intention.agent.rollout import MISHAPS, Episode, EpisodeRequest, Player
from lever_pipe.intention.agent.transcripts import dialogue_of
from lever_pipe.intention.records import DialogueRow, EpisodeRow, EvaluationRow, Task
from lever_pipe.statistics.summary import mean_and_sd

Split = Literal["val", "test"]
Mode = Literal["greedy", "sampled"]
Checkpoint = Literal["current", "last", "best"]
MEANS = ("reward", "normalised_reward", "coverage", "turns", "agent_tokens", *(f"end_{r}" for r in END_REASONS))


class When(NamedTuple):
    """Which policy is evaluated on what."""

    step: int
    split: Split
    checkpoint: Checkpoint


class PolicyEvaluation(NamedTuple):
    """The two rows, greedy first, and the episodes that they sum up."""

    rows: list[EvaluationRow]
    episodes: list[EpisodeRow]
    dialogues: list[DialogueRow]
    """Transcripts of the greedy episodes of held-out tasks; none of other splits."""

    @property
    def reward(self) -> float:
        """Return the mean reward of the sampled episodes."""
        return self.rows[-1].values["reward"]


class _Played(Row):
    """One episode on its way between processes."""

    index: int
    coverage: float
    row: EpisodeRow
    dialogue: DialogueRow | None


_PLAYED = TypeAdapter(list[_Played])


def evaluate(
    player: Player,
    tasks: Sequence[Task],
    when: When,
    *,
    n_samples: int,
    seed: int,
    progress: Progress | None = None,
) -> PolicyEvaluation:
    """Play one greedy and `n_samples` sampled episodes of every task, shared out over the processes.

    The draws of an episode come from the stream (seed, "evaluation", split, task, sample): the same at every step and
    for every arm. Such common random numbers take noise out of differences between policies; the numbers of one
    evaluation are as good as with fresh draws.

    Raises:
        TrainingError: too many of the simulator's requests failed.
    """
    greedy = _play(player, tasks, when, "greedy", 1, seed, progress)
    sampled = _play(player, tasks, when, "sampled", n_samples, seed, progress)
    return PolicyEvaluation([greedy[0], sampled[0]], [*greedy[1], *sampled[1]], [*greedy[2], *sampled[2]])


def relabelled(evaluation: PolicyEvaluation, when: When) -> PolicyEvaluation:
    """Return the same numbers under another checkpoint's name."""
    change = when._asdict()
    return PolicyEvaluation(
        [row.model_copy(update=change) for row in evaluation.rows],
        [row.model_copy(update=change) for row in evaluation.episodes],
        [row.model_copy(update=change) for row in evaluation.dialogues],
    )


def _play(
    player: Player,
    tasks: Sequence[Task],
    when: When,
    mode: Mode,
    n_samples: int,
    seed: int,
    progress: Progress | None,
) -> tuple[EvaluationRow, list[EpisodeRow], list[DialogueRow]]:
    own = own_share(range(len(tasks)), player.processes)
    requests = [
        EpisodeRequest(tasks[index], index, sample, (seed, "evaluation", when.split, index, sample))
        for index in own
        for sample in range(n_samples)
    ]
    episodes, counts, _ = player.play(requests, greedy=mode == "greedy", progress=progress)
    work = counts.values()
    totals = player.processes.combine({name: work[name] for name in MISHAPS}, "sum")
    player.require_few_failures(totals, during=f"{mode} evaluation of split {when.split} at step {when.step}")
    own_episodes = _PLAYED.dump_json([_played(episode, when, mode, player) for episode in episodes]).decode()
    played = [each for text in player.processes.gather(own_episodes) for each in _PLAYED.validate_json(text)]
    played.sort(key=lambda each: (each.index, each.row.sample))
    values = _values(played) | {name: totals[name] for name in MISHAPS if name != "simulator_requests"}
    row = EvaluationRow(**when._asdict(), mode=mode, n_tasks=len(tasks), n_samples=n_samples, values=values)
    return row, [each.row for each in played], [each.dialogue for each in played if each.dialogue]


def _played(episode: Episode, when: When, mode: Mode, player: Player) -> _Played:
    row = EpisodeRow(
        **when._asdict(),
        mode=mode,
        task_id=episode.task.id,
        sample=episode.sample,
        rewards=tuple(episode.rewards),
        ceiling=episode.ceiling,
        end=episode.end,
        n_agent_tokens=sum(episode.is_agent),
    )
    is_read = when.split == "test" and mode == "greedy"
    dialogue = dialogue_of(episode, row, player.codec) if is_read else None
    return _Played(index=episode.index, coverage=episode.coverage, row=row, dialogue=dialogue)


def _values(played: Sequence[_Played]) -> dict[str, float]:
    """Return means over episodes; the reward's standard error is over tasks, each with the mean of its episodes."""
    values = [_values_of(each) for each in played]
    means = {name: math.fsum(value[name] for value in values) / len(values) for name in MEANS}
    rewards = [value["reward"] for value in values]
    tasks: dict[int, list[float]] = {}
    for each, reward in zip(played, rewards, strict=True):
        tasks.setdefault(each.index, []).append(reward)
    return {
        **means,
        "reward_se": _standard_error([math.fsum(found) / len(found) for found in tasks.values()]),
        "reward_min": min(rewards),
        "reward_max": max(rewards),
    }


def _values_of(played: _Played) -> dict[str, float]:
    row = played.row
    reward = math.fsum(row.rewards)
    return {
        "reward": reward,
        "normalised_reward": reward / row.ceiling,
        "coverage": played.coverage,
        "turns": len(row.rewards),
        "agent_tokens": row.n_agent_tokens,
        **{f"end_{reason}": float(row.end == reason) for reason in END_REASONS},
    }


def _standard_error(means: Sequence[float]) -> float:
    """Return the standard error of the mean over tasks; 0 for a single one, which has none."""
    return mean_and_sd(means)[1] / math.sqrt(len(means)) if len(means) > 1 else 0.0
