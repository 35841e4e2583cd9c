"""The simulated user of the embedded world, which recognizes exact words and answers in the world's vocabulary.

It is deterministic and needs neither a clock nor a network.
"""

from __future__ import annotations

from collections.abc import Sequence

from lever_pipe.base.chat import RequestCounts
from lever_pipe.experiment.environment import AgentExecution, Simulator
from lever_pipe.intention.lexicon import IRRELEVANT, NO_SLOT, REPEATED, SLOTS
from lever_pipe.intention.records import Task
from lever_pipe.intention.simulators.protocol import Exchange, Judgement, UserReply

_SLOTS = frozenset(SLOTS)


def load(config: Simulator, execution: AgentExecution) -> RuleUser:
    """Return the embedded user, which has no settings."""
    del config, execution
    return RuleUser()


class RuleUser:
    """A rule-based user."""

    concurrency = 1
    is_remote = False

    def __init__(self) -> None:
        self.counts = RequestCounts()

    def reply(self, task: Task, question: str, history: Sequence[Exchange], covered: Sequence[int]) -> UserReply:
        """Return the values of the hidden slots in the question, or the phrase for a question without any."""
        del history
        self.counts.add(requests=1)
        slots, hidden = _slots_in(question), _slots_of(task)
        covered_slots = {hidden[index] for index in covered}
        indices = [i for i, slot in enumerate(hidden) if slot in slots - covered_slots]
        if indices:
            values = (f"{hidden[i]} is {task.missing_details[i].options[0]}" for i in indices)
            return UserReply(" , ".join(values), ok=True)
        if not slots:
            return UserReply(NO_SLOT, ok=True)
        return UserReply(REPEATED if slots <= covered_slots else IRRELEVANT, ok=True)

    def judge(self, task: Task, question: str, history: Sequence[Exchange], remaining: tuple[int, ...]) -> Judgement:
        """Return the positions of the remaining slots that occur in the question."""
        del history
        self.counts.add(requests=1)
        slots, hidden = _slots_in(question), _slots_of(task)
        hits = tuple(position for position, index in enumerate(remaining) if hidden[index] in slots)
        return Judgement(hits, related=bool(slots))


def _slots_in(question: str) -> frozenset[str]:
    """Return the slots that occur in the question as separate words."""
    return _SLOTS.intersection(question.split())


def _slots_of(task: Task) -> tuple[str, ...]:
    return tuple(d.description for d in task.missing_details)
