"""Batched rollouts of dialogues between an agent and a simulated user.

All dialogues of a batch advance together: one batched generation, then one step of all environments. An episode
contains the exact token ids that the model has read and sampled; text is never tokenized again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import torch

from lever_pipe.base.errors import CheckpointError, DataError, TrainingError
from lever_pipe.base.plugins import plugin
from lever_pipe.base.progress import Progress
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.agent_evaluation import EvaluateStartConfig
from lever_pipe.experiment.agent_model import AgentModel
from lever_pipe.experiment.agent_training import TrainAgentConfig
from lever_pipe.experiment.environment import AgentExecution, Environment, Simulator
from lever_pipe.intention.agent.generation import Decoding, DialogueCache, GenerationCounts, Speaker, speak, uniforms
from lever_pipe.intention.agent.policy import Precision, autocast, load_policy
from lever_pipe.intention.codecs.protocol import ChatCodec, ToolCall
from lever_pipe.intention.environment import IntentionEnv, StepResult, load_simulator, step_all
from lever_pipe.intention.records import UNSOUND, EndReason, Task
from lever_pipe.intention.simulators.protocol import UserSimulator

NO_TURN = -1
LET_THE_USER_ANSWER = (
    "Check that the endpoint answers; raise timeout_seconds or retries of intention.execution.connection, or"
    " intention.environment.step_timeout_seconds; the run resumes from its last checkpoint."
)


@dataclass(frozen=True)
class EpisodeRequest:
    """A request for one episode."""

    task: Task
    index: int
    """Index of the task in its split."""
    sample: int
    """Index of the episode among the episodes of the task."""
    stream: tuple[int, *tuple[int | str, ...]]
    """Seed and names of the random stream, the arguments of `seeding.generator`; greedy episodes draw nothing."""


@dataclass
class Episode:
    """One dialogue with T turns."""

    task: Task
    index: int
    sample: int
    ceiling: float
    n_prompt: int = 0
    tokens: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    """Turn of each token that the agent has sampled, an index into `rewards`; -1 for other tokens."""
    rewards: list[float] = field(default_factory=list)
    """[T], with 0 for a closing or unreadable turn."""
    results: list[StepResult | None] = field(default_factory=list)
    """[T], the result of each turn; None for a turn that was not executed."""
    log_probs: list[float] = field(default_factory=list)
    """Log-probability of each sampled token under its policy, at the sampling temperature (greedy: at 1)."""
    coverage: float = 0.0
    end: EndReason = "turns"

    @property
    def is_agent(self) -> list[bool]:
        """Return the mask of the agent's tokens."""
        return [turn != NO_TURN for turn in self.turn]

    @property
    def is_sound(self) -> bool:
        """Return whether the episode ended without a failure or timeout of the simulated user."""
        return self.end not in UNSOUND

    @property
    def n_agent_tokens(self) -> int:
        """Return the number of the agent's tokens."""
        return sum(self.is_agent)


@dataclass
class RolloutCounts(GenerationCounts):
    """Work and failures of a rollout; field names are names of metrics."""

    multi_call_turns: int = 0
    simulator_requests: int = 0
    simulator_failures: int = 0
    """Requests that failed after the last retry."""
    simulator_retries: int = 0
    """Attempts after the first one."""
    simulator_malformed: int = 0
    """Attempts with an unreadable answer."""
    environment_timeouts: int = 0
    """Turns over the time limit, without those with a failed request."""

    def values(self) -> dict[str, float]:
        """Return the counts by name."""
        return {name: float(value) for name, value in asdict(self).items()}


# In the order of the fields of `RolloutCounts`, by which `require_few_failures` unpacks them.
MISHAPS = tuple(name for name in RolloutCounts().values() if name.startswith(("simulator_", "environment_")))


class Rollouts(NamedTuple):
    """Episodes in the order of their requests, with counts and the simulator's seconds."""

    episodes: list[Episode]
    counts: RolloutCounts
    seconds_simulator: float


