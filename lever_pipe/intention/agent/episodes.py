"""What a rollout is asked for and what it gives: dialogues between agent and simulated user, token by token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from lever_pipe.intention.records import EndReason, Task

NO_TURN = -1
ASKED = ("requests", "failures", "retries", "malformed")
"""What is counted of the simulated user, in `RolloutCounts` as in its own counts."""


@dataclass(frozen=True)
class Request:
    """An episode to be rolled out."""

    task: Task
    index: int
    """The task's place among its split's tasks."""
    sample: int
    """Which of the task's episodes this is."""
    stream: tuple[int, *tuple[int | str, ...]]
    """Seed and names of its draws, as `seeding.generator(*stream)` takes them; greedy episodes draw nothing."""


class RolloutSettings(NamedTuple):
    """How episodes are rolled out."""

    max_turns: int
    execute_last_turn: bool
    max_new_tokens: int
    """Of one turn."""
    max_context: int
    """Tokens of one episode."""
    temperature: float
    greedy: bool
    show_reward: bool
    batch: int
    """Dialogues that run together; moves rounding errors only."""


@dataclass
class Episode:
    """One dialogue with T turns."""

    task: Task
    index: int
    sample: int
    tokens: list[int]
    is_agent: list[bool]
    """Which tokens the agent has sampled."""
    turn: list[int]
    """Of each sampled token, from 0, as `rewards` counts them; -1 elsewhere."""
    n_prompt: int
    ceiling: float
    rewards: list[float] = field(default_factory=list)
    """[T], a closing or unreadable turn included with 0."""
    log_probs: list[float] = field(default_factory=list)
    """Of each sampled token under the policy that sampled it, at the sampling temperature (greedy: at 1)."""
    coverage: float = 0.0
    end: EndReason = "turns"


@dataclass
class RolloutCounts:
    """Work and mishaps of a rollout."""

    forwards: int = 0
    prefill_tokens: int = 0
    """Tokens of prompts, feedback and ends of turns, of each dialogue: also where equal prompts are read once."""
    decode_tokens: int = 0
    """Sampled tokens that were read one by one."""
    requests: int = 0
    """To the simulated user."""
    failures: int = 0
    """Of them, after the last retry."""
    retries: int = 0
    """Further attempts."""
    malformed: int = 0
    """Attempts that were answered with something unreadable."""
    multi_call_turns: int = 0
    timeouts: int = 0
    """Turns that took too long, without those whose request failed."""
    seconds_simulator: float = 0.0


class Rollouts(NamedTuple):
    """Episodes in the order of their requests, and what they took."""

    episodes: list[Episode]
    counts: RolloutCounts
