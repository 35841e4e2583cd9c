"""An agent behind an OpenAI-compatible server, which reads and writes messages where a policy of ours has tokens.

It is asked turn by turn for a chat completion with the one tool, and what it said goes back to it with the tool's
message. What a turn leads to and what ends an episode is decided as for the arms: every call is executed, rewards are
shown if the environment shows them, a turn that cannot be read is the agent's own end. Where the server gives no
answer, its episode is lost and counted. Source: UserRL (published code), `eval/eval.py`, which executes the first call
alone, shows no rewards, and takes an episode whose request failed for one that earned no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lever_pipe.base.chat import Chat, UnreadableError, at_once, find_access
from lever_pipe.base.errors import TrainingError
from lever_pipe.base.progress import Progress
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.agent_config import AgentExecution, ServedAgent
from lever_pipe.experiment.agent_stage_configs import EvaluateServedConfig
from lever_pipe.intention.agent.rollout import (
    MISHAPS,
    Episode,
    EpisodeRequest,
    Host,
    RolloutCounts,
    Rollouts,
    end_of_turn,
)
from lever_pipe.intention.codecs.hf import TOOL, aside_of, json_in, opening, tool_message, turn_in, turn_of
from lever_pipe.intention.codecs.protocol import AgentTurn, ToolCall
from lever_pipe.intention.environment import IntentionEnv, load_simulator, step_all
from lever_pipe.intention.records import EndReason

ABOVE = "(answered with the last call)"
"""What earlier calls of a turn are answered with: each needs an answer of its own."""
LARGEST_SEED = 2**31 - 1
NO_MESSAGE = "a message that is not made of text and tool calls"


class Reply(NamedTuple):
    """One turn of a served agent."""

    turn: AgentTurn
    message: dict[str, Any]
    """As it goes back to the agent."""
    prompt_tokens: int
    completion_tokens: int
    """As the server counts; 0 where it does not."""


@dataclass
class ServedEpisode(Episode):
    """A dialogue of messages."""

    replies: list[Reply] = field(default_factory=list)
    """[T], what the agent said in each turn."""

    @property
    def n_agent_tokens(self) -> int:
        """Return the tokens of all turns, thoughts included, as the server counts."""
        return sum(reply.completion_tokens for reply in self.replies)


@dataclass
class ServedCounts(RolloutCounts):
    """Work and mishaps of a rollout, with what the agent has cost; names as of the simulator's."""

    agent_requests: int = 0
    agent_failures: int = 0
    agent_retries: int = 0
    agent_malformed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


REQUESTS = ("agent_requests", "agent_failures", "agent_retries", "agent_malformed")
TOKENS = ("prompt_tokens", "completion_tokens")


