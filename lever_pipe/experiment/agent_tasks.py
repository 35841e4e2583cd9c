"""Tasks of the agent."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lever_pipe.base.plugins import plugin_of
from lever_pipe.base.sections import FilePath, Section, Seed

WRITTEN_TASKS = "intentiongym"
"""The source of human-written tasks; the rule-based user cannot play them."""


class SyntheticTasks(Section):
    """The generator of the embedded tasks (`intention/sources/synthetic.py`)."""

    n_train: int = Field(380, ge=1, le=100_000)
    n_val: int = Field(40, ge=2, le=100_000)
    n_test: int = Field(200, ge=2, le=100_000)
    seed: Seed = 0


class TaskFiles(Section):
    """IntentionGym's own files: task objects as JSON, and the ids of the RL rows as parquet."""

    train: FilePath = "data/intention/train.parquet"
    """Training tasks: `.json`, or `.parquet` with ids of tasks in `details`."""
    val: FilePath = "data/intention/test.parquet"
    """Rows of the validation curve."""
    test: FilePath = "data/intention/all_intentions_test.json"
    """Held-out tasks; tasks of the training and validation files are removed."""
    details: tuple[FilePath, ...] = (
        "data/intention/all_intentions_train.json",
        "data/intention/all_intentions_test.json",
    )
    """JSON files with the tasks of the parquet's ids; read only if a file above is `.parquet`."""


class Tasks(Section):
    """The source of the agent's tasks."""

    source: Annotated[str, plugin_of("intention/sources")] = WRITTEN_TASKS
    """A plugin of `lever_pipe/intention/sources`."""
    synthetic: SyntheticTasks = SyntheticTasks()
    files: TaskFiles = TaskFiles()


class PrepareTasksConfig(Section):
    PLUGINS = ("intention.sources.{source}",)
    source: str
    synthetic: SyntheticTasks | None
    """None when tasks come from files."""
