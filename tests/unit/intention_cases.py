"""Small tasks and a user that follows a script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lever_pipe.base.chat import RequestCounts
from lever_pipe.experiment.environment import Environment, Simulator
from lever_pipe.intention.environment import IntentionEnv
from lever_pipe.intention.lexicon import SLOTS
from lever_pipe.intention.records import MissingDetail, Task
from lever_pipe.intention.simulators.protocol import Exchange, Judgement, UserReply


def task_of(*importances: int, name: str = "t", **values: Any) -> Task:
    """Return a task of the embedded world whose details are the first slots."""
    details = tuple(
        MissingDetail(description=slot, importance=importance, inquiry=f"what about {slot}", options=("low", "high"))
        for slot, importance in zip(SLOTS, importances, strict=False)
    )
    base: dict[str, Any] = {"category": "travel", "task": "task : travel , place small ."}
    return Task(id=name, missing_details=details, **(base | values))


def judged(*indices: int, related: bool = True) -> Judgement:
    return Judgement(indices, related=related)


class ScriptedUser:
    """Return prescribed judgements in order, and record the questions to judge."""

    concurrency = 1
    is_remote = True

    def __init__(self, *judgements: Judgement, replies: Sequence[UserReply] = ()) -> None:
        self.counts = RequestCounts()
        self.asked: list[tuple[str, tuple[Exchange, ...], tuple[int, ...]]] = []
        self._judgements = list(judgements)
        self._replies = list(replies)

    def reply(self, task: Task, question: str, history: Sequence[Exchange], covered: Sequence[int]) -> UserReply:
        return self._replies.pop(0) if self._replies else UserReply("yes", ok=True)

    def judge(self, task: Task, question: str, history: Sequence[Exchange], remaining: tuple[int, ...]) -> Judgement:
        self.asked.append((question, tuple(history), remaining))
        return self._judgements.pop(0) if self._judgements else judged()


def env_of(task: Task, user: Any, *, environment: dict[str, Any] | None = None, **switches: Any) -> IntentionEnv:
    return IntentionEnv(task, user, Environment(**(environment or {})), Simulator(kind="rule", **switches))
