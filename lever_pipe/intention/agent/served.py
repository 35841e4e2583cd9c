"""An agent behind an OpenAI-compatible server, which exchanges messages instead of tokens.

Each turn requests a chat completion with the environment's tool. The reply is sent back in the next request, followed
by the tool's message. Turns and ends of episodes follow the rules for trained policies: every call is executed, rewards
are shown if the environment shows them, and an unreadable turn ends the episode. A refusal, a filtered reply and an
empty reply end the episode too, each with its own count. Without an answer of the server, the episode is lost and
counted. Source: UserRL (published code), `eval/eval.py`, which executes only the first call, shows no rewards, and
treats an episode after a failed request as one without further rewards.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from lever_pipe.base.chat import Chat, UnreadableError, at_once, find_access
from lever_pipe.base.errors import TrainingError
from lever_pipe.base.progress import Progress
from lever_pipe.base.replies import WORDS, Problem, Reply, problem_of, reply_of
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.environment import AgentExecution
from lever_pipe.experiment.served_agents import EvaluateServedConfig, ServedAgent
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
from lever_pipe.intention.records import SERVED_ENDS, EndReason

ABOVE = "(answered with the last call)"
"""Tool message for all calls of a turn but the last: the API requires one for each call."""
LARGEST_SEED = 2**31 - 1
log = logging.getLogger(__name__)
NO_MESSAGE = "a message that is not made of text and tool calls"
KINDS: dict[Problem, Literal["length", "refused", "filtered"]] = {
    "cut": "length",
    "refused": "refused",
    "filtered": "filtered",
}
"""Kind of a turn by the problem of its reply, independent of the reply's content."""


class ServedTurn(NamedTuple):
    """One turn of a served agent."""

    turn: AgentTurn
    message: dict[str, Any]
    """The agent's message for the next request."""
    prompt_tokens: int
    completion_tokens: int
    """Counts of the server; 0 if it reports none."""


@dataclass
class ServedEpisode(Episode):
    """A dialogue of messages."""

    replies: list[ServedTurn] = field(default_factory=list)
    """[T], the agent's turns."""

    @property
    def n_agent_tokens(self) -> int:
        """Return the number of tokens of all turns, including thoughts, by the server's count."""
        return sum(reply.completion_tokens for reply in self.replies)


@dataclass
class ServedCounts(RolloutCounts):
    """Work and failures of a rollout, with the agent's requests and tokens."""

    agent_requests: int = 0
    agent_failures: int = 0
    agent_retries: int = 0
    agent_malformed: int = 0
    agent_refused: int = 0
    """Episodes with this end reason; the same for the next two."""
    agent_filtered: int = 0
    agent_empty: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


REQUESTS = ("agent_requests", "agent_failures", "agent_retries", "agent_malformed")
TOKENS = ("prompt_tokens", "completion_tokens")
ENDS = {f"agent_{end}": end for end in SERVED_ENDS}


