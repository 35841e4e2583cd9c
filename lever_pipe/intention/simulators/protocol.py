"""Interface of simulated users.

To add one, add a module `lever_pipe/intention/simulators/<name>.py` with a function
`load(config: Simulator, execution: AgentExecution) -> UserSimulator`; its name is then valid in
`intention.simulator.kind`. A user answers a question. In a second step, which does not depend on the answer, it judges
the hidden details that the question uncovers. Several threads may call both at the same time.
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
    """The user's reply to a question."""

    text: str
    ok: bool
    """False if no reply could be obtained; `text` is then a stock phrase."""


class Judgement(NamedTuple):
    """The details that a question uncovers."""

    indices: tuple[int, ...]
    """Positions among the remaining details, unchecked: they may contain duplicates or be out of range."""
    related: bool = True
    """Whether the question is related to the task."""
    ok: bool = True
    """False if no judgement could be obtained; `indices` is then empty, without any meaning."""


class UserSimulator(Protocol):
    """A simulated user."""

    @property
    def is_remote(self) -> bool:
        """Return whether answers take time; the environment enforces time limits only for a remote user."""

    @property
    def concurrency(self) -> int:
        """Return the maximum number of concurrent requests."""

    @property
    def counts(self) -> RequestCounts:
        """Return the counts of requests since the simulator was loaded."""

    def reply(self, task: Task, question: str, history: Sequence[Exchange], covered: Sequence[int]) -> UserReply:
        """Return the user's reply to a question.

        `history` has earlier exchanges, oldest first; `covered` are indices into `task.missing_details` that they
        uncovered.
        """

    def judge(self, task: Task, question: str, history: Sequence[Exchange], remaining: tuple[int, ...]) -> Judgement:
        """Return the uncovered details as positions in `remaining`, which are indices into `task.missing_details`."""
