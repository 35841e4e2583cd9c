"""IntentionGym's own task files: each split a list of task objects."""

from __future__ import annotations

from lever_pipe.experiment.agent_config import SyntheticTasks
from lever_pipe.intention.sources._records import TaskFaults, put_together, read_tasks
from lever_pipe.intention.sources.protocol import RawFiles, Splits


def read(synthetic: SyntheticTasks | None, files: RawFiles) -> Splits:
    """Return the splits as the files have them; details stand in the same files.

    Raises:
        DataError: files that break the format or contradict each other; all faults at once.
    """
    del synthetic
    faults = TaskFaults()
    train, val, test = (read_tasks(paths, faults) for paths in (files.train, files.val, files.test))
    return put_together(files, train, val, test, faults)