@dataclass(frozen=True, kw_only=True)
class ServedPlayer(Host):
    """Server connection and settings with which the episodes of a served agent are played."""

    agent: ServedAgent
    chat: Chat

    counted = (*MISHAPS, *REQUESTS, *ENDS, *TOKENS)
    ends = SERVED_ENDS

    def play(
        self, requests: Sequence[EpisodeRequest], *, greedy: bool = False, progress: Progress | None = None
    ) -> Rollouts:
        """Return episodes as `Player.play` does; requests of a sampled episode have a seed from its stream."""
        # Each worker plays one episode, which may wait for the agent and the user: the lower limit applies.
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
            **{name: sum(episode.end == end for episode in episodes) for name, end in ENDS.items()},
            **{name: sum(getattr(reply, name) for reply in replies) for name in TOKENS},
        )
        lost = {name: getattr(counts, name) for name in ENDS if getattr(counts, name)}
        if lost:
            listed = ", ".join(f"{name.removeprefix('agent_')} {count}" for name, count in lost.items())
            log.warning(
                "served agent %s: of %d episodes ended by the reply: %s", self.agent.name, len(episodes), listed
            )
        return Rollouts([*episodes], counts, 0.0)

    def _counted(self) -> dict[str, int]:
        counters = {"simulator": self.simulator.counts, "agent": self.chat.counts}
        return {f"{who}_{name}": count for who, counts in counters.items() for name, count in counts.values().items()}

    def utterance(self, episode: Any, turn_index: int) -> tuple[str, Sequence[ToolCall]]:
        """Return the text of a turn without its calls, including calls that cannot be read, and the calls."""
        turn, message, *_ = episode.replies[turn_index]
        has_calls, is_read = "tool_calls" in message, turn.kind == "call"
        unread = json.dumps(message["tool_calls"], sort_keys=True) if has_calls and not is_read else ""
        return aside_of(message["content"], is_read=is_read and not has_calls) + unread, turn.calls

    def require_few_failures(self, counts: Mapping[str, float], *, during: str) -> None:
        """Require that the shares of failed requests of user and agent are within the simulator's failure limit.

        Raises:
            TrainingError: too many failures.
        """
        super().require_few_failures(counts, during=during)
        n_requests, n_failures, n_retries, n_malformed = (int(counts[name]) for name in REQUESTS)
        limit = self.simulator_config.failure_limit
        if n_failures > limit * n_requests:
            raise TrainingError(
                f"{during}: expected at most {limit:.1%} of the requests to served agent {self.agent.name!r} to fail",
                found=f"{n_failures} of {n_requests} failed after {n_retries} retries, {n_malformed} unreadable"
                f" answers; the last problem: {self.chat.counts.last_error}",
                do="Check that its server answers and supports tools; raise timeout_seconds or retries of its"
                " connection in intention.execution. Or raise intention.simulator.failure_limit.",
            )

    def _play(self, request: EpisodeRequest, *, greedy: bool) -> ServedEpisode:
        rules, agent = self.environment, self.agent
        env = IntentionEnv(request.task, self.simulator, rules, self.simulator_config)
        episode = ServedEpisode(request.task, request.index, request.sample, env.ceiling)
        fixed = agent.model_dump(include={"model", "max_tokens"}) | {"tool_choice": "auto", "tools": [TOOL]}
        draw = {"temperature": self.temperature, "seed": int(generator(*request.stream).integers(LARGEST_SEED))}
        settings = fixed | ({"temperature": 0.0} if greedy else draw)
        # None removes the setting from the request: some models accept only their own temperature.
        if agent.temperature is None:
            settings["temperature"] = None
        messages: list[dict[str, Any]] = [*opening(request.task)]
        end: EndReason | None = None
        while end is None:
            is_last = len(episode.replies) == rules.max_turns - 1
            reply = self.chat.answer({**settings, "messages": messages}, served_turn)
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
    """Return the player of a served agent; the first episode makes the first contact with the server."""
    connection = execution.served.get(config.agent.name, execution.connection)
    return ServedPlayer(
        simulator=load_simulator(config.simulator, execution),
        environment=config.environment,
        simulator_config=config.simulator,
        temperature=config.temperature,
        agent=config.agent,
        chat=Chat(find_access(connection), connection),
    )


def served_turn(completion: dict[str, Any]) -> ServedTurn:
    """Return the turn of a chat completion.

    A server without tool support returns calls in the text, in Qwen's format, and they are parsed from it. The message
    for the next request contains the thoughts before the text, as in the published code.

    Raises:
        UnreadableError: the server broke the reply off, or a part has the wrong type; another attempt may succeed.
    """
    reply, usage = reply_of(completion), completion.get("usage") or {}
    if reply.finish == "broken off":
        raise UnreadableError(WORDS["broken off"])
    try:
        functions = [{**call["function"]} for call in reply.calls]
        tokens = [max(0, int(usage.get(name) or 0)) for name in TOKENS]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UnreadableError(NO_MESSAGE) from None
    for function in functions:
        arguments = function.get("arguments")
        function["arguments"] = json_in(arguments) if isinstance(arguments, str) else arguments
    content = f"<think>{reply.thought}</think>{reply.content}" if reply.thought else reply.content
    calls = {"tool_calls": list(reply.calls)} if reply.calls else {}
    return ServedTurn(_turn_of(reply, functions), {"role": "assistant", "content": content, **calls}, *tokens)


def _turn_of(reply: Reply, functions: Sequence[object]) -> AgentTurn:
    problem = problem_of(reply, strips_thoughts=True, may_call=True)
    if problem in KINDS:
        return AgentTurn((), KINDS[problem])
    turn = turn_of(functions) if functions else turn_in(reply.content)
    return AgentTurn((), "empty") if problem and turn.kind == "closed" else turn


def _answers(message: Mapping[str, Any], feedback: str) -> list[dict[str, Any]]:
    """Return the tool's messages after an agent's message: one for each call, or one for calls in the text."""
    calls = message.get("tool_calls") or [{}]
    # A call within the text has no id.
    ids = [{"tool_call_id": call["id"]} if "id" in call else {} for call in calls]
    texts = [*[ABOVE] * (len(ids) - 1), feedback]
    return [{"role": "tool", **call_id, "content": text} for call_id, text in zip(ids, texts, strict=True)]
