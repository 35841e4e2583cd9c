"""Interface of codecs between dialogues and tokens.

Sampled token ids stay unchanged; the agent's text is never tokenized again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from lever_pipe.intention.records import Task

CALL_START, CALL_END = "<tool_call>", "</tool_call>"
"""Marks of a tool call in the agent's text."""


class ToolCall(NamedTuple):
    """One call of the environment's only tool."""

    choice: str
    """`action`, `answer` or `search`."""
    content: str
    """The question."""


class AgentTurn(NamedTuple):
    """The parsed content of one generation of the agent."""

    calls: tuple[ToolCall, ...]
    kind: Literal["call", "closed", "malformed", "length", "refused", "filtered", "empty"]
    """`call`: it calls the tool; `closed`: it does not; `malformed`: a call cannot be read; `length`: it has no end
    token. Served agents only: `refused`: a refusal; `filtered`: withheld by a content filter; `empty`: neither text nor
    call."""


class ChatCodec(Protocol):
    """A codec that converts tasks and feedback to tokens, and an agent's tokens to calls."""

    @property
    def pad_id(self) -> int:
        """Return the padding token."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Return the tokens that end an agent's turn."""

    def prompt(self, task: Task) -> list[int]:
        """Return the tokens before the agent's first turn; they end with the generation prefix."""

    def parse(self, tokens: Sequence[int]) -> AgentTurn:
        """Return the parsed turn of sampled tokens, which include the end token if it was sampled."""

    def aside(self, tokens: Sequence[int]) -> str:
        """Return the text of a turn without its calls, for transcripts; the whole text if a call cannot be read."""

    def feedback(self, text: str, reward: float | None) -> list[int]:
        """Return the tokens between a turn's end token and the next turn: tool message and generation prefix."""

    def call(self, call: ToolCall) -> list[int]:
        """Return an agent's turn with this call, including the end token; for demonstrations."""

    def closing(self) -> list[int]:
        """Return an agent's turn without a call, including the end token; for demonstrations."""

    def save(self, folder: Path) -> None:
        """Write the codec's files into an existing folder."""
