"""Policies on tasks that they are not trained on: one greedy episode a task, and several sampled ones.

A transcript of a held-out greedy episode holds what the agent said, its calls, the replies and what they paid.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from lever_pipe.base.errors import TrainingError
from lever_pipe.base.progress import Progress
from lever_pipe.experiment.agent_config import AgentEvaluation, EvaluationMode
from lever_pipe.intention.agent.measures import END_REASONS
from lever_pipe.intention.agent.rollout import LET_THE_USER_ANSWER, Episode, EpisodeRequest, Player
from lever_pipe.intention.records import (
    UNSOUND,
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
_SHOWN = 5
"""Lost tasks that a warning names."""

MOST_CHARACTERS = 2_000
"""Of one text; the rest of a longer one is cut off and its length told."""
MEANS = ("reward", "normalised_reward", "coverage", "turns", "agent_tokens")
MODES: tuple[EvaluationMode, ...] = ("greedy", "sampled")


class When(NamedTuple):
    """Which policy is evaluated on what."""

    step: int
    split: Split
    checkpoint: Checkpoint


class PolicyEvaluation(NamedTuple):
    """A row for each decoding, greedy first, and the episodes that they sum up."""

    rows: list[EvaluationRow]
    episodes: list[EpisodeRow]
    dialogues: list[DialogueRow]
    """Transcripts of the greedy episodes of held-out tasks; none of other splits."""

    def value(self, metric: str, mode: Mode) -> float:
        """Return a mean of the episodes of a decoding."""
        return next(row.values[metric] for row in self.rows if row.mode == mode)


@dataclass(frozen=True)
class _Played:
    """One episode, as it is told."""

    index: int
    coverage: float
    row: EpisodeRow
    dialogue: DialogueRow | None


def evaluate(
    player: AnyPlayer,
    tasks: Sequence[Task],
    when: When,
    *,
    n_samples: int,
    seed: int,
    progress: Progress | None = None,
    modes: Sequence[EvaluationMode] = MODES,
) -> PolicyEvaluation:
    """Play one greedy and `n_samples` sampled episodes of every task.

    The draws of an episode come from the stream (seed, "evaluation", split, task, sample): the same at every step and
    for every arm. Such common random numbers take noise out of differences between policies; the numbers of one
    evaluation are as good as with fresh draws. Episodes that the simulator ended are counted and left out of means.

    Raises:
        TrainingError: too many of the simulator's requests failed, or all episodes did.
    """
    times = {mode: times for mode, times in zip(MODES, (1, n_samples), strict=True) if mode in modes}
    found = [_play(player, tasks, when, mode, n, seed, progress) for mode, n in times.items()]
    rows, episodes, dialogues = zip(*found, strict=True)
    return PolicyEvaluation(list(rows), list(chain(*episodes)), list(chain(*dialogues)))


def evaluate_held_out(
    player: AnyPlayer,
    tasks: Sequence[Task],
    when: When,
    config: AgentEvaluation,
    modes: Sequence[EvaluationMode] = MODES,
) -> PolicyEvaluation:
    """Evaluate a policy on held-out tasks as `config` says, and show how far it is.

    Raises:
        TrainingError: as `evaluate`.
    """
    n, seed = config.test_samples, config.seed
    n_each = sum({"greedy": 1, "sampled": n}[mode] for mode in modes)
    with Progress(len(tasks) * n_each, f"evaluate the policy of step {when.step}") as bar:
        return evaluate(player, tasks, when, n_samples=n, seed=seed, progress=bar, modes=modes)


def relabelled(evaluation: PolicyEvaluation, when: When) -> PolicyEvaluation:
    """Return the same numbers under another checkpoint's name."""
    change = when._asdict()
    return PolicyEvaluation(
        [row.model_copy(update=change) for row in evaluation.rows],
        [row.model_copy(update=change) for row in evaluation.episodes],
        [row.model_copy(update=change) for row in evaluation.dialogues],
    )


def _play(
    player: AnyPlayer,
    tasks: Sequence[Task],
    when: When,
    mode: Mode,
    n_samples: int,
    seed: int,
    progress: Progress | None,
) -> tuple[EvaluationRow, list[EpisodeRow], list[DialogueRow]]:
    requests = [
        EpisodeRequest(task, index, sample, (seed, "evaluation", when.split, index, sample))
        for index, task in enumerate(tasks)
        for sample in range(n_samples)
    ]
    episodes, counts, _ = player.play(requests, greedy=mode == "greedy", progress=progress)
    work = counts.values()
    totals = {name: work[name] for name in player.counted}
    player.require_few_failures(totals, during=f"{mode} evaluation of split {when.split} at step {when.step}")
    played = [_played(episode, when, mode, player) for episode in episodes]
    values = _values(played, f"{mode} evaluation of split {when.split} at step {when.step}")
    values |= {name: total for name, total in totals.items() if name != "simulator_requests"}
    row = EvaluationRow(**when._asdict(), mode=mode, n_tasks=len(tasks), n_samples=n_samples, values=values)
    return row, [each.row for each in played], [each.dialogue for each in played if each.dialogue]


