"""An agent and a simulated user in dialogue, many at once.

All dialogues of a batch take their turns together: one batched generation, then one round of the environments. The
sampled token ids are kept as they are; what an episode holds is what the model has read and said.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lever_pipe.base.errors import DataError
from lever_pipe.base.progress import Progress
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.agent_config import Environment, Simulator
from lever_pipe.intention.agent.episodes import (
    ASKED,
    NO_TURN,
    Episode,
    Request,
    RolloutCounts,
    Rollouts,
    RolloutSettings,
)
from lever_pipe.intention.agent.generation import Decoding, Reading, Sampled, speak
from lever_pipe.intention.agent.memory import remember
from lever_pipe.intention.agent.sampling import uniforms
from lever_pipe.intention.codecs.protocol import AgentTurn, ChatCodec
from lever_pipe.intention.environment import IntentionEnv, TurnResult, step_all
from lever_pipe.intention.records import EndReason
from lever_pipe.intention.simulators.protocol import UserSimulator


@dataclass
class _Dialogue:
    """A running episode."""

    episode: Episode
    env: IntentionEnv
    uniforms: Iterator[float]
    unread: list[int]
    """What the model has to read before the agent's next turn."""
    said: list[int] = field(default_factory=list)
    """The agent's last turn."""
    is_running: bool = True

    def listen(self, sampled: Sampled) -> None:
        """Take down what the agent has said."""
        episode = self.episode
        episode.tokens += sampled.tokens
        episode.is_agent += [True] * len(sampled.tokens)
        episode.turn += [len(episode.rewards)] * len(sampled.tokens)
        episode.log_probs += sampled.log_probs
        self.said, self.unread = sampled.tokens, sampled.tokens[-1:]

    def tell(self, tokens: list[int]) -> None:
        """Give the agent something to read."""
        self.episode.tokens += tokens
        self.episode.is_agent += [False] * len(tokens)
        self.episode.turn += [NO_TURN] * len(tokens)
        self.unread += tokens

    def finish(self, end: EndReason) -> None:
        """End the episode."""
        self.episode.end = end
        self.episode.coverage = self.env.coverage
        self.is_running = False


def rollout(
    model: Any,
    codec: ChatCodec,
    requests: Sequence[Request],
    simulator: UserSimulator,
    environment: Environment,
    simulator_config: Simulator,
    settings: RolloutSettings,
    *,
    progress: Progress | None = None,
) -> Rollouts:
    """Return one episode for each request.

    Args:
        model: a causal language model in evaluation mode.
        codec: its dialogue format.
        requests: what to roll out.
        simulator: the user of every episode.
        environment: its rules.
        simulator_config: the simulator's switches.
        settings: how episodes are rolled out.
        progress: advanced by one for each finished episode.

    Raises:
        DataError: a prompt that leaves no room for the agent.
        SimulatorError: the user cannot be asked as configured.
    """
    dialogues = []
    for request in requests:
        env = IntentionEnv(request.task, simulator, environment, simulator_config)
        dialogues.append(_opened(request, env, codec))
    _require_room(dialogues, settings.max_context)
    counts = RolloutCounts()
    before = {name: getattr(simulator.counts, name) for name in ASKED}
    for start in range(0, len(dialogues), settings.batch):
        _hold(model, codec, dialogues[start : start + settings.batch], settings, counts, progress)
    for name in ASKED:
        setattr(counts, name, getattr(simulator.counts, name) - before[name])
    return Rollouts([dialogue.episode for dialogue in dialogues], counts)


def _opened(request: Request, env: IntentionEnv, codec: ChatCodec) -> _Dialogue:
    prompt = codec.prompt(request.task)
    episode = Episode(
        task=request.task,
        index=request.index,
        sample=request.sample,
        tokens=[],
        is_agent=[],
        turn=[],
        n_prompt=len(prompt),
        ceiling=env.ceiling,
    )
    dialogue = _Dialogue(episode, env, _draws(request.stream), unread=[])
    dialogue.tell(prompt)
    return dialogue


