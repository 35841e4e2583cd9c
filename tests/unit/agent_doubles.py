"""Policies for tests: one that follows a script, and a random one that follows the grammar of turns."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lever_pipe.experiment.agent_model import AgentModel, TinyQwen3
from lever_pipe.experiment.agent_tasks import SyntheticTasks
from lever_pipe.experiment.environment import AgentExecution, Environment, Simulator
from lever_pipe.experiment.warm_start import WarmStart
from lever_pipe.intention.agent import rollout
from lever_pipe.intention.agent.generation import DialogueCache
from lever_pipe.intention.agent.policy import build_tiny
from lever_pipe.intention.agent.rollout import Episode, Player
from lever_pipe.intention.agent.warm_start import Demonstration, Demonstrator
from lever_pipe.intention.codecs.protocol import ChatCodec
from lever_pipe.intention.codecs.word import WordCodec
from lever_pipe.intention.records import Task
from lever_pipe.intention.simulators import rule
from lever_pipe.intention.simulators.protocol import Exchange, UserReply
from lever_pipe.intention.sources import synthetic

CODEC = WordCodec.of_world()
RULE = Simulator(kind="rule")
TASKS = synthetic.read(SyntheticTasks(n_train=40)).train
ENVIRONMENT = Environment(max_turns=8)


def rule_user() -> rule.RuleUser:
    return rule.load(RULE, AgentExecution())


class FailingFor(rule.RuleUser):
    """A user that gives up at the first question on some tasks, or at a later one."""

    def __init__(self, *tasks: Task, after: int = 0) -> None:
        super().__init__()
        self._names = {task.id for task in tasks}
        self._after = after

    def reply(self, task: Task, question: str, history: Sequence[Exchange], covered: Sequence[int]) -> UserReply:
        answer = super().reply(task, question, history, covered)
        if task.id not in self._names or len(history) < self._after:
            return answer
        self.counts.add(failures=1)
        return UserReply("", ok=False)


def player_of(
    policy: Any,
    *,
    codec: ChatCodec = CODEC,
    user: Any = None,
    environment: Environment = ENVIRONMENT,
    temperature: float = 1.0,
    batch: int = 200,
    **model: Any,
) -> Player:
    """Return the player of a policy, in the embedded world by default."""
    return Player(
        policy=policy,
        codec=codec,
        simulator=user or rule_user(),
        model=AgentModel(
            folder="", codec="word", dtype="float32", **{"max_new_tokens": 12, "max_context": 256, **model}
        ),
        environment=environment,
        simulator_config=RULE,
        temperature=temperature,
        batch=batch,
    )


@torch.no_grad()
def log_probs_of(policy: Any, episode: Episode, temperature: float = 1.0) -> list[float]:
    """Return the log-probabilities of the agent's tokens by one plain forward pass over the whole dialogue."""
    logits = policy(input_ids=torch.tensor([episode.tokens])).logits[0, :-1]
    log_probs = (logits / temperature).log_softmax(-1)
    return [float(log_probs[i - 1, episode.tokens[i]]) for i, mine in enumerate(episode.is_agent) if mine]


def demonstrations(n: int, *, tasks: Sequence[Task] = TASKS, **rates: float) -> list[Demonstration]:
    maker = Demonstrator(CODEC, rule_user(), ENVIRONMENT, WarmStart(**rates), max_context=256)
    rng = np.random.default_rng(0)
    return [maker.hold(tasks[i % len(tasks)], rng) for i in range(n)]


