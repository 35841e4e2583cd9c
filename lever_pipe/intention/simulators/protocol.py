"""What a simulated user offers.

To add one, add a module `lever_pipe/intention/simulators/<name>.py` with a function
`load(config: Simulator, execution: AgentExecution) -> UserSimulator`; its name is then valid in
`intention.simulator.kind`. A user answers a question and judges, in a second step that does not depend on the answer,
which hidden details the question uncovers. Both may be called from several threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lever_pipe.base.chat import RequestCounts
from lever_pipe.intention.records import Task


class Exchange(NamedTuple):
    """A question of the agent with the user's reply."""

    question: str
    reply: str


class UserReply(NamedTuple):
    """What the user says."""

    text: str
    ok: bool
    """False where no reply could be had; `text` is then a stock phrase."""


class Judgement(NamedTuple):
    """What a question uncovers."""

    indices: tuple[int, ...]
    """Positions among the remaining details, as the judge gave them: some may repeat or lie out of range."""
    related: bool = True
    """Whether the question has to do with the task."""
    ok: bool = True
    """False where no judgement could be had; `indices` is then empty, which says nothing about the question."""


class UserSimulator(Protocol):
    """A simulated user."""

    @property
    def is_remote(self) -> bool:
        """Return whether it takes time to answer; for one that answers at once no clock is read."""

    @property
    def concurrency(self) -> int:
        """Return how many requests may be in flight at one time."""

    @property
    def counts(self) -> RequestCounts:
        """Return the running counts since the simulator was loaded."""

    def reply(self, task: Task, question: str, history: Sequence[Exchange], covered: Sequence[int]) -> UserReply:
        """Return what the user answers.

        `history` has earlier exchanges, oldest first; `covered` are indices into `task.missing_details` that they
        uncovered.
        """

    def judge(self, task: Task, question: str, history: Sequence[Exchange], remaining: tuple[int, ...]) -> Judgement:
        """Return which of the `remaining` details, indices into `task.missing_details`, the question uncovers."""
