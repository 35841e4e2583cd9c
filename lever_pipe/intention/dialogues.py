"""Selection of held-out dialogues for the report, from the reference arm and the arm with the strongest KL."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lever_pipe.experiment.agent_training import AgentArm
from lever_pipe.intention.records import DialogueRow

N_EACH, N_TASKS = 2, 6
"""Number of displayed tasks: for each outcome, and in total."""
EQUAL = 1e-9  # largest difference of rewards that counts as equal
NO_TRANSCRIPTS, NO_KL_ARM, NO_COMMON_SEED = "no_transcripts", "no_kl_arm", "no_common_seed"

Runs = Mapping[tuple[str, int], Sequence[DialogueRow]]
"""The dialogues of each run, by arm and seed."""


class AgentSample(DialogueRow):
    """A line of `samples.jsonl`: the greedy episode of one run's policy on one held-out task."""

    arm: str
    seed: int
    reward: float  # sum over turns


def samples_of(runs: Runs) -> list[AgentSample]:
    """Return a row for each dialogue."""
    return [
        AgentSample(**row.model_dump(), arm=arm, seed=seed, reward=_reward(row))
        for (arm, seed), rows in runs.items()
        for row in rows
    ]


def dialogues(runs: Runs, arms: Sequence[AgentArm], reference: str) -> dict[str, Any]:
    """Return six tasks with the dialogues of two arms, from the lowest seed that both arms have.

    The second arm is the one with the strongest KL, other than the reference. `counts` contains the number of tasks on
    which it earns more (`higher`), less (`lower`) or the same (`equal`) as the reference.

    Two tasks of each outcome are displayed, and further tasks of other outcomes in turn if one outcome has fewer. Tasks
    are ordered by the larger difference, then by whether the dialogues differ, then by id. Among tasks with the same
    category and hidden details, all but the first come last. `missing` is the reason for an empty selection, or empty.

    Args:
        runs: the dialogues of each run; none for a run without transcripts.
        arms: all arms of the study.
        reference: name of the reference arm.
    """
    strongest = max((arm for arm in arms if arm.kl > 0 and arm.name != reference), key=lambda arm: arm.kl, default=None)
    page: dict[str, Any] = {"reference": reference, "other": strongest and strongest.name, "counts": {}, "tasks": []}
    if not any(runs.values()):
        return {**page, "missing": NO_TRANSCRIPTS}
    if strongest is None:
        return {**page, "missing": NO_KL_ARM}
    names = (reference, strongest.name)
    first, second = ({seed for arm, seed in runs if arm == name} for name in names)
    if not first & second:
        return {**page, "missing": NO_COMMON_SEED}
    seed = min(first & second)
    left, right = ({row.task_id: row for row in runs[name, seed]} for name in names)
    pairs = {task: (left[task], right[task]) for task in left if task in right}
    outcomes = _outcomes(pairs)
    return {
        **page,
        "missing": "",
        "kl": strongest.kl,
        "seed": seed,
        "counts": {outcome: len(tasks) for outcome, tasks in outcomes.items()} | {"tasks": len(pairs)},
        "tasks": [_entry(outcome, dict(zip(names, pairs[task], strict=True))) for outcome, task in _chosen(outcomes)],
    }


def _outcomes(pairs: Mapping[str, tuple[DialogueRow, DialogueRow]]) -> dict[str, list[str]]:
    """Return the tasks of each outcome in the order of display."""
    gains = {task: _reward(right) - _reward(left) for task, (left, right) in pairs.items()}
    same = {task: left.turns == right.turns for task, (left, right) in pairs.items()}
    # Rounding lets equal gains tie in spite of floating-point errors.
    ordered = sorted(pairs, key=lambda task: (-round(abs(gains[task]), 9), same[task], task))
    hidden = {task: (left.category, frozenset(d.text for d in left.hidden)) for task, (left, _) in pairs.items()}
    first = {hidden[task]: task for task in reversed(ordered)}  # reversed: the last assignment wins
    ordered.sort(key=lambda task: first[hidden[task]] != task)
    return {
        "higher": [task for task in ordered if gains[task] > EQUAL],
        "lower": [task for task in ordered if gains[task] < -EQUAL],
        "equal": [task for task in ordered if abs(gains[task]) <= EQUAL],
    }


def _chosen(outcomes: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return the displayed pairs of outcome and task, grouped by outcome."""
    longest = max(map(len, outcomes.values()), default=0)
    first = [(outcome, task) for outcome, tasks in outcomes.items() for task in tasks[:N_EACH]]
    more = [(o, tasks[i]) for i in range(N_EACH, longest) for o, tasks in outcomes.items() if i < len(tasks)]
    return sorted([*first, *more][:N_TASKS], key=lambda pair: list(outcomes).index(pair[0]))


def _entry(outcome: str, rows: Mapping[str, DialogueRow]) -> dict[str, Any]:
    """Return one task with the dialogue of each arm."""
    row = next(iter(rows.values()))
    return {
        "outcome": outcome,
        "task_id": row.task_id,
        "category": row.category,
        "request": row.request,
        "hidden": [detail.model_dump() for detail in row.hidden],
        "ceiling": row.ceiling,
        "dialogues": {name: _dialogue(row) for name, row in rows.items()},
    }


def _dialogue(row: DialogueRow) -> dict[str, Any]:
    turns = [
        {
            "text": turn.text,
            "calls": [call.model_dump() for call in turn.calls],
            "reply": turn.reply,
            "reward": reward,
            "uncovered": [row.hidden[i].text for i in turn.uncovered],
        }
        for turn, reward in zip(row.turns, row.rewards, strict=True)
    ]
    return {"reward": _reward(row), "end": row.end, "turns": turns}


def _reward(row: DialogueRow) -> float:
    return round(math.fsum(row.rewards), 9)
