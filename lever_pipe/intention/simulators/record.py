"""A user that a server's model plays, with every answer kept in a cassette."""

from __future__ import annotations

from pathlib import Path

from lever_pipe.experiment.agent_config import AgentExecution, Simulator
from lever_pipe.intention.simulators._cassette import Cassette, CassetteChat
from lever_pipe.intention.simulators._prompted import PromptedUser
from lever_pipe.intention.simulators.openai import EndpointChat, find_access


def load(config: Simulator, execution: AgentExecution) -> PromptedUser:
    """Return the user behind the configured server, recorded into `execution.cassette`.

    Raises:
        SimulatorError: no address, or a cassette that cannot be written.
        RecordError: the cassette holds a line that is none.
    """
    chat = EndpointChat(find_access(execution.connection), execution.connection)
    cassette = Cassette(Path(execution.cassette), is_writable=True)
    return PromptedUser(CassetteChat(cassette, chat), config.endpoint, leak_details=config.leak_details)