def _played(episode: Episode, when: When, mode: Mode, player: AnyPlayer) -> _Played:
    row = EpisodeRow(
        **when._asdict(),
        mode=mode,
        task_id=episode.task.id,
        sample=episode.sample,
        rewards=tuple(episode.rewards),
        ceiling=episode.ceiling,
        end=episode.end,
        n_agent_tokens=episode.n_agent_tokens,
    )
    is_read = when.split == "test" and mode == "greedy"
    dialogue = dialogue_of(episode, row, player) if is_read else None
    return _Played(index=episode.index, coverage=episode.coverage, row=row, dialogue=dialogue)


def _values(played: Sequence[_Played], where: str) -> dict[str, float]:
    """Return means over tasks, each with the mean of its sound episodes; of ends the shares in all episodes.

    Raises:
        TrainingError: no episode is sound.
    """
    tasks: dict[int, list[dict[str, float]]] = {}
    for each in played:
        tasks.setdefault(each.index, [])
        if each.row.end not in UNSOUND:
            tasks[each.index].append(_values_of(each))
    known = [of for of in tasks.values() if of]
    if len(known) < len(tasks):
        _tell_lost([each.row.task_id for each in played if not tasks[each.index]], len(tasks), where)
    means = {name: [math.fsum(value[name] for value in of) / len(of) for of in known] for name in MEANS}
    rewards = [value["reward"] for of in known for value in of]
    return {
        **{name: math.fsum(of) / len(of) for name, of in means.items()},
        **{f"end_{reason}": sum(each.row.end == reason for each in played) / len(played) for reason in END_REASONS},
        "reward_se": _standard_error(means["reward"]),
        "reward_min": min(rewards),
        "reward_max": max(rewards),
        "tasks_lost": float(len(tasks) - len(known)),
    }


def _tell_lost(names: Sequence[str], n_tasks: int, where: str) -> None:
    """Warn of tasks without a sound episode, and refuse to go on if there are no others.

    Raises:
        TrainingError: as above.
    """
    lost = list(dict.fromkeys(names))
    if len(lost) == n_tasks:
        raise TrainingError(
            f"{where}: expected an episode that the simulated user neither failed nor left out of time",
            found=f"none of {len(names)} on {n_tasks} tasks",
            do=LET_THE_USER_ANSWER,
        )
    listed = ", ".join(lost[:_SHOWN]) + ", ..." * (len(lost) > _SHOWN)
    log.warning("%s: %d of %d tasks have no sound episode and are left out: %s", where, len(lost), n_tasks, listed)


def _values_of(played: _Played) -> dict[str, float]:
    row = played.row
    reward = math.fsum(row.rewards)
    return {
        "reward": reward,
        "normalised_reward": reward / row.ceiling,
        "coverage": played.coverage,
        "turns": len(row.rewards),
        "agent_tokens": row.n_agent_tokens,
    }


def _standard_error(means: Sequence[float]) -> float:
    """Return the standard error of the mean over tasks; 0 for a single one, which has none."""
    return mean_and_sd(means)[1] / math.sqrt(len(means)) if len(means) > 1 else 0.0


def dialogue_of(episode: Episode, row: EpisodeRow, player: AnyPlayer) -> DialogueRow:
    """Return the transcript of an episode.

    Args:
        episode: as it was rolled out.
        row: what is told of it otherwise.
        player: whose agent spoke in it.
    """
    task = episode.task
    return DialogueRow(
        **row.model_dump(),
        category=task.category,
        request=_cut(task.task),
        hidden=tuple(HiddenDetail(text=_cut(d.description), importance=d.importance) for d in task.missing_details),
        turns=tuple(_turn(episode, place, player) for place in range(len(episode.rewards))),
    )


def _turn(episode: Episode, place: int, player: AnyPlayer) -> DialogueTurn:
    said, calls = player.heard(episode, place)
    result = episode.results[place]
    return DialogueTurn(
        said=_cut(said),
        calls=tuple(DialogueCall(choice=call.choice, content=_cut(call.content)) for call in calls),
        reply="" if result is None else _cut(result.feedback),
        uncovered=() if result is None else result.covered,
    )


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} [... {len(text)} characters]"
