"""A user that says again what a cassette holds, without any network."""

from __future__ import annotations

from lever_pipe.experiment.agent_config import AgentExecution, Simulator
from lever_pipe.intention.simulators._prompted import PromptedUser
from lever_pipe.intention.simulators.openai import chat_of


def load(config: Simulator, execution: AgentExecution) -> PromptedUser:
    """Return the user that `execution.cassette` holds.

    Raises:
        SimulatorError: there is no such file.
        RecordError: it holds a line that is no take.
    """
    return PromptedUser(chat_of("replay", execution), config.endpoint, leak_details=config.leak_details)
