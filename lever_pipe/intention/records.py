"""Every row of study `intention` that crosses a file boundary.

With every engine, a run directory contains `metrics.jsonl` (one `StepRow` per step), `evaluations.jsonl` (one
`EvaluationRow` per evaluation), `episodes.jsonl` (one `EpisodeRow` per evaluated episode), `done.json` (`DoneRow`) and
`run.json`. The report reads no other files of a run.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from lever_pipe.base.records import Row

EndReason = Literal[
    "complete", "closed", "turns", "length", "context", "malformed", "timeout", "failed", "refused", "filtered", "empty"
]
"""Why an episode ended: no hidden detail remains; a turn without a call; the turn limit; a turn without an end token; a
full context; a call that cannot be read; a turn over its time limit; a failure of the simulator or of an agent's
server; a served agent's refusal; a content filter; a reply without text and call."""
SERVED_ENDS: tuple[EndReason, ...] = ("refused", "filtered", "empty")
"""End reasons of served agents only. The agent causes them, so the rewards before them count."""
UNSOUND: tuple[EndReason, ...] = ("timeout", "failed")
"""End reasons that a server causes. The rewards before them are no measure of the policy, so such episodes are counted
but excluded from training and from means."""
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
    """A vague request with the details that are missing from it."""

    id: str = Field(min_length=1)
    category: str
    task: str = Field(min_length=1)
    missing_details: tuple[MissingDetail, ...] = Field(min_length=1)


class StepRow(Row):
    """Metrics of one training step; two equal runs differ only in `seconds_*`, rates and memory."""

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
    values: dict[str, float]  # means over tasks of means over sound episodes; `tasks_lost` counts tasks without any


class EpisodeRow(Row):
    """One evaluated episode."""

    step: int = Field(ge=0)
    split: Split
    mode: Mode
    checkpoint: Checkpoint = "current"
    task_id: str
    sample: int = Field(ge=0)
    rewards: tuple[float, ...]  # one per turn, with 0 for a closing turn
    ceiling: float = Field(gt=0)  # the sum of rewards for one question per detail
    end: EndReason
    n_agent_tokens: int = Field(ge=0)


class HiddenDetail(Row):
    """A hidden detail in a transcript."""

    text: str
    importance: Literal[1, 2, 3]


class DialogueCall(Row):
    """A call of the environment's tool."""

    choice: str
    content: str


class DialogueTurn(Row):
    """One turn of an agent with its result."""

    text: str  # without the calls: thoughts, closing words, or the whole text of a turn that cannot be read
    calls: tuple[DialogueCall, ...]
    reply: str  # empty where the turn was not executed
    uncovered: tuple[int, ...]  # indices of the hidden details that the turn uncovered


class DialogueRow(EpisodeRow):
    """An evaluated episode with its transcript."""

    category: str
    request: str
    hidden: tuple[HiddenDetail, ...]
    turns: tuple[DialogueTurn, ...]  # one for each of `rewards`


class DoneRow(Row):
    """The state of a run at its end; a run may execute fewer steps than planned."""

    arm: str
    seed: int
    engine: str
    planned_steps: int
    executed_steps: int
    reason: Literal["finished", "stopped early", "log ended"]
    best_step: int = Field(ge=0)
    """Step of the best validation value: of the metric that the arm stops by, or of the sampled reward; ties: the
    first."""
    n_parameters: int = Field(ge=0)  # 0 where unknown
    version: str = ""  # the foreign trainer's version that defines the metrics; empty for this project's definitions


END_REASONS: tuple[str, ...] = tuple(end for end in get_args(EndReason) if end not in SERVED_ENDS)
"""End reasons of a policy's episodes, without those that only served agents have."""
