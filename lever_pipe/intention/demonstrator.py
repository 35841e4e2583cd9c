"""Dialogues of an imperfect agent that knows the embedded world: what a policy is shown before it learns by itself.

The demonstrator mostly asks for a slot that is still hidden, and sometimes wastes a question, asks for two slots or
stops early. So the policy that imitates it calls the tool at all, and leaves room to learn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lever_pipe.base.errors import DataError
from lever_pipe.experiment.agent_config import Environment, Simulator, WarmStart
from lever_pipe.intention.codecs.protocol import ChatCodec, ToolCall
from lever_pipe.intention.environment import IntentionEnv
from lever_pipe.intention.lexicon import RELEVANT, inquiry
from lever_pipe.intention.records import Task
from lever_pipe.intention.simulators.protocol import UserSimulator


class Demonstration(NamedTuple):
    """One dialogue."""

    tokens: list[int]
    is_agent: list[bool]
    """Which tokens are the demonstrator's."""
    reward: float
    """Sum over its turns."""


class Demonstrator:
    """Holds demonstrations on tasks of the embedded world."""

    def __init__(
        self,
        codec: ChatCodec,
        simulator: UserSimulator,
        environment: Environment,
        config: WarmStart,
        *,
        max_context: int,
    ) -> None:
        self._codec = codec
        self._simulator = simulator
        self._environment = environment
        self._config = config
        self._max_context = max_context

    def hold(self, task: Task, rng: np.random.Generator) -> Demonstration:
        """Return one dialogue; it ends before what no longer fits the context.

        Raises:
            DataError: a task of another world, or one whose request leaves no room for a turn.
        """
        if task.category not in RELEVANT:
            raise DataError(
                f"task {task.id!r}: expected a category of the embedded world",
                found=repr(task.category),
                do="Name a model folder that can call tools already: other worlds have no demonstrations.",
            )
        env = IntentionEnv(task, self._simulator, self._environment, Simulator(kind="rule"))
        tokens = self._codec.prompt(task)
        is_agent = [False] * len(tokens)
        reward = 0.0
        for turn in range(self._environment.max_turns):
            call = None if rng.random() < self._config.early_stop else self._call(env, rng)
            said = self._codec.closing() if call is None else self._codec.call(call)
            if len(tokens) + len(said) > self._max_context:
                break
            tokens += said
            is_agent += [True] * len(said)
            is_last = turn == self._environment.max_turns - 1
            if call is None or (is_last and not self._environment.execute_last_turn):
                break
            result = env.step(call.choice, call.content)
            reward += result.reward
            told = self._codec.feedback(result.feedback, result.reward if self._environment.show_reward else None)
            if env.done or len(tokens) + len(told) >= self._max_context:
                break
            tokens += told
            is_agent += [False] * len(told)
        if not any(is_agent):
            raise DataError(
                f"task {task.id!r}: expected room for a turn behind the request",
                found=f"{len(tokens)} of intention.model.max_context={self._max_context} tokens taken",
                do="Raise max_context.",
            )
        return Demonstration(tokens, is_agent, reward)

    def _call(self, env: IntentionEnv, rng: np.random.Generator) -> ToolCall:
        relevant = RELEVANT[env.task.category]
        hidden = [env.task.missing_details[i].description for i in env.remaining]
        slots = [_one_of(relevant if rng.random() < self._config.irrelevant else hidden, rng)]
        if rng.random() < self._config.double:
            second = _one_of(relevant, rng)
            slots += [second] if second not in slots else []
        return ToolCall("action", inquiry(*slots))


def _one_of(words: tuple[str, ...] | list[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]
