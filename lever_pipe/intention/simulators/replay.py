"""A user that says again what a cassette holds, without any network."""

from __future__ import annotations

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
    cassette = Cassette(Path(execution.cassette), is_writable=False)
    return PromptedUser(CassetteChat(cassette), config.endpoint, leak_details=config.leak_details)
