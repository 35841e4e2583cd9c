"""The embedded world's user: it knows slots by their exact word, and answers in the world's own few words.

Deterministic, without clock or network: the two stress options draw from a stream of the task, the question and the
dialogue before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from lever_pipe.base.errors import SimulatorError
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.agent_config import AgentExecution, Simulator
from lever_pipe.intention.lexicon import IRRELEVANT, NO_SLOT, REPEATED, SLOTS, VALUES, disclosure
from lever_pipe.intention.records import Task
from lever_pipe.intention.simulators.protocol import Exchange, Judgement, RequestCounts, UserReply

_SLOTS = frozenset(SLOTS)


def load(config: Simulator, execution: AgentExecution) -> RuleUser:
    """Return the embedded user; nothing of `execution` concerns it."""
    del execution
    return RuleUser(judge_miss=config.judge_miss, reply_noise=config.reply_noise)


class RuleUser:
    """A user that follows rules."""

    concurrency = 1
    is_remote = False

    def __init__(self, *, judge_miss: float = 0.0, reply_noise: float = 0.0) -> None:
        self.counts = RequestCounts()
        self._judge_miss = judge_miss
        self._reply_noise = reply_noise

    def reply(self, task: Task, question: str, history: Sequence[Exchange], covered: Sequence[int]) -> UserReply:
        """Return the values of the named hidden slots, or why there is none to give."""
        self.counts.add(requests=1)
        named, hidden = _named(question), _slots_of(task)
        known = {hidden[index] for index in covered}
        wanted = [i for i, slot in enumerate(hidden) if slot in named - known]
        if wanted:
            return UserReply(" , ".join(self._disclose(task, i, question, history) for i in wanted), ok=True)
        if not named:
            return UserReply(NO_SLOT, ok=True)
        return UserReply(REPEATED if named <= known else IRRELEVANT, ok=True)

    def judge(self, task: Task, question: str, history: Sequence[Exchange], remaining: tuple[int, ...]) -> Judgement:
        """Return which remaining slots the question names."""
        self.counts.add(requests=1)
        named, hidden = _named(question), _slots_of(task)
        hits = [position for position, index in enumerate(remaining) if hidden[index] in named]
        if self._judge_miss > 0:
            streams = {p: _stream("judge miss", task, hidden[remaining[p]], question, history) for p in hits}
            hits = [p for p in hits if streams[p].random() >= self._judge_miss]
        return Judgement(tuple(hits), related=bool(named))

    def _disclose(self, task: Task, index: int, question: str, history: Sequence[Exchange]) -> str:
        detail = task.missing_details[index]
        value = detail.options[0]
        if self._reply_noise > 0:
            stream = _stream("reply noise", task, detail.description, question, history)
            if stream.random() < self._reply_noise:
                others = [other for other in VALUES if other != value]
                value = others[int(stream.integers(len(others)))]
        return disclosure(detail.description, value)


def _named(question: str) -> frozenset[str]:
    """Return the slots that stand in the question as words of their own."""
    return _SLOTS.intersection(question.split())


@lru_cache(maxsize=4096)
def _slots_of(task: Task) -> tuple[str, ...]:
    """Return the task's hidden slots in order; refuse tasks of another world, which could only ever score 0."""
    foreign = [
        detail.description
        for detail in task.missing_details
        if detail.description not in _SLOTS or not detail.options or detail.options[0] not in VALUES
    ]
    if foreign:
        raise SimulatorError(
            "intention.simulator.kind: rule plays the embedded tasks only",
            found=f"task {task.id!r} with the detail {foreign[0]!r}",
            do="Name openai for other tasks, or set intention.tasks.source: synthetic.",
        )
    return tuple(d.description for d in task.missing_details)


def _stream(purpose: str, task: Task, slot: str, question: str, history: Sequence[Exchange]) -> np.random.Generator:
    words = [part for exchange in history for part in exchange]
    return generator(0, "rule user", purpose, task.id, slot, question, *words)
