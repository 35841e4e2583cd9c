"""Who plays the episodes of a run: a policy with its dialogue format, its user and where it computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from lever_pipe.base.errors import CheckpointError, ConfigError
from lever_pipe.base.parsing import load_member, parse_model
from lever_pipe.experiment.agent_config import AgentExecution
from lever_pipe.experiment.agent_stage_configs import EvaluateStartConfig, TrainAgentConfig
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.intention.agent.arithmetic import Arithmetic, Precision
from lever_pipe.intention.agent.policy import load_policy
from lever_pipe.intention.agent.rollout import Player
from lever_pipe.intention.codecs.protocol import ChatCodec
from lever_pipe.intention.environment import load_simulator

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def execution_of(runtime: Runtime) -> AgentExecution:
    """Return how the stages of this study run.

    Raises:
        ConfigError: the text is no JSON of such settings.
    """
    try:
        values = json.loads(runtime.agent or "{}")
    except json.JSONDecodeError as fault:
        raise ConfigError("--agent: expected JSON", found=str(fault), do="Quote it for the shell.") from None
    return parse_model(AgentExecution, values, source="--agent")


def load_model(folder: Path, device: torch.device, dtype: Precision) -> PreTrainedModel:
    """Return the causal language model of a folder where it computes.

    Args:
        folder: of the policy.
        device: on which it computes.
        dtype: of the stored weights: float32 for those that are trained, whatever they compute in.

    Raises:
        CheckpointError: no readable model.
    """
    model = load_policy(folder, dtype)
    model.to(device)
    return model


def load_player(
    folder: Path,
    config: TrainAgentConfig | EvaluateStartConfig,
    execution: AgentExecution,
    arithmetic: Arithmetic,
    *,
    temperature: float,
    dtype: Precision,
) -> Player:
    """Return the player of a policy folder.

    Raises:
        CheckpointError: no readable model or dialogue format, or a model for shorter episodes.
        SimulatorError: the user cannot be asked as configured.
        UnknownMemberError: no codec or simulator of the configured name.
    """
    model = config.policy.model
    policy = load_model(folder, arithmetic.device, dtype)
    _require_positions(folder, policy, model.max_context)
    return Player(
        policy=policy,
        codec=cast("ChatCodec", load_member("intention/codecs", model.codec).load(folder)),
        simulator=load_simulator(config.simulator, execution),
        arithmetic=arithmetic,
        model=model,
        environment=config.environment,
        simulator_config=config.simulator,
        temperature=temperature,
        batch=config.evaluation.batch,
    )


def _require_positions(folder: Path, policy: Any, max_context: int) -> None:
    n_positions = getattr(policy.config, "max_position_embeddings", None)
    if n_positions is not None and max_context > n_positions:
        raise CheckpointError(
            f"{folder}: expected a model for episodes of intention.model.max_context={max_context} tokens",
            found=f"max_position_embeddings={n_positions} in its config.json",
            do=f"Lower max_context to {n_positions} or less, or take a model with a longer context.",
        )
