"""What every codec is: how a dialogue between agent and environment becomes tokens, and back.

Sampled token ids are kept as they are; nothing that the agent has written is ever tokenised a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from lever_pipe.intention.records import Task


class ToolCall(NamedTuple):
    """One call of the environment's only tool."""

    choice: str
    """`action`, `answer` or `search`."""
    content: str
    """The question."""


class AgentTurn(NamedTuple):
    """What one generation of the agent says."""

    calls: tuple[ToolCall, ...]
    kind: Literal["call", "closed", "malformed", "length", "refused", "filtered", "empty"]
    """It calls the tool; it does not; it holds a call that cannot be read; it has no end token. The others are of
    served agents alone: a refusal, a text that a content filter withheld, neither text nor call."""


class ChatCodec(Protocol):
    """Turns tasks and feedback into tokens, and an agent's tokens into calls."""

    @property
    def pad_id(self) -> int:
        """Return the token that fills unused places."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Return the tokens that end an agent's turn."""

    def prompt(self, task: Task) -> list[int]:
        """Return the tokens before the agent's first turn; they end with the generation prefix."""

    def parse(self, tokens: Sequence[int]) -> AgentTurn:
        """Return what the sampled tokens of one turn say, its end token included where it was sampled."""

    def aside(self, tokens: Sequence[int]) -> str:
        """Return, for a reader, what a turn's tokens say beside its calls; all of it where a call cannot be read."""

    def feedback(self, text: str, reward: float | None) -> list[int]:
        """Return what stands between a turn's end token and the next turn: tool message and generation prefix."""

    def call(self, call: ToolCall) -> list[int]:
        """Return an agent's turn that makes this call, its end token included; for demonstrations."""

    def closing(self) -> list[int]:
        """Return an agent's turn without a call, its end token included; for demonstrations."""

    def save(self, folder: Path) -> None:
        """Write the codec's files into an existing folder."""
