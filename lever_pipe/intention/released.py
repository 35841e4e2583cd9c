"""A released agent: its folder is sufficient to play tasks exactly as in the agent's evaluation.

`lever-pipe release` writes the folder. Any library that supports the architecture can load its model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from lever_pipe.base import storage
from lever_pipe.base.sections import Section
from lever_pipe.experiment.agent_evaluation import EvaluateAgentConfig
from lever_pipe.experiment.environment import AgentExecution
from lever_pipe.intention.agent.evaluation import PolicyEvaluation, When, evaluate
from lever_pipe.intention.agent.rollout import load_player
from lever_pipe.intention.records import Task

SETTINGS, TASKS = "agent.json", "tasks.jsonl"


class ReleasedAgent(Section):
    """Contents of `agent.json` in the folder of a released agent."""

    policy: str
    lineage: str
    """Digest of all inputs of the agent and of its scores."""
    checkpoint: Literal["last", "best"]
    step: int
    """Training step of the checkpoint."""
    evaluation: EvaluateAgentConfig


class Agent:
    """An agent with its simulated user; `execution` contains the connection of a user behind a server.

    `tasks` are the tasks of its evaluation.

    Raises:
        CheckpointError: no readable model or dialogue format.
        RecordError: a file is missing or malformed.
        ServerError: the user cannot be reached.
    """

    def __init__(
        self, folder: str | Path, *, execution: AgentExecution = AgentExecution(), device: str = "cpu"
    ) -> None:
        folder = Path(folder)
        self.settings = storage.read_row(folder / SETTINGS, ReleasedAgent)
        self.tasks = storage.read_rows(folder / TASKS, Task)
        self._player = load_player(folder, self.settings.evaluation, execution, torch.device(device))

    def play(self, tasks: Sequence[Task]) -> PolicyEvaluation:
        """Return greedy episodes with their transcripts and sampled episodes, with the settings of the evaluation.

        Raises:
            TrainingError: too many of the user's replies failed.
        """
        when = When(self.settings.step, "test", self.settings.checkpoint)
        return evaluate(self._player, tasks, when, self.settings.evaluation.evaluation)