@dataclass(frozen=True, kw_only=True)
class Host:
    """The simulated user and the rules of the environment, for any agent."""

    simulator: UserSimulator
    environment: Environment
    simulator_config: Simulator
    temperature: float

    counted: ClassVar[tuple[str, ...]] = MISHAPS
    """Counts of the simulator and the environment; an evaluation reports all except `simulator_requests`."""
    ends: ClassVar[tuple[EndReason, ...]] = ()
    """Additional end reasons, which the local policy's episodes cannot have."""

    def require_few_failures(self, counts: Mapping[str, float], *, during: str) -> None:
        """Require that the share of failed requests is within the simulator's failure limit.

        A turn over its time limit counts as a failed request. `during` names the rollout, for example `step 3`.

        Raises:
            TrainingError: too many failures.
        """
        n_requests, n_failures, n_retries, n_malformed, n_timeouts = (int(counts[name]) for name in MISHAPS)
        limit = self.simulator_config.failure_limit
        # Episodes that a failure of the simulator ended do not measure the policy; with too many, a run has no result.
        if n_failures + n_timeouts > limit * n_requests:
            problem = self.simulator.counts.last_error
            raise TrainingError(
                f"{during}: expected at most {limit:.1%} of the simulator's requests to fail or to take too long",
                found=f"{n_failures} of {n_requests} failed after {n_retries} retries, {n_timeouts} turns over time,"
                f" {n_malformed} unreadable answers" + (f"; the last problem: {problem}" if problem else ""),
                do=f"{LET_THE_USER_ANSWER} Or raise intention.simulator.failure_limit.",
            )


@dataclass(frozen=True, kw_only=True)
class Player(Host):
    """Policy, codec and settings with which the episodes of a run are played."""

    policy: Any
    """A causal language model in evaluation mode."""
    codec: ChatCodec
    model: AgentModel
    batch: int
    """Number of dialogues that run together; it affects only rounding errors."""

    def computing(self) -> torch.autocast:
        """Return the autocast context of forward passes."""
        return autocast(self.policy.device, self.model.dtype)

    def play(
        self, requests: Sequence[EpisodeRequest], *, greedy: bool = False, progress: Progress | None = None
    ) -> Rollouts:
        """Return one episode for each request; `progress` advances by one for each finished episode."""
        dialogues = [_opened(self, request) for request in requests]
        _require_context(dialogues, self.model.max_context)
        counts, seconds = RolloutCounts(), 0.0
        before = self.simulator.counts.values()
        with self.computing():
            for start in range(0, len(dialogues), self.batch):
                group = dialogues[start : start + self.batch]
                seconds += _roll_out(self, group, counts, greedy=greedy, progress=progress)
        # The simulator counts from its loading on; this rollout's share is the difference.
        for name, count in self.simulator.counts.values().items():
            setattr(counts, f"simulator_{name}", count - before[name])
        return Rollouts([dialogue.episode for dialogue in dialogues], counts, seconds)

    def utterance(self, episode: Episode, turn_index: int) -> tuple[str, Sequence[ToolCall]]:
        """Return the text of a turn without its calls, and the calls."""
        tokens = [token for token, turn in zip(episode.tokens, episode.turn, strict=True) if turn == turn_index]
        return self.codec.aside(tokens), self.codec.parse(tokens).calls


def load_player(
    folder: Path,
    config: TrainAgentConfig | EvaluateStartConfig,
    execution: AgentExecution,
    device: torch.device,
) -> Player:
    """Return the player of a policy folder; weights to be trained are float32, independent of the computation's type.

    Raises:
        CheckpointError: the folder is not a usable model, or its context is shorter than `max_context`.
    """
    model = config.policy.model
    dtype: Precision
    if isinstance(config, TrainAgentConfig):
        dtype, temperature = "float32", config.grpo.temperature
    else:
        dtype, temperature = model.dtype, config.temperature
    policy = load_policy(folder, dtype, device)
    n_positions = getattr(policy.config, "max_position_embeddings", None)
    if n_positions is not None and model.max_context > n_positions:
        raise CheckpointError(
            f"{folder}: expected a model for episodes of intention.model.max_context={model.max_context} tokens",
            found=f"max_position_embeddings={n_positions} in its config.json",
            do=f"Lower max_context to {n_positions} or less, or take a model with a longer context.",
        )
    return Player(
        policy=policy,
        codec=cast("ChatCodec", plugin("intention/codecs", model.codec).load(folder)),
        simulator=load_simulator(config.simulator, execution),
        model=model,
        environment=config.environment,
        simulator_config=config.simulator,
        temperature=temperature,
        batch=config.evaluation.batch,
    )


@dataclass
class _Dialogue:
    """A running episode."""

    episode: Episode
    env: IntentionEnv
    uniforms: Iterator[float]
    unread: list[int] = field(default_factory=list)
    """Tokens that the model has to process before the agent's next turn."""
    is_running: bool = True

    def append_message(self, tokens: list[int]) -> None:
        """Append tokens for the agent to read."""
        self.episode.tokens += tokens
        self.episode.turn += [NO_TURN] * len(tokens)
        self.unread += tokens

    def finish(self, end: EndReason) -> None:
        """End the episode."""
        self.episode.end = end
        self.episode.coverage = self.env.coverage
        self.is_running = False


