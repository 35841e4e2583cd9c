"""A user and a judge that a language model plays, whether it is asked now or was asked before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from lever_pipe.experiment.agent_config import Endpoint
from lever_pipe.intention.records import Task
from lever_pipe.intention.simulators._prompts import (
    judge_prompt,
    read_judgement,
    read_reply,
    reply_prompt,
    require_prompts,
)
from lever_pipe.intention.simulators.protocol import Exchange, Judgement, Reply, SimulatorCounts

T = TypeVar("T")
ChatRequest = dict[str, Any]
"""The body of a chat completion request; it determines the answer as far as anything does."""

STOCK_REPLY = "I am not sure yet. What else would you like to know?"
"""Stands where no reply could be had."""


class Chat(Protocol):
    """Something that completes chats and counts how that went."""

    counts: SimulatorCounts
    concurrency: int
    is_remote: bool

    def answer(self, request: ChatRequest, read: Callable[[str], T]) -> T | None:
        """Return what `read` makes of the model's words, or None after the last failed attempt.

        Args:
            request: the body.
            read: raises UnreadableError on words that do not hold what was asked for.

        Raises:
            SimulatorError: no attempt can succeed.
        """


class PromptedUser:
    """The simulated user over a chat."""

    def __init__(self, chat: Chat, endpoint: Endpoint, *, leak_details: bool) -> None:
        """Take a chat.

        Raises:
            SimulatorError: the prompts are not those that the code knows.
        """
        require_prompts()
        self.counts = chat.counts
        self.concurrency = chat.concurrency
        self.is_remote = chat.is_remote
        self._chat = chat
        self._endpoint = endpoint
        self._leak_details = leak_details

    def reply(self, task: Task, question: str, history: Sequence[Exchange], covered: Sequence[int]) -> Reply:
        """Return what the model says as the user; it is not told what was covered."""
        del covered
        prompt = reply_prompt(task, question, history, leak_details=self._leak_details)
        text = self._chat.answer(self._request(prompt), read_reply)
        return Reply(STOCK_REPLY, ok=False) if text is None else Reply(text, ok=True)

    def judge(self, task: Task, question: str, history: Sequence[Exchange], remaining: tuple[int, ...]) -> Judgement:
        """Return what the model says as the judge."""
        prompt = judge_prompt(task, question, history, remaining, leak_details=self._leak_details)
        judgement = self._chat.answer(self._request(prompt), read_judgement)
        return Judgement((), related=False, ok=False, raw="") if judgement is None else judgement

    def _request(self, prompt: str) -> ChatRequest:
        return {**self._endpoint.model_dump(), "messages": [{"role": "user", "content": prompt}]}
