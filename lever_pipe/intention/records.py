"""Every row of study `intention` that crosses a file boundary.

A run directory, whichever engine filled it, holds `metrics.jsonl` (one `StepRow` a step), `evaluations.jsonl` (one
`EvaluationRow` an evaluation), `episodes.jsonl` (one `EpisodeRow` an evaluated episode), `done.json` (`DoneRow`) and
`run.json`. The report reads nothing else of a run.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.records import Row

EndReason = Literal[
    "complete", "closed", "turns", "length", "context", "malformed", "timeout", "failed", "refused", "filtered", "empty"
]
"""Why an episode ended: nothing remains; a turn without a call; the turn limit; a turn or context too long; a call that
cannot be read; a turn over its time; a simulator, or the server of an agent, that gave up; a served agent's refusal; a
content filter; a reply without text and call."""
SERVED_ENDS: tuple[EndReason, ...] = ("refused", "filtered", "empty")
"""Ends of served agents alone. They are the agent's own: the rewards before them count."""
UNSOUND: tuple[EndReason, ...] = ("timeout", "failed")
"""Ends that are a server's doing: the rewards before them say nothing about the policy, so that such episodes are
counted, and neither learned from nor averaged."""
Split = Literal["val", "test"]
Mode = Annotated[str, Field(pattern=r"^(greedy|sampled(_at_[0-9.]+)?)$")]
Checkpoint = Literal["current", "last", "best"]


class MissingDetail(Row):
    """A hidden aim of the user."""

    description: str = Field(min_length=1)
    importance: Literal[1, 2, 3]  # low, medium, high
    inquiry: str = ""  # a question that would uncover it
    options: tuple[str, ...] = ()  # plausible values; in the embedded world the first one is the true one


class Task(Row):
    """A vague request with what its author did not say."""

    id: str = Field(min_length=1)
    category: str
    task: str = Field(min_length=1)
    missing_details: tuple[MissingDetail, ...] = Field(min_length=1)


class StepRow(Row):
    """What one training step measured; `seconds_*`, rates and memory are all that two equal runs differ in."""

    step: int = Field(ge=1)
    values: dict[str, float]


class EvaluationRow(Row):
    """One evaluation of a policy on one split."""

    step: int = Field(ge=0)
    split: Split
    mode: Mode
    checkpoint: Checkpoint = "current"
    n_tasks: int = Field(ge=1)
    n_samples: int = Field(ge=1)
    values: dict[str, float]  # means over tasks, each of its sound episodes; `tasks_lost` have none and are left out


class EpisodeRow(Row):
    """One evaluated episode."""

    step: int = Field(ge=0)
    split: Split
    mode: Mode
    checkpoint: Checkpoint = "current"
    task_id: str
    sample: int = Field(ge=0)
    rewards: tuple[float, ...]  # one a turn, a closing turn included with 0
    ceiling: float = Field(gt=0)  # what one detail a question would give
    end: EndReason
    n_agent_tokens: int = Field(ge=0)


class HiddenDetail(Row):
    """What a user did not say, as a transcript tells it."""

    text: str
    importance: Literal[1, 2, 3]


class DialogueCall(Row):
    """A call of the environment's tool."""

    choice: str
    content: str


class DialogueTurn(Row):
    """What an agent said and what came of it."""

    text: str  # beside its calls: thoughts, closing words, or all of a turn that cannot be read
    calls: tuple[DialogueCall, ...]
    reply: str  # empty where the turn was not executed
    uncovered: tuple[int, ...]  # places of the hidden details that the turn uncovered


class DialogueRow(EpisodeRow):
    """An evaluated episode with its transcript."""

    category: str
    request: str
    hidden: tuple[HiddenDetail, ...]
    turns: tuple[DialogueTurn, ...]  # one for each of `rewards`


class DoneRow(Row):
    """How far a run came; planned and executed steps are two numbers on purpose."""

    arm: str
    seed: int
    engine: str
    planned_steps: int
    executed_steps: int
    reason: Literal["finished", "stopped early", "log ended"]
    best_step: int = Field(ge=0)
    """Of the validation value that the arm stops by, else the sampled reward; ties: the first."""
    n_parameters: int = Field(ge=0)  # 0 where unknown
    version: str = ""  # whose metric definitions the numbers follow, where they are not ours
