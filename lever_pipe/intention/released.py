"""A released agent: loaded from its folder alone, it plays tasks as it did when it was evaluated.

`lever-pipe release` writes the folder, whose model any library loads that knows its architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from lever_pipe.base import storage
from lever_pipe.base.sections import Section
from lever_pipe.experiment.agent_config import AgentExecution
from lever_pipe.experiment.agent_stage_configs import EvaluateAgentConfig
from lever_pipe.intention.agent.evaluation import PolicyEvaluation, When, evaluate
from lever_pipe.intention.agent.rollout import load_player
from lever_pipe.intention.records import Task

SETTINGS, TASKS = "agent.json", "tasks.jsonl"


class ReleasedAgent(Section):
    """All that `agent.json` of a released agent says."""

    policy: str
    lineage: str
    """Digest of all that the agent and its scores were made from."""
    checkpoint: Literal["last", "best"]
    step: int
    """Of training."""
    evaluation: EvaluateAgentConfig


class Agent:
    """An agent that plays against its user; `execution` says where that is, if it is a server.

    `tasks` are those that it was held against.

    Raises:
        CheckpointError: no readable model or dialogue format.
        RecordError: a file is missing or malformed.
        ServerError: its user cannot be asked.
    """

    def __init__(
        self, folder: str | Path, *, execution: AgentExecution = AgentExecution(), device: str = "cpu"
    ) -> None:
        folder = Path(folder)
        self.settings = storage.read_row(folder / SETTINGS, ReleasedAgent)
        self.tasks = storage.read_rows(folder / TASKS, Task)
        self._player = load_player(folder, self.settings.evaluation, execution, torch.device(device))

    def play(self, tasks: Sequence[Task]) -> PolicyEvaluation:
        """Return greedy episodes with their transcripts, and sampled ones, as the evaluation has them.

        Raises:
            TrainingError: too many of the user's replies failed.
        """
        when = When(self.settings.step, "test", self.settings.checkpoint)
        return evaluate(self._player, tasks, when, self.settings.evaluation.evaluation)
