"""Agents on a server, next to the trained ones."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lever_pipe.base.sections import ArmName, Distinct, Section
from lever_pipe.experiment.agent_evaluation import AgentEvaluation, EvaluationMode
from lever_pipe.experiment.environment import SIMULATOR, Environment, Simulator


class ServedAgent(Section):
    """An agent on an OpenAI-compatible server that plays the held-out tasks, as a row next to the arms."""

    name: ArmName
    model: str = Field(min_length=1)
    """The model's name at the server."""
    modes: Distinct[EvaluationMode] = Field(("greedy", "sampled"), min_length=1)
    """Evaluated decodings: once at temperature 0, and as often as the arms at the temperature of `grpo`."""
    max_tokens: int = Field(2048, ge=1, le=100_000)
    """Of one turn (source: UserRL's evaluation)."""
    temperature: Literal["as_arms"] | None = Field("as_arms", exclude_if=lambda value: value == "as_arms")
    """null omits it from requests in both decodings: some models accept only their own."""


class EvaluateServedConfig(Section):
    PLUGINS = (SIMULATOR,)
    agent: ServedAgent
    temperature: float
    environment: Environment
    simulator: Simulator
    evaluation: AgentEvaluation
