"""The environment: an agent asks a user, who posted a vague request, what the request leaves open.

Protocol and reward follow IntentionGym of UserRL; its known defects are switches of `Simulator`, off by default. One
environment is one episode at a time; it draws no random number and reads no clock unless its user is remote.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

from lever_pipe.base.chat import at_once
from lever_pipe.base.parsing import parse_model
from lever_pipe.base.plugins import plugin
from lever_pipe.experiment.agent_config import AgentExecution, Environment, Simulator
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.intention.codecs.protocol import ToolCall
from lever_pipe.intention.records import Task
from lever_pipe.intention.simulators.protocol import Exchange, UserSimulator

_PLAIN = ("action", "answer")
"""Choices of the tool that a question does not show; it shows others, as published."""
_DIGITS = 9
"""Rewards are rounded to as many, so that a multiple of 0.1 is the float that prints so."""


class StepResult(NamedTuple):
    """What one call of the tool, or one turn of the agent with all its calls, led to."""

    feedback: str
    reward: float
    done: bool
    covered: tuple[int, ...] = ()
    """Indices into `task.missing_details` that were uncovered."""
    failed: bool = False
    """The user or the judge gave up; the episode ends, its reward is 0 and means nothing."""
    timed_out: bool = False
    """The call took longer than a turn may; the episode ends with reward 0."""


def execution_of(runtime: Runtime) -> AgentExecution:
    """Return how the stages of this study run."""
    return parse_model(AgentExecution, json.loads(runtime.agent or "{}"), source="--agent")


def load_simulator(config: Simulator, execution: AgentExecution) -> UserSimulator:
    """Return the simulated user that the configuration names."""
    return cast("UserSimulator", plugin("intention/simulators", config.kind).load(config, execution))


def turn_reward(importances: Sequence[int], config: Environment) -> float:
    """Return the reward of a question that uncovers details of these importances (1 to 3).

    The most important detail pays; each further one costs, so that asking for everything at once does not. The
    published "sum over turns" of an episode is the sum of these.
    """
    pay = 0.0
    if importances:
        table = config.importance_reward
        most = (table.low, table.medium, table.high)[max(importances) - 1]
        pay = most - config.multi_detail_penalty * (len(importances) - 1)
    reward = config.reward_scale * max(0.0, pay) - config.step_penalty
    if config.normalise_rewards:
        reward = min(1.0, max(0.0, reward))
    return round(reward, _DIGITS)


def ceiling(task: Task, config: Environment) -> float:
    """Return what an episode would give that asks for one detail a question, before any step penalty."""
    free = config.model_copy(update={"step_penalty": 0.0})
    return round(sum(turn_reward([d.importance], free) for d in task.missing_details), _DIGITS)


class IntentionEnv:
    """One episode of a task with its user."""

    def __init__(
        self,
        task: Task,
        simulator: UserSimulator,
        config: Environment,
        simulator_config: Simulator,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task = task
        self.simulator = simulator
        self.simulator_config = simulator_config
        self.ceiling = ceiling(task, config)
        self.remaining = tuple(range(len(task.missing_details)))
        """Indices of the details that are still hidden."""
        self.done = False
        """Whether the episode has ended."""
        self._config = config
        self._clock = clock if simulator.is_remote else (lambda: 0.0)
        self._history: list[Exchange] = []
        self._covered: list[int] = []
        self._steps = 0

    @property
    def coverage(self) -> float:
        """Return the share of hidden details uncovered so far."""
        return len(self._covered) / len(self.task.missing_details)

    def step(self, choice: str, content: str) -> StepResult:
        """Put one call of the tool to the user."""
        self._steps += 1
        question = content.strip() if choice in _PLAIN else f"[{choice}] {content}".strip()
        started = self._clock()
        reply = self.simulator.reply(self.task, question, self._history, self._covered)
        judgement, trouble = None, self._trouble(started, ok=reply.ok)
        if not any(trouble):
            judgement = self.simulator.judge(self.task, question, self._history, self.remaining)
            trouble = self._trouble(started, ok=judgement.ok)
        if judgement is None or any(trouble):
            self.done = True
            return StepResult(reply.text, 0.0, True, (), *trouble)
        hits = self._hits(judgement.indices if judgement.related else ())
        reward = turn_reward([self.task.missing_details[i].importance for i in hits], self._config)
        covered = tuple(dict.fromkeys(hits))
        self._covered += covered
        self.remaining = tuple(i for i in self.remaining if i not in covered)
        self._history.append(Exchange(question, reply.text))
        self.done = not self.remaining or self._steps >= self._config.max_turns
        return StepResult(reply.text, reward, self.done, covered)

    def _hits(self, positions: Iterable[int]) -> list[int]:
        """Return the indices of the details that the judge names, repeated ones only where they count."""
        inside = [p for p in positions if 0 <= p < len(self.remaining)]
        if not self.simulator_config.count_duplicates:
            inside = list(dict.fromkeys(inside))
        return [self.remaining[p] for p in inside]

    def _trouble(self, started: float, *, ok: bool) -> tuple[bool, bool]:
        """Return whether the user gave up, and whether the call takes longer than a turn may."""
        failed = not ok and not self.simulator_config.silent_failures
        return failed, self._clock() - started > self._config.step_timeout_seconds


def step_all(turns: Sequence[tuple[IntentionEnv, Sequence[ToolCall]]]) -> list[StepResult]:
    """Execute one turn of many environments at once and return the results in their order.

    Calls of one turn are executed in order and their rewards summed (or the last one kept, with `last_call_only`). A
    turn that ends the episode drops its further calls. Each environment has at least one call.
    """
    workers = max((env.simulator.concurrency for env, _ in turns), default=1)
    return list(at_once(workers, lambda turn: _take_turn(*turn), turns))


def _take_turn(env: IntentionEnv, calls: Sequence[ToolCall]) -> StepResult:
    results: list[StepResult] = []
    for call in calls:
        results.append(env.step(call.choice, call.content))
        if env.done:
            break
    rewarded = results[-1:] if env.simulator_config.last_call_only else results
    return results[-1]._replace(
        feedback="\n".join(result.feedback for result in results),
        reward=round(sum(result.reward for result in rewarded), _DIGITS),
        covered=tuple(index for result in results for index in result.covered),
    )
