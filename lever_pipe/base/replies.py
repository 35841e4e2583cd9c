"""The reply in a chat completion, and the problem that makes it unusable.

Servers send HTTP 200 without an answer if the token limit cut the model within its thought, a filter withheld the text,
or the engine aborted. The vision-language model, the simulated user with its judge and served agents use this module,
each with its own options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from lever_pipe.base.chat import UnreadableError
from lever_pipe.base.storage import is_unicode

Problem = Literal["broken off", "filtered", "refused", "tool call", "cut", "thinking", "thought", "empty"]
PROBLEMS: tuple[Problem, ...] = get_args(Problem)
WORDS: dict[Problem, str] = {
    "broken off": "a reply that the server broke off",
    "filtered": "a reply that a content filter withheld",
    "refused": "a refusal",
    "tool call": "a tool call instead of a text",
    "cut": "a text that the token limit cut",
    "thinking": "a thought without an end",
    "thought": "a thought before the text (its connection's strip_thoughts: true removes it)",
    "empty": "no text",
}
REFUSALS: tuple[Problem, ...] = ("refused", "filtered")
"""Problems in which the model or a filter declined; `lvlm.server.accept_refusals` counts them as wrong answers."""
_REASONS: dict[str, Problem] = {
    **dict.fromkeys(("abort", "error"), "broken off"),
    **dict.fromkeys(("content_filter", "safety"), "filtered"),
    "refusal": "refused",
    **dict.fromkeys(("length", "max_tokens", "model_length"), "cut"),
}
"""Finish reasons of OpenAI, vLLM, SGLang, Mistral and gateways."""
THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""Keys of a message's thought; vLLM uses the second since 0.25."""
_OPENS = re.compile(r"<think(?:ing)?>|\[THINK\]|◁think▷", re.IGNORECASE)
_CLOSES = re.compile(r"</think(?:ing)?>|\[/THINK\]|◁/think▷", re.IGNORECASE)


class Reply(NamedTuple):
    """A message of a server."""

    content: str
    """As received, including thoughts in it; empty for null."""
    thought: str
    """From a separate field."""
    calls: tuple[Any, ...]
    refusal: bool
    finish: Problem | None
    """Problem that the finish reason names; None for a normal or unknown reason."""

    @property
    def text(self) -> str:
        """The content after the last closing marker, stripped; the prompt may contain the opening one."""
        behind = _CLOSES.split(self.content)[-1]
        return _OPENS.split(behind)[0].strip()


def reply_of(completion: Mapping[str, Any]) -> Reply:
    """Return the reply of a completion's first choice.

    Raises:
        UnreadableError: a part of the message has another type.
    """
    choice = completion["choices"][0]
    message, reason = choice["message"], choice.get("finish_reason")
    content = message.get("content") or ""
    thought = next((found for name in THOUGHT_FIELDS if (found := message.get(name))), "")
    calls = message.get("tool_calls") or []
    texts = (content, thought)
    if not all(isinstance(text, str) and is_unicode(text) for text in texts) or not isinstance(calls, list):
        raise UnreadableError("a message whose content or thought is no text, or whose tool_calls are no list")
    finish = _REASONS.get(reason) if isinstance(reason, str) else None
    return Reply(content, thought, tuple(calls), bool(message.get("refusal")), finish)


def problem_of(
    reply: Reply, *, strips_thoughts: bool, may_be_cut: bool = False, may_call: bool = False
) -> Problem | None:
    """Return the first problem that makes a reply unusable, or None.

    Args:
        reply: the message.
        strips_thoughts: whether to accept a text after a closed thought.
        may_be_cut: whether to accept a text that the token limit cut.
        may_call: whether to accept tool calls.
    """
    has_closed = _CLOSES.search(reply.content) is not None
    is_open = _OPENS.search(_CLOSES.split(reply.content)[-1]) is not None
    has_calls = bool(reply.calls)
    problems: dict[Problem, bool] = {
        "broken off": reply.finish == "broken off",
        "filtered": reply.finish == "filtered",
        "refused": reply.finish == "refused" or reply.refusal,
        "tool call": has_calls and not may_call,
        "cut": reply.finish == "cut" and not may_be_cut,
        "thinking": is_open and not has_calls,
        "thought": has_closed and not strips_thoughts,
        "empty": not reply.text and not has_calls,
    }
    # The order of `PROBLEMS` matters: a filtered reply is also empty, and the first problem is the cause.
    return next((problem for problem in PROBLEMS if problems[problem]), None)


def text_in(completion: Mapping[str, Any], *, strips_thoughts: bool) -> str:
    """Return the whole text of a completion.

    Raises:
        UnreadableError: the completion has no usable text.
    """
    reply = reply_of(completion)
    if problem := problem_of(reply, strips_thoughts=strips_thoughts):
        raise UnreadableError(WORDS[problem])
    return reply.text