def _draws(stream: tuple[int, *tuple[int | str, ...]]) -> Iterator[float]:
    yield from uniforms(generator(*stream))


def _require_room(dialogues: Sequence[_Dialogue], max_context: int) -> None:
    long = {d.episode.task.id: d.episode.n_prompt for d in dialogues if d.episode.n_prompt >= max_context}
    if long:
        worst = max(long, key=lambda name: long[name])
        raise DataError(
            f"intention.model.max_context: expected prompts of fewer than {max_context} tokens",
            found=f"{len(long)} longer tasks, as {worst!r} with {long[worst]}",
            do="Raise max_context, or leave these tasks out.",
        )


def _hold(
    model: Any,
    codec: ChatCodec,
    dialogues: Sequence[_Dialogue],
    settings: RolloutSettings,
    counts: RolloutCounts,
    progress: Progress | None,
) -> None:
    """Hold dialogues to their ends, turn by turn."""
    rows = remember(model, len(dialogues), codec.pad_id)
    decoding = Decoding(codec.end_ids, settings.temperature, settings.greedy)
    running = list(dialogues)
    for turn in range(settings.max_turns):
        is_last = turn == settings.max_turns - 1
        for dialogue, sampled in zip(running, speak(rows, _readings(running, settings), decoding, counts), strict=True):
            dialogue.listen(sampled)
        started = time.perf_counter()
        _answer(running, codec, settings, counts, is_last=is_last)
        counts.seconds_simulator += time.perf_counter() - started
        kept = [row for row, dialogue in enumerate(running) if dialogue.is_running]
        if progress is not None:
            progress.advance(len(running) - len(kept))
        if not kept:
            return
        rows.keep(kept)
        running = [running[row] for row in kept]


def _readings(running: Sequence[_Dialogue], settings: RolloutSettings) -> list[Reading]:
    return [
        Reading(d.unread, min(settings.max_new_tokens, settings.max_context - len(d.episode.tokens)), d.uniforms)
        for d in running
    ]


def _answer(
    running: Sequence[_Dialogue], codec: ChatCodec, settings: RolloutSettings, counts: RolloutCounts, *, is_last: bool
) -> None:
    """Execute what was said this turn, and tell those who may go on what came of it."""
    asking = []
    for dialogue in running:
        turn = codec.parse(dialogue.said)
        if turn.kind == "call" and (not is_last or settings.execute_last_turn):
            asking.append((dialogue, turn.calls))
        else:
            dialogue.episode.rewards.append(0.0)
            dialogue.finish(_end_unheard(turn, dialogue.episode, settings))
    results = step_all([(dialogue.env, calls) for dialogue, calls in asking])
    for (dialogue, _), result in zip(asking, results, strict=True):
        counts.multi_call_turns += result.n_calls > 1
        counts.timeouts += result.timed_out and not result.failed
        dialogue.episode.rewards.append(result.reward)
        end = _end_heard(result, dialogue.env, is_last=is_last)
        if end is not None:
            dialogue.finish(end)
            continue
        feedback = codec.feedback(result.feedback, result.reward if settings.show_reward else None)
        if len(dialogue.episode.tokens) + len(feedback) < settings.max_context:
            dialogue.tell(feedback)
        else:
            dialogue.finish("context")


def _end_unheard(turn: AgentTurn, episode: Episode, settings: RolloutSettings) -> EndReason:
    """Return why a turn that is not executed ends its episode."""
    match turn.kind:
        case "call":
            return "turns"
        case "length":
            return "context" if len(episode.tokens) >= settings.max_context else "length"
        case _:
            return turn.kind


def _end_heard(result: TurnResult, env: IntentionEnv, *, is_last: bool) -> EndReason | None:
    """Return why an executed turn ends its episode, or None."""
    if result.failed:
        return "failed"
    if result.timed_out:
        return "timeout"
    if not env.remaining:
        return "complete"
    return "turns" if result.done or is_last else None