class ScriptedPolicy:
    """Emit prescribed tokens.

    Args:
        codec: gives the size of the vocabulary.
        turns: a task's prompt -> the tokens of its turns.
        prefix: the text before every turn of the agent, and nowhere else.
    """

    device = torch.device("cpu")

    def __init__(self, codec: ChatCodec, turns: dict[tuple[int, ...], list[list[int]]], prefix: list[int]) -> None:
        self._turns = turns
        self._vocabulary_size = getattr(codec, "vocabulary_size", 0) or len(codec._tokenizer)
        self._prefix = prefix
        self.read: list[int] = []
        """Number of tokens that each forward pass has read."""

    def logits(self, dialogues: Sequence[Sequence[int]]) -> Tensor:
        logits = torch.zeros(len(dialogues), self._vocabulary_size)
        for row, dialogue in enumerate(dialogues):
            logits[row, self._next(list(dialogue))] = 50.0
        return logits

    def _next(self, dialogue: list[int]) -> int:
        n = len(self._prefix)
        begins = [i + n for i in range(len(dialogue) - n + 1) if dialogue[i : i + n] == self._prefix]
        turn = self._turns[tuple(dialogue[: begins[0]])][len(begins) - 1]
        return turn[len(dialogue) - begins[-1]]


class ScriptedRows:
    """The memory of a policy that follows a script: every dialogue so far."""

    def __init__(self, policy: ScriptedPolicy, n_rows: int) -> None:
        self._policy = policy
        self._dialogues: list[list[int]] = [[] for _ in range(n_rows)]

    def read(self, rows: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
        self._policy.read.append(sum(map(len, texts)))
        for row, text in zip(rows, texts, strict=True):
            self._dialogues[row] += text
        return self._policy.logits([self._dialogues[row] for row in rows])

    def keep(self, rows: Sequence[int]) -> None:
        self._dialogues = [self._dialogues[row] for row in rows]


def scripted(
    script: dict[str, list[list[int]]],
    tasks: Sequence[Task],
    *,
    codec: ChatCodec = CODEC,
    prefix: Sequence[int] = CODEC.feedback("asked", None)[-2:],
) -> ScriptedPolicy:
    """Return a policy that emits the turns written for each task's id."""
    return ScriptedPolicy(codec, {tuple(codec.prompt(task)): script[task.id] for task in tasks}, list(prefix))


class ChattyPolicy:
    """A stock model with random weights whose logits are nudged to a demonstrator's continuation of the last word.

    So its dialogues run over many turns, while every token still depends on all tokens before it.
    """

    device = torch.device("cpu")

    def __init__(self, model: Any) -> None:
        self.model = model
        self._nudge_VV = _bigrams(demonstrations(400, early_stop=0.05))

    def __call__(self, *, input_ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.nudged(self.model(input_ids=input_ids).logits, input_ids))

    def nudged(self, logits: Tensor, last: Tensor) -> Tensor:
        return 2 * logits + self._nudge_VV[last]


class ChattyRows(DialogueCache):
    """The memory of a chatty policy."""

    def __init__(self, policy: ChattyPolicy, n_rows: int) -> None:
        super().__init__(policy.model, n_rows)
        self._policy = policy

    def read(self, rows: Sequence[int], texts: Sequence[Sequence[int]]) -> Tensor:
        return self._policy.nudged(super().read(rows, texts), torch.tensor([text[-1] for text in texts]))


def _rows_of(policy: Any, n_rows: int) -> Any:
    kinds = {ScriptedPolicy: ScriptedRows, ChattyPolicy: ChattyRows}
    return kinds.get(type(policy), DialogueCache)(policy, n_rows)


rollout.DialogueCache = _rows_of  # type: ignore[misc, assignment]


def chatty(seed: int = 0) -> ChattyPolicy:
    return ChattyPolicy(build_tiny(TinyQwen3(), CODEC.vocabulary_size, seed))


def _bigrams(dialogues: Sequence[Demonstration]) -> Tensor:
    counts = torch.full((CODEC.vocabulary_size, CODEC.vocabulary_size), 0.02)
    for dialogue in dialogues:
        for i, mine in enumerate(dialogue.is_agent):
            if mine:
                counts[dialogue.tokens[i - 1], dialogue.tokens[i]] += 1
    return (counts / counts.sum(dim=1, keepdim=True)).log()