def _opened(player: Player, request: EpisodeRequest) -> _Dialogue:
    env = IntentionEnv(request.task, player.simulator, player.environment, player.simulator_config)
    prompt = player.codec.prompt(request.task)
    episode = Episode(request.task, request.index, request.sample, env.ceiling, len(prompt))
    dialogue = _Dialogue(episode, env, uniforms(generator(*request.stream)))
    dialogue.append_message(prompt)
    return dialogue


def _require_context(dialogues: Sequence[_Dialogue], max_context: int) -> None:
    for episode in (dialogue.episode for dialogue in dialogues):
        if episode.n_prompt >= max_context:
            raise DataError(
                f"intention.model.max_context: expected prompts of fewer than {max_context} tokens",
                found=f"{episode.n_prompt} of task {episode.task.id!r}",
                do="Raise max_context, or leave such tasks out.",
            )


def _roll_out(
    player: Player,
    dialogues: Sequence[_Dialogue],
    counts: RolloutCounts,
    *,
    greedy: bool,
    progress: Progress | None,
) -> float:
    """Run dialogues to their ends, turn by turn, and return the seconds of the simulated user."""
    model, n_turns = player.model, player.environment.max_turns
    rows = DialogueCache(player.policy, len(dialogues))
    decoding = Decoding(player.codec.end_ids, player.temperature, greedy)
    running, seconds = list(dialogues), 0.0
    for turn in range(n_turns):
        speakers = [
            Speaker(each.unread, min(model.max_new_tokens, model.max_context - len(each.episode.tokens)), each.uniforms)
            for each in running
        ]
        turns = speak(rows, speakers, decoding, counts)
        for dialogue, sampled in zip(running, turns, strict=True):
            dialogue.episode.tokens += sampled.tokens
            dialogue.episode.turn += [turn] * len(sampled.tokens)
            dialogue.episode.log_probs += sampled.log_probs
            dialogue.unread = sampled.tokens[-1:]  # sampled, but not in the cache yet
        started = time.perf_counter()
        _answer(running, [sampled.tokens for sampled in turns], player, counts, is_last=turn == n_turns - 1)
        seconds += time.perf_counter() - started
        selected = [row for row, dialogue in enumerate(running) if dialogue.is_running]
        if progress is not None:
            progress.update(len(running) - len(selected))
        if not selected:
            break
        rows.keep(selected)
        running = [running[row] for row in selected]
    return seconds


def _answer(
    running: Sequence[_Dialogue], turns: Sequence[list[int]], player: Player, counts: RolloutCounts, *, is_last: bool
) -> None:
    """Execute the calls of this turn, record the results, and append the feedback to dialogues that continue."""
    asking, rules, max_context = [], player.environment, player.model.max_context
    for dialogue, tokens in zip(running, turns, strict=True):
        turn = player.codec.parse(tokens)
        if turn.kind == "call" and (not is_last or rules.execute_last_turn):
            asking.append((dialogue, turn.calls))
            continue
        dialogue.episode.rewards.append(0.0)
        dialogue.episode.results.append(None)
        # A turn without an end token has hit either its own limit or the limit of the context.
        is_full = turn.kind == "length" and len(dialogue.episode.tokens) >= max_context
        dialogue.finish("turns" if turn.kind == "call" else "context" if is_full else turn.kind)
    results = step_all([(dialogue.env, calls) for dialogue, calls in asking])
    for (dialogue, calls), result in zip(asking, results, strict=True):
        counts.multi_call_turns += len(calls) > 1
        # A failed request is already in `simulator_failures`.
        counts.environment_timeouts += result.timed_out and not result.failed
        dialogue.episode.rewards.append(result.reward)
        dialogue.episode.results.append(result)
        end = end_of_turn(result, dialogue.env, is_last=is_last)
        if end is not None:
            dialogue.finish(end)
            continue
        feedback = player.codec.feedback(result.feedback, result.reward if rules.show_reward else None)
        # Strictly less: the agent needs at least one position for its next turn.
        if len(dialogue.episode.tokens) + len(feedback) < max_context:
            dialogue.append_message(feedback)
        else:
            dialogue.finish("context")


def end_of_turn(result: StepResult, env: IntentionEnv, *, is_last: bool) -> EndReason | None:
    """Return the end reason of the episode after an executed turn, or None if it continues."""
    if result.failed:
        return "failed"
    if result.timed_out:
        return "timeout"
    if not env.remaining:
        return "complete"
    return "turns" if result.done or is_last else None
