"""A user that says again what a cassette holds, without any network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lever_pipe.base.errors import SimulatorError
from lever_pipe.experiment.agent_config import AgentExecution, Simulator
from lever_pipe.intention.simulators._cassette import Cassette, request_hash
from lever_pipe.intention.simulators._prompted import ChatRequest, PromptedUser
from lever_pipe.intention.simulators.protocol import SimulatorCounts

T = TypeVar("T")


def load(config: Simulator, execution: AgentExecution) -> PromptedUser:
    """Return the user that `execution.cassette` holds.

    Raises:
        SimulatorError: there is no such file.
        RecordError: it holds a line that is no take.
    """
    chat = ReplayedChat(Cassette(Path(execution.cassette), is_writable=False))
    return PromptedUser(chat, config.endpoint, leak_details=config.leak_details)


class ReplayedChat:
    """Completes chats from a cassette alone."""

    concurrency = 1
    is_remote = False

    def __init__(self, cassette: Cassette) -> None:
        self.counts = SimulatorCounts()
        self._cassette = cassette

    def answer(self, request: ChatRequest, read: Callable[[str], T]) -> T:
        """Return what `read` makes of the recorded answer.

        Raises:
            SimulatorError: the cassette does not hold this request, or no readable answer.
        """
        self.counts.add(requests=1)
        key = request_hash(request)
        if key not in self._cassette:
            raise SimulatorError(
                f"{self._cassette.path}: expected the recorded answer to every request",
                found=f"none for the request with hash {key}",
                do="Record the cassette with this very configuration (simulator.kind: record).",
            )
        return self._cassette.read(key, read)
