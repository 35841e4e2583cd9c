"""A user that a server's model plays, with every answer kept in a cassette."""

from __future__ import annotations

from lever_pipe.experiment.agent_config import AgentExecution, Simulator
from lever_pipe.intention.simulators._prompted import PromptedUser
from lever_pipe.intention.simulators.openai import chat_of


def load(config: Simulator, execution: AgentExecution) -> PromptedUser:
    """Return the user behind the configured server, recorded into `execution.cassette`.

    Raises:
        SimulatorError: no address, or a cassette that cannot be written.
        RecordError: the cassette holds a line that is none.
    """
    return PromptedUser(chat_of("record", execution), config.endpoint, leak_details=config.leak_details)
