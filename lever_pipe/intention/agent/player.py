"""Who plays the episodes of a run: a policy with its dialogue format, its user and its share of the work."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lever_pipe.base.errors import CheckpointError, ConfigError, TrainingError
from lever_pipe.base.parsing import parse_model
from lever_pipe.base.progress import Progress
from lever_pipe.experiment.agent_config import AgentExecution, AgentModel, Environment, Simulator
from lever_pipe.experiment.agent_stage_configs import EvaluateAgentConfig, TrainAgentConfig
from lever_pipe.experiment.stage_configs import Runtime
from lever_pipe.intention.agent.episodes import Request, RolloutCounts, Rollouts, RolloutSettings
from lever_pipe.intention.agent.measures import MISHAPS
from lever_pipe.intention.agent.policy import load_policy
from lever_pipe.intention.agent.processes import Precision, Processes
from lever_pipe.intention.agent.rollout import rollout
from lever_pipe.intention.codecs.protocol import ChatCodec
from lever_pipe.intention.environment import load_simulator
from lever_pipe.intention.members import load_member
from lever_pipe.intention.simulators.protocol import UserSimulator

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Player:
    """All that an episode needs beside its task."""

    policy: Any
    codec: ChatCodec
    simulator: UserSimulator
    processes: Processes
    model: AgentModel
    environment: Environment
    simulator_config: Simulator
    temperature: float
    batch: int
    """Episodes rolled out together."""

    def play(self, requests: Sequence[Request], *, greedy: bool = False, progress: Progress | None = None) -> Rollouts:
        """Return one episode for each request of this process; every process must call it, with or without requests.

        Raises:
            DataError: a prompt that leaves no room for the agent.
            SimulatorError: the user cannot be asked as configured.
        """
        settings = RolloutSettings(
            max_turns=self.environment.max_turns,
            execute_last_turn=self.environment.execute_last_turn,
            max_new_tokens=self.model.max_new_tokens,
            max_context=self.model.max_context,
            temperature=self.temperature,
            greedy=greedy,
            show_reward=self.environment.show_reward,
            batch=self.batch,
        )
        with self.processes.whole(self.policy), self.processes.computing():
            if not requests:
                return Rollouts([], RolloutCounts())
            return rollout(
                self.policy,
                self.codec,
                requests,
                self.simulator,
                self.environment,
                self.simulator_config,
                settings,
                progress=progress,
            )

    def require_few_failures(self, counts: Mapping[str, float], *, during: str) -> None:
        """Stop a run whose simulated user fails too often: an episode that it ended says nothing about the policy.

        Args:
            counts: `measures.MISHAPS` of all processes; a turn out of time counts as a failed request.
            during: what was rolled out, as `step 3`.

        Raises:
            TrainingError: the share of failures and time-outs is above `simulator.failure_limit`.
        """
        n_requests, n_failures, n_retries, n_malformed, n_timeouts = (int(counts[name]) for name in MISHAPS)
        limit = self.simulator_config.failure_limit
        if n_failures + n_timeouts > limit * n_requests:
            fault = self.simulator.counts.last_fault
            raise TrainingError(
                f"{during}: expected at most {limit:.1%} of the simulator's requests to fail or to take too long",
                found=f"{n_failures} of {n_requests} failed after {n_retries} retries, {n_timeouts} turns out of time,"
                f" {n_malformed} unreadable answers" + (f"; the last fault: {fault}" if fault else ""),
                do="See that the endpoint answers; raise timeout_seconds or retries of intention.execution.connection,"
                " or intention.environment.step_timeout_seconds;"
                " the run goes on from its last checkpoint. Or raise intention.simulator.failure_limit.",
            )


def execution_of(runtime: Runtime) -> AgentExecution:
    """Return how the stages of this study run.

    Raises:
        ConfigError: the text is no JSON of such settings.
    """
    text = runtime.agent or "{}"
    try:
        values = json.loads(text)
    except json.JSONDecodeError as fault:
        raise ConfigError("--agent: expected JSON", found=str(fault), do="Quote it for the shell.") from None
    return parse_model(AgentExecution, values, source="--agent")


def with_cassette(settings: AgentExecution, simulator: Simulator, cassette: tuple[Path, ...]) -> AgentExecution:
    """Return the settings with the file that a replaying simulator reads: what it holds moves numbers.

    Args:
        settings: how the stage runs.
        simulator: who answers.
        cassette: the stage's input, whose content belongs to the run's identity; empty unless replayed.

    Raises:
        ConfigError: a replaying simulator without this input, or another one with it.
    """
    n_wanted = int(simulator.kind == "replay")
    if len(cassette) != n_wanted:
        raise ConfigError(
            f"the input `cassette`: expected {n_wanted} files with simulator.kind {simulator.kind!r}",
            found=str(len(cassette)),
            do="Pass the recorded replies as this input, with `replay` only.",
        )
    return settings.model_copy(update={"cassette": str(cassette[0])}) if cassette else settings


def load_model(folder: Path, processes: Processes, dtype: Precision) -> PreTrainedModel:
    """Return the causal language model of a folder where it computes.

    Args:
        folder: of the policy.
        processes: that share it.
        dtype: of the stored weights: float32 for those that are trained, whatever they compute in.

    Raises:
        CheckpointError: no readable model.
    """
    model = load_policy(folder, dtype, "cpu")
    processes.place(model)
    return model


def load_player(
    folder: Path,
    config: TrainAgentConfig | EvaluateAgentConfig,
    execution: AgentExecution,
    processes: Processes,
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
    policy = load_model(folder, processes, dtype)
    _require_positions(folder, policy, model.max_context)
    return Player(
        policy=policy,
        codec=cast("ChatCodec", load_member("codecs", model.codec).load(folder)),
        simulator=load_simulator(config.simulator, execution),
        processes=processes,
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