@dataclass(frozen=True, kw_only=True)
class ServedPlayer(Host):
    """Who plays the episodes of a served agent."""

    agent: ServedAgent
    chat: Chat

    counted = (*MISHAPS, *REQUESTS, *TOKENS)

    def play(
        self, requests: Sequence[EpisodeRequest], *, greedy: bool = False, progress: Progress | None = None
    ) -> Rollouts:
        """As `Player`; a sampled episode is asked for with a seed of its own, of its stream."""
        before, episodes, workers = self._counted(), [], self.chat.concurrency
        if self.simulator.is_remote:
            workers = min(workers, self.simulator.concurrency)
        for episode in at_once(workers, lambda request: self._play(request, greedy=greedy), requests):
            episodes.append(episode)
            if progress is not None:
                progress.update()
        replies = [reply for episode in episodes for reply in episode.replies]
        results = [result for episode in episodes for result in episode.results if result is not None]
        counts = ServedCounts(
            **{name: count - before[name] for name, count in self._counted().items()},
            multi_call_turns=sum(len(reply.turn.calls) > 1 for reply in replies),
            environment_timeouts=sum(result.timed_out and not result.failed for result in results),
            **{name: sum(getattr(reply, name) for reply in replies) for name in TOKENS},
        )
        return Rollouts([*episodes], counts, 0.0)

    def _counted(self) -> dict[str, int]:
        counters = {"simulator": self.simulator.counts, "agent": self.chat.counts}
        return {f"{who}_{name}": count for who, counts in counters.items() for name, count in counts.values().items()}

    def utterance(self, episode: Any, place: int) -> tuple[str, Sequence[ToolCall]]:
        """As `Player`."""
        turn, message, *_ = episode.replies[place]
        has_calls, is_read = "tool_calls" in message, turn.kind == "call"
        unread = json.dumps(message["tool_calls"], sort_keys=True) if has_calls and not is_read else ""
        return aside_of(message["content"], is_read=is_read and not has_calls) + unread, turn.calls

    def require_few_failures(self, counts: Mapping[str, float], *, during: str) -> None:
        """Stop an evaluation whose user or whose agent gives no answer too often, by the same limit."""
        super().require_few_failures(counts, during=during)
        n_requests, n_failures, n_retries, n_malformed = (int(counts[name]) for name in REQUESTS)
        limit = self.simulator_config.failure_limit
        if n_failures > limit * n_requests:
            raise TrainingError(
                f"{during}: expected at most {limit:.1%} of the requests to served agent {self.agent.name!r} to fail",
                found=f"{n_failures} of {n_requests} failed after {n_retries} retries, {n_malformed} unreadable"
                f" answers; the last fault: {self.chat.counts.last_fault}",
                do="See that its server answers and knows tools; raise timeout_seconds or retries of its connection in"
                " intention.execution. Or raise intention.simulator.failure_limit.",
            )

    def _play(self, request: EpisodeRequest, *, greedy: bool) -> ServedEpisode:
        rules, agent = self.environment, self.agent
        env = IntentionEnv(request.task, self.simulator, rules, self.simulator_config)
        episode = ServedEpisode(request.task, request.index, request.sample, env.ceiling)
        fixed = agent.model_dump(include={"model", "max_tokens"}) | {"tool_choice": "auto", "tools": [TOOL]}
        draw = {"temperature": self.temperature, "seed": int(generator(*request.stream).integers(LARGEST_SEED))}
        settings = fixed | ({"temperature": 0.0} if greedy else draw)
        messages: list[dict[str, Any]] = [*opening(request.task)]
        end: EndReason | None = None
        while end is None:
            is_last = len(episode.replies) == rules.max_turns - 1
            reply = self.chat.answer({**settings, "messages": messages}, reply_in)
            if reply is None:
                end = "failed"
                break
            turn = reply.turn
            is_executed = turn.kind == "call" and (not is_last or rules.execute_last_turn)
            result = step_all([(env, turn.calls)])[0] if is_executed else None
            episode.replies.append(reply)
            episode.results.append(result)
            episode.rewards.append(0.0 if result is None else result.reward)
            if result is None:
                end = "turns" if turn.kind == "call" else turn.kind
            else:
                end = end_of_turn(result, env, is_last=is_last)
                feedback = tool_message(result.feedback, result.reward if rules.show_reward else None)
                messages = [*messages, reply.message, *_answers(reply.message, feedback)]
        episode.end, episode.coverage = end, env.coverage
        return episode


def load_served(config: EvaluateServedConfig, execution: AgentExecution) -> ServedPlayer:
    """Return the player of a served agent; its server is first contacted with the first episode."""
    connection = execution.served.get(config.agent.name, execution.connection)
    return ServedPlayer(
        simulator=load_simulator(config.simulator, execution),
        environment=config.environment,
        simulator_config=config.simulator,
        temperature=config.temperature,
        agent=config.agent,
        chat=Chat(find_access(connection), connection),
    )


def reply_in(completion: dict[str, Any]) -> Reply:
    """Return the turn of a chat completion.

    A server that knows no tools leaves calls in the text, as Qwen writes them: they are read there. What was thought
    goes back before the text, as published.
    """
    choice, usage = completion["choices"][0], completion.get("usage") or {}
    try:
        message = choice["message"]
        thought, text = message.get("reasoning_content") or "", message.get("content") or ""
        calls = list(message.get("tool_calls") or ())
        functions = [{**call["function"]} for call in calls]
        tokens = [max(0, int(usage.get(name) or 0)) for name in TOKENS]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UnreadableError(NO_MESSAGE) from None
    if not isinstance(thought, str) or not isinstance(text, str):
        raise UnreadableError(NO_MESSAGE)
    for function in functions:
        arguments = function.get("arguments")
        function["arguments"] = json_in(arguments) if isinstance(arguments, str) else arguments
    is_cut = choice.get("finish_reason") == "length"
    turn = AgentTurn((), "length") if is_cut else turn_of(functions) if calls else turn_in(text)
    content = f"<think>{thought}</think>{text}" if thought else text
    return Reply(turn, {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}, *tokens)


def _answers(message: Mapping[str, Any], feedback: str) -> list[dict[str, Any]]:
    """Return the tool's messages to an agent's: one for each of its calls, one to a call within the text."""
    calls = message.get("tool_calls") or [{}]
    ids = [{"tool_call_id": call["id"]} if "id" in call else {} for call in calls]
    texts = [*[ABOVE] * (len(ids) - 1), feedback]
    return [{"role": "tool", **call_id, "content": text} for call_id, text in zip(ids, texts, strict=True)]
