"""A user that a server's model plays, with every answer kept in a cassette."""

from __future__ import annotations

from pathlib import Path

from lever_pipe.experiment.agent_config import AgentExecution, Simulator
from lever_pipe.intention.simulators import openai
from lever_pipe.intention.simulators._cassette import Cassette, CassetteChat
from lever_pipe.intention.simulators._prompted import PromptedUser


def load(config: Simulator, execution: AgentExecution) -> PromptedUser:
    """Return the user behind the configured server, recorded into `execution.cassette`.

    Raises:
        SimulatorError: no address, or a cassette that cannot be written.
        RecordError: the cassette holds a line that is none.
    """
    return PromptedUser(chat(execution), config.endpoint, leak_details=config.leak_details)


def chat(execution: AgentExecution, words: openai.Words | None = None) -> CassetteChat:
    """Return the chat of the configured server, recorded likewise; `words` and errors are those of `openai.chat`."""
    asked = openai.chat(execution, words)
    return CassetteChat(Cassette(Path(execution.cassette), is_writable=True), asked)
