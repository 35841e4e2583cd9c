"""Evaluation of agents."""

from __future__ import annotations

from operator import not_
from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.sections import Distinct, Section, Seed
from lever_pipe.experiment.agent_model import CODEC, PolicyConfig
from lever_pipe.experiment.environment import SIMULATOR, Environment, Simulator

EvaluationMode = Literal["greedy", "sampled"]
Temperature = Annotated[float, Field(ge=0.01, le=10)]


class PrimaryEndpoint(Section):
    """The quantity that compares the arms, fixed before any run: one number per decoding."""

    metric: Literal["reward", "normalised_reward"] = "normalised_reward"
    modes: Distinct[EvaluationMode] = Field(("sampled", "greedy"), min_length=1)
    """Each decoding has a separate family of tests; the first is shown where there is space for one."""
    split: Literal["val", "test"] = "test"
    checkpoint: Literal["last", "best"] = "last"


class AgentEvaluation(Section):
    """Evaluation of policies during and after training."""

    every: int = Field(5, ge=1)
    """Steps between evaluations; step 0 and the last step are always evaluated."""
    samples: int = Field(4, ge=1, le=256)
    """Sampled episodes per task, at the training temperature; the greedy curve has one."""
    test_samples: int = Field(4, ge=1, le=256)
    """The same on held-out tasks."""
    temperatures: Distinct[Temperature] = Field((), exclude_if=not_)
    """Further sampling temperatures for held-out tasks, each a decoding `sampled_at_TEMPERATURE`."""
    batch: int = Field(200, ge=1)
    """Episodes rolled out together on one device, in training as in evaluation; changes no number beyond rounding."""
    seed: Seed = 0
    """Seed of the evaluation's draws and of the resamples for intervals."""
    primary: PrimaryEndpoint = PrimaryEndpoint()

    @property
    def by_temperature(self) -> dict[str, float]:
        """Return the further temperatures by the names of their decodings."""
        return {f"sampled_at_{temperature:g}": temperature for temperature in self.temperatures}


class AgentRun(Section):
    """The run of a set of files."""

    arm: str
    seed: Seed


class EvaluateStartConfig(Section):
    PLUGINS = (SIMULATOR, CODEC)
    temperature: float
    policy: PolicyConfig
    environment: Environment
    simulator: Simulator
    evaluation: AgentEvaluation


class EvaluateAgentConfig(EvaluateStartConfig, AgentRun):
    """Identity of `evaluate_agent`: a finished run on held-out tasks."""
