"""Rule `prepare_tasks`: the agent's tasks of all splits, and what they hold."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lever_pipe.base import storage
from lever_pipe.base.parsing import load_member
from lever_pipe.experiment.agent_config import Environment
from lever_pipe.experiment.agent_stage_configs import PrepareTasksConfig
from lever_pipe.experiment.stage_files import Inputs, Output
from lever_pipe.intention.environment import ceiling
from lever_pipe.intention.records import Task
from lever_pipe.intention.sources.protocol import RawFiles, TaskSource


def prepare_tasks(
    *,
    train_file: Inputs,
    val_file: Inputs,
    test_file: Inputs,
    details: Inputs,
    train_tasks: Output,
    val_tasks: Output,
    test_tasks: Output,
    summary: Output,
    config: PrepareTasksConfig,
) -> dict[str, Any]:
    """Write the tasks of each split and return what `summary` says of them.

    The files are empty for tasks that are made, not read. The test split leaves out what is trained or validated
    on, by id or by request.

    Raises:
        DataError: files that break the format or contradict each other; all faults at once.
        UnknownMemberError: no such source.
    """
    files = RawFiles(train_file, val_file, test_file, details)
    source: TaskSource = load_member("intention/sources", config.source)
    splits = source.read(config.synthetic, files)
    storage.write_rows(train_tasks, splits.train)
    storage.write_rows(val_tasks, splits.val)
    storage.write_rows(test_tasks, splits.test)
    told: dict[str, Any] = {
        "train": _summary_of(splits.train),
        "val": {**_summary_of(splits.val), **_shared(splits.val, splits.train)},
        "test": {
            **_summary_of(splits.test),
            **_shared(splits.test, splits.train),
            "n_left_out": splits.n_left_out,
        },
    }
    storage.write_json(summary, told)
    return told


def _summary_of(tasks: Sequence[Task]) -> dict[str, Any]:
    """Return counts, and the ceilings by the published rewards, whatever a run pays."""
    ceilings = [ceiling(task, Environment()) for task in tasks]
    details = [detail for task in tasks for detail in task.missing_details]
    return {
        "n_tasks": len(tasks),
        "n_categories": len({task.category for task in tasks}),
        "ceiling_mean": round(statistics.fmean(ceilings), 9),
        "ceiling_sd": round(statistics.stdev(ceilings), 9) if len(ceilings) > 1 else 0.0,
        "ceiling_min": min(ceilings),
        "ceiling_max": max(ceilings),
        "n_details": _histogram([len(task.missing_details) for task in tasks]),
        "n_importance": _histogram([detail.importance for detail in details]),
    }


def _histogram(values: Sequence[int]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(Counter(values).items())}


def _shared(tasks: Sequence[Task], trained: Sequence[Task]) -> dict[str, int]:
    """Return how many tasks have the request of a trained one, and how many its category and hidden details."""
    return {
        "n_requests_also_trained": len([task for task in tasks if task.task in {other.task for other in trained}]),
        "n_hidden_also_trained": len([task for task in tasks if _hidden(task) in set(map(_hidden, trained))]),
    }


def _hidden(task: Task) -> tuple[str, frozenset[str]]:
    return task.category, frozenset(detail.description for detail in task.missing_details)
