"""Supervised start of the agent."""

from __future__ import annotations

from pydantic import Field

from lever_pipe.base.sections import Section, Seed
from lever_pipe.experiment.agent_model import CODEC, PolicyConfig
from lever_pipe.experiment.environment import Environment


class WarmStart(Section):
    """Supervised fine-tuning on demonstrations, so that GRPO starts from a policy that can call the tool."""

    steps: int = Field(400, ge=1)
    batch: int = Field(32, ge=1)
    learning_rate: float = Field(2e-3, gt=0, le=1)
    warmup_steps: int = Field(20, ge=0)
    weight_decay: float = Field(0.01, ge=0, le=1)
    seed: Seed = 0
    irrelevant: float = Field(0.2, ge=0, le=1)
    """Chance that the demonstrator asks for any slot of the category instead of a remaining one."""
    double: float = Field(0.3, ge=0, le=1)
    """Chance that the demonstrator adds a second slot."""
    early_stop: float = Field(0.1, ge=0, le=1)
    """Chance before each turn that the demonstrator stops."""
    folder_micro_batch: int | None = Field(None, ge=1, exclude_if=lambda value: value is None)
    """Dialogues of a backward pass when warming up a model folder; None uses the folder without a warm start."""


class WarmStartAgentConfig(Section):
    PLUGINS = (CODEC,)
    policy: PolicyConfig
    warm_start: WarmStart
    environment: Environment
