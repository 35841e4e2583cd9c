"""A user that a server's model plays, with every answer kept in a cassette."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lever_pipe.experiment.agent_config import AgentExecution, Simulator
from lever_pipe.intention.simulators._cassette import Cassette, request_hash
from lever_pipe.intention.simulators._prompted import Chat, ChatRequest, PromptedUser
from lever_pipe.intention.simulators.openai import EndpointChat, find_access

T = TypeVar("T")


def load(config: Simulator, execution: AgentExecution) -> PromptedUser:
    """Return the user behind the configured server, recorded into `execution.cassette`.

    Raises:
        SimulatorError: no address, or a cassette that cannot be written.
        RecordError: the cassette holds a line that is none.
    """
    chat = EndpointChat(find_access(execution.connection), execution.connection)
    cassette = Cassette(Path(execution.cassette), is_writable=True)
    return PromptedUser(RecordingChat(chat, cassette), config.endpoint, leak_details=config.leak_details)


class RecordingChat:
    """Completes chats from the cassette, or else from another chat, whose readable answers it keeps."""

    def __init__(self, chat: Chat, cassette: Cassette) -> None:
        self.counts = chat.counts
        self.concurrency = chat.concurrency
        self.is_remote = chat.is_remote
        self._chat = chat
        self._cassette = cassette

    def answer(self, request: ChatRequest, read: Callable[[str], T]) -> T | None:
        """Return what `read` makes of the first answer that this request was ever given."""
        key = request_hash(request)
        if key in self._cassette:
            self.counts.add(requests=1)
            return self._cassette.read(key, read)

        def keep(text: str) -> T:
            read(text)
            self._cassette.keep(key, text)
            return self._cassette.read(key, read)

        return self._chat.answer(request, keep)
