"""One run's log as steps: what a resumed run has done again replaces what it did before."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lever_pipe.intention.verl.readings import Logged, Reading, read_file

VALIDATION = re.compile(r"val(?:-core|-aux)?/")
TRAINING = re.compile(r"(?:actor|critic|training|global_seqlen)/")
"""Keys that only a training step logs; a resumed run validates the step that it starts from once more without them."""


class RunLog(NamedTuple):
    """What one run logged."""

    steps: Mapping[int, Mapping[str, Reading]]
    """By step, in rising order; 0 is before training."""
    n_replaced: int
    """Steps whose first account was replaced because the run was resumed before them."""


def read_log(paths: Sequence[Path]) -> RunLog:
    """Return the log of one run; several files continue each other, in this order.

    Raises:
        RecordError: a file is missing, holds no step or is damaged.
    """
    logged = [line for path in paths for line in read_file(path)]
    return _in_one(logged)


def is_validation(key: str) -> bool:
    """Return whether a key belongs to a validation."""
    return VALIDATION.match(key) is not None


def _in_one(logged: Sequence[Logged]) -> RunLog:
    steps: dict[int, dict[str, Reading]] = {}
    n_replaced = 0
    for step, readings in logged:
        stale = [other for other in steps if other > step]
        if _is_trained(readings) and _is_trained(steps.get(step, {})):
            stale.append(step)
        n_replaced += len(stale)
        for other in stale:
            del steps[other]
        steps.setdefault(step, {}).update(readings)
    return RunLog(dict(sorted(steps.items())), n_replaced)


def _is_trained(keys: Iterable[str]) -> bool:
    return any(TRAINING.match(key) for key in keys)
