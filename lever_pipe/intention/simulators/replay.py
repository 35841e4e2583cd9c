"""A user that says again what a cassette holds, without any network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lever_pipe.experiment.agent_config import AgentExecution, Simulator
from lever_pipe.intention.simulators._cassette import Cassette, CassetteChat
from lever_pipe.intention.simulators._prompted import PromptedUser


def load(config: Simulator, execution: AgentExecution) -> PromptedUser:
    """Return the user that `execution.cassette` holds.

    Raises:
        SimulatorError: there is no such file.
        RecordError: it holds a line that is no take.
    """
    return PromptedUser(chat(execution), config.endpoint, leak_details=config.leak_details)


def chat(execution: AgentExecution, words: Callable[[bytes], str] | None = None) -> CassetteChat:
    """Return the chat that the cassette holds, with the same errors; `words` were taken when it was recorded."""
    del words
    return CassetteChat(Cassette(Path(execution.cassette), is_writable=False))
