"""The environment: an agent asks a simulated user about the details missing from a vague request.

Protocol and reward follow IntentionGym of UserRL; its published bugs are switches of `Simulator`, off by default. An
environment runs one episode. It draws no random numbers, and reads the clock only if its user is remote.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

from lever_pipe.base.chat import at_once
from lever_pipe.base.parsing import parse_model
from lever_pipe.base.plugins import plugin
from lever_pipe.experiment.environment import AgentExecution, Environment, Simulator
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.intention.codecs.protocol import ToolCall
from lever_pipe.intention.records import Task
from lever_pipe.intention.simulators.protocol import Exchange, UserSimulator

_PLAIN = ("action", "answer")
"""Choices of the tool that are not added to the question; others are, as published."""
_DIGITS = 9
"""Rewards are rounded to this many decimals, so that a sum such as 0.1 + 0.2 is exactly 0.3."""


class StepResult(NamedTuple):
    """The result of one call of the tool, or of one turn of the agent with all its calls."""

    feedback: str
    reward: float
    done: bool
    covered: tuple[int, ...] = ()
    """Indices into `task.missing_details` of the details that this call or turn revealed."""
    failed: bool = False
    """Whether the user or the judge gave no result; the episode ends, and the reward does not score the question."""
    timed_out: bool = False
    """Whether a call exceeded `step_timeout_seconds`; that call has reward 0, and the episode ends."""


def execution_of(runtime: Runtime) -> AgentExecution:
    """Return the execution settings of this study's stages."""
    return parse_model(AgentExecution, json.loads(runtime.agent or "{}"), source="--agent")


def load_simulator(config: Simulator, execution: AgentExecution) -> UserSimulator:
    """Return the simulated user of the configured kind."""
    return cast("UserSimulator", plugin("intention/simulators", config.kind).load(config, execution))


def turn_reward(importances: Sequence[int], config: Environment) -> float:
    """Return the reward of a question that uncovers details of these importances (1 to 3).

    The most important detail sets the reward, and each further detail reduces it, so that a question about everything
    does not pay. The published "sum over turns" of an episode is the sum of these rewards.
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
    """Return the sum of rewards for one question per detail, without the step penalty."""
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
        # A local user answers at once: without a clock, a slow machine cannot time out and results are reproducible.
        self._clock = clock if simulator.is_remote else (lambda: 0.0)
        self._history: list[Exchange] = []
        self._covered: list[int] = []
        self._steps = 0

    @property
    def coverage(self) -> float:
        """Return the share of hidden details uncovered so far."""
        return len(self._covered) / len(self.task.missing_details)

    def step(self, choice: str, content: str) -> StepResult:
        """Pass one call of the tool to the user and return the result."""
        self._steps += 1
        question = content.strip() if choice in _PLAIN else f"[{choice}] {content}".strip()
        started = self._clock()
        reply = self.simulator.reply(self.task, question, self._history, self._covered)
        judgement, trouble = None, self._trouble(started, ok=reply.ok)
        if not any(trouble):  # no request to the judge for a turn that already failed
            judgement = self.simulator.judge(self.task, question, self._history, self.remaining)
            trouble = self._trouble(started, ok=judgement.ok)
        if judgement is None or any(trouble):
            self.done = True
            return StepResult(reply.text, 0.0, True, (), *trouble)
        hits = self._hits(judgement.indices if judgement.related else ())
        reward = turn_reward([self.task.missing_details[i].importance for i in hits], self._config)
        # Duplicates may count for the reward (`count_duplicates`), but never for the coverage.
        covered = tuple(dict.fromkeys(hits))
        self._covered += covered
        self.remaining = tuple(i for i in self.remaining if i not in covered)
        self._history.append(Exchange(question, reply.text))
        self.done = not self.remaining or self._steps >= self._config.max_turns
        return StepResult(reply.text, reward, self.done, covered)

    def _hits(self, positions: Iterable[int]) -> list[int]:
        """Return the indices of the details in a judgement, with duplicates only if the configuration counts them."""
        inside = [p for p in positions if 0 <= p < len(self.remaining)]
        if not self.simulator_config.count_duplicates:
            inside = list(dict.fromkeys(inside))
        return [self.remaining[p] for p in inside]

    def _trouble(self, started: float, *, ok: bool) -> tuple[bool, bool]:
        """Return `failed` and `timed_out` of the call; with `silent_failures` a failure does not count."""
        failed = not ok and not self.simulator_config.silent_failures
        return failed, self._clock() - started > self._config.step_timeout_seconds


def step_all(turns: Sequence[tuple[IntentionEnv, Sequence[ToolCall]]]) -> list[StepResult]:
    """Execute one turn of many environments concurrently and return the results in the given order.

    Calls of one turn are executed in order and their rewards summed; with `last_call_only`, only the last reward
    counts. After the end of an episode, further calls of its turn are ignored. Each environment has at least one call.
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
