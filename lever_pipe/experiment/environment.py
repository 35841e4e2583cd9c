"""The environment of the agent and its simulated user."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lever_pipe.base.chat import Connection
from lever_pipe.base.plugins import plugin_of
from lever_pipe.base.sections import ArmName, Section


class Endpoint(Section):
    """The model behind an OpenAI-compatible server that plays the user and the judge."""

    model: str = "Qwen3-32B"
    temperature: float | None = Field(0.0, ge=0, le=2)
    """null omits it from requests: some models accept only their own."""
    max_tokens: int = Field(2048, ge=1, le=100_000)


class AgentExecution(Section):
    """Execution of this study's stages; changes no number and never enters `spec`."""

    connection: Connection = Connection()
    served: dict[ArmName, Connection] = Field({})
    """Connections of served agents by name; an agent without an entry uses the simulated user's."""
    checkpoint_every: int = Field(5, ge=1)
    """Steps between resumable checkpoints."""


class Simulator(Section):
    """The simulated user: answers the agent's questions and judges the details that they uncover."""

    kind: Annotated[str, plugin_of("intention/simulators")] = "openai"
    """A plugin of `lever_pipe/intention/simulators`: `rule` or `openai`."""
    endpoint: Endpoint = Endpoint()
    leak_details: bool = False
    """Published bug: the reply prompt contains the hidden details."""
    silent_failures: bool = False
    """Published bug: a failed judgment silently counts as no detail covered. Such a run still stops above
    `failure_limit`; raise the limit to 1 for parity with the original."""
    count_duplicates: bool = False
    """Published bug: a detail that the judge names twice counts twice."""
    last_call_only: bool = False
    """Published bug: with several calls in one turn, only the last reward counts."""
    failure_limit: float = Field(0.05, ge=0, le=1)
    """Largest share of failed requests in a step or evaluation; above it the stage stops. Counts requests to the
    simulator or to a served agent."""


class ImportanceReward(Section):
    """Reward for uncovering one detail, by its importance."""

    low: float = Field(0.4, gt=0, le=10)
    medium: float = Field(0.7, gt=0, le=10)
    high: float = Field(1.0, gt=0, le=10)


class Environment(Section):
    """IntentionGym's reward and protocol (source: UserRL)."""

    max_turns: int = Field(16, ge=1, le=256)
    """Agent turns of an episode. The last turn is generated; its call is executed only with `execute_last_turn`."""
    execute_last_turn: bool = False
    """False as published: the last turn's call is never executed."""
    importance_reward: ImportanceReward = ImportanceReward()
    multi_detail_penalty: float = Field(0.2, ge=-10, le=10)
    """Penalty for each further detail that one question uncovers; a negative value rewards them."""
    step_penalty: float = Field(0.0, ge=0, le=10)
    reward_scale: float = Field(1.0, gt=0, le=100)
    normalise_rewards: bool = True
    """Limit a turn's reward to [0, 1]."""
    show_reward: bool = True
    """Show the agent each turn's reward, as published."""
    step_timeout_seconds: float = Field(30.0, gt=0, le=3600)
    """A longer turn ends its episode. Such episodes are counted, but excluded from learning and averages."""


SIMULATOR = "intention.simulators.{simulator.kind}"
